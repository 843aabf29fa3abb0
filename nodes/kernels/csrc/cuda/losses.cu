// Losses, forward and backward in one pass: the logits are read once for the loss and its gradient.
//
// Advantages over torch.compile: no trial waits for a compiler, and on an H100 torch.compile takes
// 1.1 to 1.2 times as long on large batches, 0.9 to 1.6 times on small ones
// (tests/bench/BENCHMARKS.md).
#include <cmath>

#include "launch.cuh"
#include "launchers.h"
#include "pack.cuh"

namespace trialfleet::cuda {
namespace {

// Each block adds its rows in float64. A single block writes the loss. Several blocks write parts,
// and a second launch, add_parts_kernel, adds these. So for few rows a single block is faster, even
// with several rounds. The maximum of blocks is a multiple of 132, because H100 and H200 have 132
// multiprocessors, each with 4 or 8 blocks at once. Other GPUs take ten waves of blocks or more, so
// that a last wave with few blocks costs little.
constexpr int64_t kMostParts = kMostBlocks < 32 * 132 ? kMostBlocks : 32 * 132;
constexpr int64_t kRoundsAlone = 4;  // maximum rounds of a single block
constexpr int kAdders = 1024;        // threads of add_parts_kernel

// Return the number of blocks for these rows; a block handles `at_once` of them in a round.
unsigned blocks_of(int64_t rows, int64_t at_once) {
  return rows <= kRoundsAlone * at_once ? 1 : blocks_for(rows, at_once, kMostParts);
}

int64_t workspace_of(unsigned parts) { return parts * static_cast<int64_t>(sizeof(double)); }

// The destination of the rows' losses.
struct Total {
  double* parts;  // [blocks]
  float* loss;
  double rows;

  // Write the sum of this block's rows.
  __device__ void leave(double sum) const {
    if (threadIdx.x != 0) return;
    if (gridDim.x == 1) {
      *loss = static_cast<float>(sum / rows);
    } else {
      parts[blockIdx.x] = sum;
    }
  }
};

// Return the sum of all threads' values to thread 0. The order of the additions is fixed.
template <int threads>
__device__ double sum_of_block(double value) {
  __shared__ double sum_of[threads / kWarp];
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

// Compute the loss from `count` parts.
__global__ void __launch_bounds__(kAdders) add_parts_kernel(Total total, unsigned count) {
  double sum = 0.0;
  for (unsigned i = threadIdx.x; i < count; i += kAdders) sum += total.parts[i];
  total.leave(sum_of_block<kAdders>(sum));
}

cudaError_t add_parts(const Total& total, unsigned blocks, cudaStream_t stream) {
  if (blocks == 1) return cudaSuccess;
  return launch(add_parts_kernel, 1, kAdders, stream, total, blocks);
}

// --- softmax and cross-entropy

// `lanes` adjacent threads of a warp share a row: one lane per pack, up to the whole warp.
int lanes_for(int64_t packs) { return power_of_two(packs, kWarp); }

template <typename Combine>
__device__ float over_lanes(float value, int lanes, Combine combine) {
  for (int distance = lanes / 2; distance > 0; distance /= 2) {
    value = combine(value, __shfl_xor_sync(0xffffffffu, value, distance));
  }
  return value;
}

// The maximum number of packs of n values per lane. Single values need more registers, for
// addresses.
template <int n>
constexpr int kHeld = n == 1 ? 8 : 32 / n;

// A lane's part of a row in its registers: read once, with one exponential per element. The row's
// packs of n values are assigned to the lanes in turn. `wide`: a pack is read in one access.
template <bool wide, int n, int packs, typename T>
class HeldRow {
 public:
  static constexpr bool kWholeWarp = packs > 1;  // with fewer lanes there is one pack

  __device__ HeldRow(const T* logits, int64_t begin, int64_t classes, int lane, int /*lanes*/)
      : begin_(begin), classes_(static_cast<int>(classes)), lane_(lane) {
    const T* row = logits + begin;
#pragma unroll
    for (int pack = 0; pack < packs; ++pack) {
      // Past the row's end, the row's begin is read and ignored, because without a branch all loads
      // are issued at once.
      const int column = column_of(pack) < classes_ ? column_of(pack) : 0;
      load<wide>(row, column, classes_, value_[pack]);
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

  // Replace each x by exp(x - largest), and return their sum.
  __device__ float to_exponentials(float largest) {
    float sum = 0.0f;
    each_pack([&](int pack, int /*column*/) {
#pragma unroll
      for (int i = 0; i < n; ++i) {
        value_[pack][i] = __expf(value_[pack][i] - largest);
        sum += value_[pack][i];
      }
    });
    return sum;
  }

  // Write each exponential times `scale`; in column `wanted`, subtract `one` from this.
  __device__ void write(T* grad, float scale, int64_t wanted, float one) {
    T* row = grad + begin_;
    const int column_wanted = wanted >= 0 && wanted < classes_ ? static_cast<int>(wanted) : -n;
    each_pack([&](int pack, int column) {
#pragma unroll
      for (int i = 0; i < n; ++i) value_[pack][i] *= scale;
      const int at = column_wanted - column;
      if (at >= 0 && at < n) {  // true in one lane only
#pragma unroll
        for (int i = 0; i < n; ++i) value_[pack][i] -= i == at ? one : 0.0f;
      }
      store<wide>(row, column, classes_, value_[pack]);
    });
  }

 private:
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

// The same for a longer row, which is read three times, twice from the cache. Loads of single
// values suffice, because a warp reads 32 adjacent values at once.
template <typename T>
class ReadRow {
 public:
  static constexpr bool kWholeWarp = true;

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

  __device__ void write(T* grad, float scale, int64_t wanted, float one) {
    for (int64_t j = lane_; j < classes_; j += lanes_) {
      grad[begin_ + j] = from_float<T>(exponential(j) * scale - (j == wanted ? one : 0.0f));
    }
  }

 private:
  __device__ float exponential(int64_t j) const { return __expf(to_float(logits_[j]) - largest_); }

  const T* logits_;
  int64_t begin_, classes_;
  int lane_, lanes_;
  float largest_ = 0.0f;
};

// All lanes must take part in a shuffle, so every thread loops equally often: after the last row, a
// thread reads this row again, and writes nothing.
template <typename Row, typename T>
__global__ void __launch_bounds__(kThreads)
    softmax_kernel(const T* logits, const int64_t* target, T* grad, Total total, int64_t rows,
                   int64_t classes, int lanes_given, float rows_inverse) {
  const int lanes =
      Row::kWholeWarp ? kWarp : lanes_given;  // a compile-time constant, if possible
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

    const int64_t wanted = target[row];
    const bool known = wanted >= 0 && wanted < classes;
    if (real && lane == 0) {
      loss += known ? logf(sum) + (largest - to_float(logits[row * classes + wanted])) : NAN;
    }
    // sum is at least 1: this is the exponential of the largest element.
    const float scale = known ? __fdividef(rows_inverse, sum) : NAN;
    if (real) x.write(grad, scale, wanted, rows_inverse);
  }
  total.leave(sum_of_block<kThreads>(loss));
}

// The arguments of softmax_kernel.
template <typename T>
struct Softmax {
  const T* logits;
  const int64_t* target;
  T* grad;
  Total total;
  int64_t rows, classes;
  cudaStream_t stream;
};

template <typename Row, typename T>
cudaError_t start(const Softmax<T>& s, int lanes, unsigned& blocks) {
  blocks = blocks_of(s.rows, kThreads / lanes);
  return launch(softmax_kernel<Row, T>, blocks, kThreads, s.stream, s.logits, s.target, s.grad,
                s.total, s.rows, s.classes, lanes,
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

// Which lane has which elements, and so the order of the sums, depends only on the shape. How the
// elements are read depends on the arrays' alignment.
template <typename T>
cudaError_t start_softmax(const Softmax<T>& s, unsigned& blocks) {
  constexpr int n = kWidth<T>;
  if (s.classes % n != 0 || s.classes == 0) return start_packs<false, 1>(s, blocks);
  return with_flag(aligned<n>(s.logits) && aligned<n>(s.grad),
                   [&](auto wide) { return start_packs<wide, n>(s, blocks); });
}

// --- losses of one output

struct Slope {
  float loss, grad;
};

// The loss and its gradient need one exponential and one reciprocal: with e = exp(-|x|) in [0, 1],
//   sigmoid(|x|) = 1 / (1 + e)      log1p(e) = 2 * atanh(s), s = e / (2 + e) in [0, 1 / 3].
// atanh(s) / s is approximated by a polynomial in s * s, fitted at Chebyshev nodes, with an error
// of 4e-9, less than the rounding of float32. log1pf and two divisions would take longer than the
// loads.
struct SigmoidBce {
  __device__ Slope operator()(float x, float target) const {
    const float e = __expf(-fabsf(x));
    const float more = 1.0f + e, most = 2.0f + e;
    const float inverse = __fdividef(1.0f, more * most);
    const float s = e * more * inverse;
    const float q = s * s;
    const float series =
        2.0f + q * (0.6666632f + q * (0.40024596f + q * (0.27965158f + q * 0.2815778f)));
    const float loss = fmaxf(x, 0.0f) - x * target + s * series;
    const float certain = most * inverse;  // sigmoid(|x|)
    return {loss, (x < 0.0f ? e * certain : certain) - target};
  }
};

struct SquaredError {
  __device__ Slope operator()(float x, float target) const {
    const float error = x - target;
    return {error * error, 2.0f * error};
  }
};

// `wide`: the arrays consist of whole packs. The losses of a pack are added in float32, and the
// packs' sums in float64.
template <bool wide, typename T, typename Loss>
__global__ void __launch_bounds__(kThreads)
    pointwise_kernel(const T* outputs, const float* target, T* grad, Total total, int64_t rows,
                     float rows_inverse) {
  constexpr int n = kWidth<T>;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * n;
  int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * n;
  double loss = 0.0;
  for (; first < rows; first += stride) {
    float x[n], wanted[n];
    load<wide>(outputs, first, rows, x);
    load<wide>(target, first, rows, wanted);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const Slope slope = Loss()(x[i], wanted[i]);
      if (wide || first + i < rows) sum += slope.loss;
      x[i] = slope.grad * rows_inverse;
    }
    store<wide>(grad, first, rows, x);
    loss += sum;
  }
  total.leave(sum_of_block<kThreads>(loss));
}

template <typename Loss>
cudaError_t pointwise(const void* outputs, const float* target, float* loss, void* grad,
                      void* workspace, int64_t rows, Type type, cudaStream_t stream) {
  if (rows < 0) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  const Total total = {static_cast<double*>(workspace), loss, static_cast<double>(rows)};
  unsigned blocks = 0;
  const cudaError_t error = with_type(type, [&](auto kind) {
    using T = decltype(kind);
    constexpr int n = kWidth<T>;
    blocks = blocks_of(rows, kThreads * n);
    const auto* x = static_cast<const T*>(outputs);
    auto* slopes = static_cast<T*>(grad);
    const bool packed = aligned<n>(x) && aligned<n>(target) && aligned<n>(slopes);
    return with_flag(packed && rows % n == 0, [&](auto wide) {
      return launch(pointwise_kernel<wide, T, Loss>, blocks, kThreads, stream, x, target, slopes,
                    total, rows, static_cast<float>(1.0 / static_cast<double>(rows)));
    });
  });
  return error != cudaSuccess ? error : add_parts(total, blocks, stream);
}

// The number for float32, which needs the most packs because a pack has the fewest values.
int64_t pointwise_workspace(int64_t rows) {
  return workspace_of(blocks_of(rows, kThreads * kWidth<float>));
}

}  // namespace

cudaError_t softmax_cross_entropy(const void* logits, const int64_t* target, float* loss,
                                  void* grad, void* workspace, int64_t rows, int64_t classes,
                                  Type type, cudaStream_t stream) {
  if (rows < 0 || classes < 0) return cudaErrorInvalidValue;
  if (rows == 0) return cudaSuccess;
  const Total total = {static_cast<double*>(workspace), loss, static_cast<double>(rows)};
  unsigned blocks = 0;
  const cudaError_t error = with_type(type, [&](auto kind) {
    using T = decltype(kind);
    const Softmax<T> softmax = {
        static_cast<const T*>(logits), target, static_cast<T*>(grad), total, rows, classes, stream};
    return start_softmax(softmax, blocks);
  });
  return error != cudaSuccess ? error : add_parts(total, blocks, stream);
}

// The number for single elements; with packs, fewer lanes and so fewer blocks are needed.
int64_t softmax_cross_entropy_workspace(int64_t rows, int64_t classes) {
  const int64_t rows_at_once = kThreads / lanes_for(classes);
  return workspace_of(blocks_of(rows, rows_at_once));
}

cudaError_t sigmoid_bce(const void* logits, const float* target, float* loss, void* grad,
                        void* workspace, int64_t rows, Type type, cudaStream_t stream) {
  return pointwise<SigmoidBce>(logits, target, loss, grad, workspace, rows, type, stream);
}

int64_t sigmoid_bce_workspace(int64_t rows) { return pointwise_workspace(rows); }

cudaError_t mean_squared_error(const void* outputs, const float* target, float* loss, void* grad,
                               void* workspace, int64_t rows, Type type, cudaStream_t stream) {
  return pointwise<SquaredError>(outputs, target, loss, grad, workspace, rows, type, stream);
}

int64_t mean_squared_error_workspace(int64_t rows) { return pointwise_workspace(rows); }

}  // namespace trialfleet::cuda
