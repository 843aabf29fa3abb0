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

// `lanes` neighbours of a warp share a row: as many as it has packs, up to the whole warp.
int lanes_for(int64_t packs) { return power_of_two(packs, kWarp); }

template <typename Combine>
__device__ float over_lanes(float value, int lanes, Combine combine) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}

// Packs of n that a lane can hold of a row; single ones cost more registers, for addresses.
template <int n>
constexpr int kHeld = n == 1 ? 8 : 32 / n;

// A lane's part of a row in its registers: read once, one exponential for each element. The row's
// packs of n go round the lanes. `wide`: a pack is one access.
template <bool wide, int n, int packs, typename T>
class HeldRow {
 public:
  __device__ HeldRow(const T* logits, int64_t begin, int64_t classes, int lane, int /*lanes*/)
      : begin_(begin), classes_(static_cast<int>(classes)), lane_(lane) {
#pragma unroll
    for (int pack = 0; pack < packs; ++pack) {
      // Past the row's end its begin is read, for nothing: without a branch all loads go at once.
      const int column = column_of(pack) < classes_ ? column_of(pack) : 0;
      load<wide>(logits, begin_ + column, begin_ + classes_, value_[pack]);
    }
  }

  __device__ float largest() const {
    float found = -INFINITY;
    each_pack([&](int pack, int /*column*/) {
#pragma unroll
      for (int i = 0; i < n; ++i) found = fmaxf(found, value_[pack][i]);
    });
    return found;
  }

  // Makes exp(x - largest) of each x, and returns their sum.
  __device__ float to_exponentials(float largest) {
    float sum = 0.0f;
    each_pack([&](int pack, int /*column*/) {
#pragma unroll
      for (int i = 0; i < n; ++i) {
        value_[pack][i] = expf(value_[pack][i] - largest);
        sum += value_[pack][i];
      }
    });
    return sum;
  }

  // Writes slope(column, exponential) for each element.
  template <typename Slope>
  __device__ void write(T* grad, Slope slope) {
    each_pack([&](int pack, int column) {
#pragma unroll
      for (int i = 0; i < n; ++i) value_[pack][i] = slope(column + i, value_[pack][i]);
      store<wide>(grad, begin_ + column, begin_ + classes_, value_[pack]);
    });
  }

 private:
  // Where lanes are fewer than a warp, there is one pack.
  __device__ int column_of(int pack) const { return (pack * kWarp + lane_) * n; }

  template <typename Body>
  __device__ void each_pack(Body body) const {
#pragma unroll
    for (int pack = 0; pack < packs; ++pack) {
      if (column_of(pack) < classes_) body(pack, column_of(pack));
    }
  }

  float value_[packs][n];
  int64_t begin_;
  int classes_, lane_;
};

// The same of a longer row: it is read three times, twice from the cache. Single loads: a warp
// reads 32 neighbours at once all the same.
template <typename T>
class ReadRow {
 public:
  __device__ ReadRow(const T* logits, int64_t begin, int64_t classes, int lane, int lanes)
      : logits_(logits + begin), begin_(begin), classes_(classes), lane_(lane), lanes_(lanes) {}

  __device__ float largest() const {
    float found = -INFINITY;
    for (int64_t j = lane_; j < classes_; j += lanes_) found = fmaxf(found, to_float(logits_[j]));
    return found;
  }

  __device__ float to_exponentials(float largest) {
    largest_ = largest;
    float sum = 0.0f;
    for (int64_t j = lane_; j < classes_; j += lanes_) sum += exponential(j);
    return sum;
  }

  template <typename Slope>
  __device__ void write(T* grad, Slope slope) {
    for (int64_t j = lane_; j < classes_; j += lanes_) {
      grad[begin_ + j] = from_float<T>(slope(j, exponential(j)));
    }
  }

 private:
  __device__ float exponential(int64_t j) const { return expf(to_float(logits_[j]) - largest_); }

  const T* logits_;
  int64_t begin_, classes_;
  int lane_, lanes_;
  float largest_ = 0.0f;
};

// Every thread goes round as often as the others, because all lanes take part in a shuffle: where
// the rows have run out it looks at the last one again, and writes nothing.
template <typename Row, typename T>
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

    Row x(logits, row * classes, classes, lane, lanes);
    const float largest =
        over_lanes(x.largest(), lanes, [](float a, float b) { return fmaxf(a, b); });
    const float sum =
        over_lanes(x.to_exponentials(largest), lanes, [](float a, float b) { return a + b; });
    const float sum_inverse = 1.0f / sum;  // sum is at least 1, the largest's own

    const int64_t wanted = target[row];
    const bool known = wanted >= 0 && wanted < classes;
    if (real && lane == 0) {
      loss += known ? logf(sum) + (largest - to_float(logits[row * classes + wanted])) : NAN;
    }
    if (real) {
      x.write(grad, [&](int64_t column, float exponential) {
        const float slope = exponential * sum_inverse - (column == wanted ? 1.0f : 0.0f);
        return known ? slope * rows_inverse : NAN;
      });
    }
  }
  const double total = sum_of_block(loss);
  if (threadIdx.x == 0) parts[blockIdx.x] = total;
}

// What softmax_kernel starts with.
template <typename T>
struct Softmax {
  const T* logits;
  const int64_t* target;
  T* grad;
  double* parts;
  int64_t rows, classes;
  cudaStream_t stream;
};

template <typename Row, typename T>
cudaError_t start(const Softmax<T>& s, int lanes, unsigned& blocks) {
  blocks = blocks_for(s.rows, kThreads / lanes, kMostParts);
  return launch(softmax_kernel<Row, T>, blocks, kThreads, s.stream, s.logits, s.target, s.grad,
                s.parts, s.rows, s.classes, lanes,
                static_cast<float>(1.0 / static_cast<double>(s.rows)));
}

template <bool wide, int n, typename T>
cudaError_t start_packs(const Softmax<T>& s, unsigned& blocks) {
  const int64_t packs = divide_up(s.classes, n);
  const int lanes = lanes_for(packs);
  if (packs <= kWarp) return start<HeldRow<wide, n, 1, T>>(s, lanes, blocks);
  if (packs <= kWarp * kHeld<n>) return start<HeldRow<wide, n, kHeld<n>, T>>(s, lanes, blocks);
  return start<ReadRow<T>>(s, lanes, blocks);
}

// The shape alone decides which lane has what, and so the order of the sums; where the arrays lie
// decides how they are read.
template <typename T>
cudaError_t start_softmax(const Softmax<T>& s, unsigned& blocks) {
  constexpr int n = kWidth<T>;
  if (s.classes % n != 0 || s.classes == 0) return start_packs<false, 1>(s, blocks);
  return with_flag(aligned<n>(s.logits) && aligned<n>(s.grad),
                   [&](auto wide) { return start_packs<wide, n>(s, blocks); });
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
  unsigned blocks = 0;
  const cudaError_t error = with_type(type, [&](auto kind) {
    using T = decltype(kind);
    const Softmax<T> softmax = {static_cast<const T*>(logits), target, static_cast<T*>(grad),
                                parts, rows, classes, stream};
    return start_softmax(softmax, blocks);
  });
  return error != cudaSuccess ? error : add_parts(parts, blocks, rows, loss, stream);
}

// For single elements; with packs the lanes are fewer, and so are the blocks.
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
