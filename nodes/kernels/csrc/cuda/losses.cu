// Losses, forward and backward in one pass: the gradient by the logits needs what the loss needs,
// so one reading of the logits gives both.
#include <cmath>

#include "launch.cuh"
#include "launchers.h"
#include "pack.cuh"

namespace trialfleet::cuda {
namespace {

// Each block adds up its rows in float64 and leaves one part; add_parts_kernel adds the parts.
constexpr int64_t kMostParts = kMostBlocks < 1024 ? kMostBlocks : 1024;

int64_t workspace_of(unsigned parts) { return parts * static_cast<int64_t>(sizeof(double)); }

// The sum of all threads' values, for thread 0. The order of the additions is always the same.
__device__ double sum_of_block(double value) {
  __shared__ double sum_of[kThreads / kWarp];
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  if (threadIdx.x % kWarp == 0) sum_of[threadIdx.x / kWarp] = value;
  __syncthreads();
  double total = 0.0;
  if (threadIdx.x == 0) {
    for (const double sum : sum_of) total += sum;
  }
  return total;
}

// loss = the sum of parts [count], over rows.
__global__ void __launch_bounds__(kThreads)
    add_parts_kernel(const double* parts, unsigned count, double rows, float* loss) {
  double sum = 0.0;
  for (unsigned i = threadIdx.x; i < count; i += kThreads) sum += parts[i];
  const double total = sum_of_block(sum);
  if (threadIdx.x == 0) *loss = static_cast<float>(total / rows);
}

cudaError_t add_parts(const double* parts, unsigned count, int64_t rows, float* loss,
                      cudaStream_t stream) {
  return launch(add_parts_kernel, 1, kThreads, stream, parts, count, static_cast<double>(rows),
                loss);
}

// --- softmax and cross-entropy

// `lanes` neighbours of a warp share a row: as many as it has classes, up to the whole warp.
int lanes_for(int64_t classes) { return power_of_two(classes, kWarp); }

template <typename Combine>
__device__ float over_lanes(float value, int lanes, Combine combine) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}

// Single loads: with as many lanes as classes, a warp reads 32 neighbours at once all the same.
// Every thread goes round as often as the others, because all lanes take part in a shuffle: where
// the rows have run out it looks at the last one again, and writes nothing.
template <typename T>
__global__ void __launch_bounds__(kThreads)
    softmax_kernel(const T* logits, const int64_t* target, T* grad, double* parts, int64_t rows,
                   int64_t classes, int lanes, float rows_inverse) {
  const int lane = threadIdx.x % lanes;
  const int rows_at_once = kThreads / lanes;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * rows_at_once;
  double loss = 0.0;
  for (int64_t begin = static_cast<int64_t>(blockIdx.x) * rows_at_once; begin < rows;
       begin += stride) {
    const int64_t mine = begin + threadIdx.x / lanes;
    const bool real = mine < rows;
    const int64_t row = real ? mine : rows - 1;
    const T* x = logits + row * classes;

    float largest = -INFINITY;
    for (int64_t j = lane; j < classes; j += lanes) largest = fmaxf(largest, to_float(x[j]));
    largest = over_lanes(largest, lanes, [](float a, float b) { return fmaxf(a, b); });
    float sum = 0.0f;
    for (int64_t j = lane; j < classes; j += lanes) sum += expf(to_float(x[j]) - largest);
    sum = over_lanes(sum, lanes, [](float a, float b) { return a + b; });
    const float sum_inverse = 1.0f / sum;  // sum is at least 1, the largest's own

    const int64_t wanted = target[row];
    const bool known = wanted >= 0 && wanted < classes;
    if (real && lane == 0) {
      loss += known ? logf(sum) + (largest - to_float(x[wanted])) : NAN;
    }
    if (real) {
      for (int64_t j = lane; j < classes; j += lanes) {
        const float share = expf(to_float(x[j]) - largest) * sum_inverse;
        const float slope = share - (j == wanted ? 1.0f : 0.0f);
        grad[row * classes + j] = from_float<T>(known ? slope * rows_inverse : NAN);
      }
    }
  }
  const double total = sum_of_block(loss);
  if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

// --- losses of one output

constexpr int kPack = 4;

struct Slope {
  float loss, grad;
};

struct SigmoidBce {
  __device__ Slope operator()(float x, float target) const {
    const float loss = fmaxf(x, 0.0f) - x * target + log1pf(expf(-fabsf(x)));
    return {loss, 1.0f / (1.0f + expf(-x)) - target};
  }
};

struct SquaredError {
  __device__ Slope operator()(float x, float target) const {
    const float error = x - target;
    return {error * error, 2.0f * error};
  }
};

// `wide`: the arrays consist of whole packs.
template <bool wide, typename T, typename Loss>
__global__ void __launch_bounds__(kThreads)
    pointwise_kernel(const T* outputs, const float* target, T* grad, double* parts, int64_t rows,
                     float rows_inverse) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * kPack;
  int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kPack;
  double loss = 0.0;
  for (; first < rows; first += stride) {
    float x[kPack], wanted[kPack];
    load<wide>(outputs, first, rows, x);
    load<wide>(target, first, rows, wanted);
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      const Slope slope = Loss()(x[i], wanted[i]);
      if (wide || first + i < rows) loss += slope.loss;
      x[i] = slope.grad * rows_inverse;
    }
    store<wide>(grad, first, rows, x);
  }
  const double total = sum_of_block(loss);
  if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

template <typename Loss>
cudaError_t pointwise(const void* outputs, const float* target, float* loss, void* grad,
                      void* workspace, int64_t rows, Type type, cudaStream_t stream) {
  if (rows < 0) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  auto* parts = static_cast<double*>(workspace);
  const unsigned blocks = blocks_for(rows, kThreads * kPack, kMostParts);
  const cudaError_t error = with_type(type, [&](auto kind) {
    using T = decltype(kind);
    const auto* x = static_cast<const T*>(outputs);
    auto* slopes = static_cast<T*>(grad);
    const bool packed = aligned<kPack>(x) && aligned<kPack>(target) && aligned<kPack>(slopes);
    return with_flag(packed && rows % kPack == 0, [&](auto wide) {
      return launch(pointwise_kernel<wide, T, Loss>, blocks, kThreads, stream, x, target, slopes,
                    parts, rows, static_cast<float>(1.0 / static_cast<double>(rows)));
    });
  });
  return error != cudaSuccess ? error : add_parts(parts, blocks, rows, loss, stream);
}

}  // namespace

cudaError_t softmax_cross_entropy(const void* logits, const int64_t* target, float* loss,
                                  void* grad, void* workspace, int64_t rows, int64_t classes,
                                  Type type, cudaStream_t stream) {
  if (rows < 0 || classes < 0) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  auto* parts = static_cast<double*>(workspace);
  const int lanes = lanes_for(classes);
  const unsigned blocks = blocks_for(rows, kThreads / lanes, kMostParts);
  const cudaError_t error = with_type(type, [&](auto kind) {
    using T = decltype(kind);
    return launch(softmax_kernel<T>, blocks, kThreads, stream, static_cast<const T*>(logits),
                  target, static_cast<T*>(grad), parts, rows, classes, lanes,
                  static_cast<float>(1.0 / static_cast<double>(rows)));
  });
  return error != cudaSuccess ? error : add_parts(parts, blocks, rows, loss, stream);
}

int64_t softmax_cross_entropy_workspace(int64_t rows, int64_t classes) {
  const int64_t rows_at_once = kThreads / lanes_for(classes);
  return workspace_of(blocks_for(rows, rows_at_once, kMostParts));
}

cudaError_t sigmoid_bce(const void* logits, const float* target, float* loss, void* grad,
                        void* workspace, int64_t rows, Type type, cudaStream_t stream) {
  return pointwise<SigmoidBce>(logits, target, loss, grad, workspace, rows, type, stream);
}

int64_t sigmoid_bce_workspace(int64_t rows) {
  return workspace_of(blocks_for(rows, kThreads * kPack, kMostParts));
}

cudaError_t mean_squared_error(const void* outputs, const float* target, float* loss, void* grad,
                               void* workspace, int64_t rows, Type type, cudaStream_t stream) {
  return pointwise<SquaredError>(outputs, target, loss, grad, workspace, rows, type, stream);
}

int64_t mean_squared_error_workspace(int64_t rows) {
  return workspace_of(blocks_for(rows, kThreads * kPack, kMostParts));
}

}  // namespace trialfleet::cuda
