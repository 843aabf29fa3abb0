// Bias, ReLU and dropout in one pass. Eager torch needs three forward passes and stores a mask.
// Here the forward pass computes the mask (philox.h), and the backward pass derives it from y.
//
// Advantages over torch.compile: the mask is the same on every device and rank, no trial waits for
// a compiler, and on an H100 torch.compile's kernel takes 2.3 times as long, and its backward 1.6
// times (tests/bench/BENCHMARKS.md).
#include "../philox.h"
#include "launch.cuh"
#include "launchers.h"
#include "pack.cuh"

namespace trialfleet::cuda {
namespace {

// Return whether p is a valid probability of dropout.
bool droppable(double p) { return p >= 0.0 && p < 1.0; }

// The memory layout of x and y. `packs`: they consist of whole packs. `rows`: each of their rows,
// and bias, also consist of whole packs. `placed`: they are part of a larger array, and their packs
// are not aligned to Philox blocks.
enum class Layout { any, packs, rows, placed };

// Several times as many blocks as any GPU runs at once, but so few that in a large array each
// thread handles many packs after one setup.
constexpr int64_t kMostForwardBlocks = kMostBlocks < 8192 ? kMostBlocks : 8192;

// A pack has the elements that share a Philox block. `turn`: the distance between the columns of a
// thread's successive packs. In SASS of CUDA 13.0 for sm_90, 8 values of bfloat16 took 144
// instructions before `place` was added. `python -m tests.kernels.sass activation.cu --kernel
// forward` counts those of a round.
template <Layout layout, typename T, typename B>
__global__ void __launch_bounds__(kThreads)
    forward_kernel(const T* x, const B* bias, const int64_t* rng, int64_t layer, Dropout dropout,
                   Place place, T* y, int64_t size, int64_t columns, int64_t turn) {
  constexpr int n = kGroup;
  constexpr bool wide = layout == Layout::packs || layout == Layout::rows;
  const bool dropping = dropout.threshold > 0;
  const int64_t seed = dropping ? rng[0] : 0;
  const int64_t step = dropping ? rng[1] : 0;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads * n;
  int64_t first = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * n;
  int64_t column = first % columns;
  for (; first < size; first += stride) {
    float value[n], offset[n];
    load<wide>(x, first, size, value);
    if constexpr (layout == Layout::rows) {
      load<true>(bias, column, columns, offset);
    } else {
      int64_t at = column;
#pragma unroll
      for (int i = 0; i < n; ++i) {
        offset[i] = to_float(bias[at]);
        if (++at == columns) at = 0;
      }
    }
    column += turn;
    if (column >= columns) column -= columns;
    Words words = {};  // threshold 0 keeps everything, for any words
    if constexpr (layout != Layout::placed) {
      if (dropping) words = dropout_words(seed, step, layer, (place.offset + first) / n);
    }
    int64_t row = layout == Layout::placed ? first / columns : 0;
    int64_t at = layout == Layout::placed ? first % columns : 0;
    int64_t known = -1;  // the Philox block of `words`
#pragma unroll
    for (int i = 0; i < n; ++i) {
      int half = i;
      Words its = words;
      if constexpr (layout == Layout::placed) {
        const int64_t element = place.of(row, at);
        half = static_cast<int>(element % n);
        if (dropping && element / n != known) {
          known = element / n;
          words = dropout_words(seed, step, layer, known);
        }
        // With an index unknown to the compiler, the words would be in slow local memory.
        const uint32_t low = half < 2 ? words.at[0] : words.at[1];
        const uint32_t high = half < 6 ? words.at[2] : words.at[3];
        its.at[0] = half < 4 ? low : high;
        half %= 2;
        if (++at == columns) at = 0, ++row;
      }
      const float sum = value[i] + offset[i];
      const bool kept = dropout.keeps(its, half) && !(sum <= 0.0f);  // NaN is not <= 0: kept
      value[i] = kept ? sum * dropout.scale : 0.0f;
    }
    store<wide>(y, first, size, value);
  }
}

// The backward pass divides [rows, columns] into tiles: the columns of `lanes` packs, and a stripe
// of rows that the block processes blockDim.y at a time. Each stripe gives one sum per column; a
// second kernel adds the stripes' sums.
struct Tiling {
  int lanes;        // blockDim.x
  int height;       // blockDim.y
  unsigned tiles;   // across the columns: gridDim.x
  int64_t stripes;  // down the rows: gridDim.y
};

constexpr int64_t kRowsOfAThread = 4;  // at least: with fewer, sums take as long as the rows
constexpr int kRowsAtOnce = 2;         // rows that a thread loads at the same time
// A multiple of 132, because H100 and H200 have 132 multiprocessors, each with 4 or 5 blocks at
// once; other GPUs take several waves. The number is the same for all GPUs, because the order of
// the sums must not depend on the GPU.
constexpr int64_t kEnoughBlocks = 20 * 132;

Tiling tile(int64_t rows, int64_t columns, int width) {
  Tiling tiling;
  const int64_t packs = divide_up(columns, width);
  tiling.lanes = power_of_two(packs, kWarp);
  tiling.height = kThreads / tiling.lanes;
  tiling.tiles = static_cast<unsigned>(divide_up(packs, tiling.lanes));
  const int64_t useful = divide_up(rows, tiling.height * kRowsOfAThread);
  const int64_t wanted = divide_up(kEnoughBlocks, tiling.tiles);
  tiling.stripes = useful < wanted ? useful : wanted;
  return tiling;
}

// sums [stripes, columns]. `wide`: the rows consist of whole packs.
template <bool wide, typename T>
__global__ void __launch_bounds__(kThreads)
    backward_kernel(const T* grad, const T* y, float scale, T* grad_x, float* sums, int64_t rows,
                    int64_t columns) {
  constexpr int n = kWidth<T>;
  __shared__ float sum_of[kThreads * n];  // [blockDim.y][blockDim.x * n]
  const int64_t tile_begin = static_cast<int64_t>(blockIdx.x) * blockDim.x * n;
  const int64_t column = tile_begin + threadIdx.x * n;
  const int64_t height = divide_up(rows, gridDim.y);
  const int64_t begin = blockIdx.y * height;
  const int64_t end = begin + height < rows ? begin + height : rows;

  float sum[n] = {};
  if (column < columns) {
    for (int64_t row = begin + threadIdx.y; row < end; row += kRowsAtOnce * blockDim.y) {
      float g[kRowsAtOnce][n], active[kRowsAtOnce][n];
#pragma unroll
      for (int k = 0; k < kRowsAtOnce; ++k) {
        // Past the stripe's end, this row is read again and ignored, because without a branch all
        // loads are issued at once.
        const int64_t mine = row + k * blockDim.y < end ? row + k * blockDim.y : row;
        load<wide>(grad, mine * columns + column, (mine + 1) * columns, g[k]);
        load<wide>(y, mine * columns + column, (mine + 1) * columns, active[k]);
      }
#pragma unroll
      for (int k = 0; k < kRowsAtOnce; ++k) {
        const int64_t mine = row + k * blockDim.y;
        if (k > 0 && mine >= end) break;
#pragma unroll
        for (int i = 0; i < n; ++i) {
          g[k][i] = active[k][i] > 0.0f ? g[k][i] * scale : 0.0f;
          sum[i] += g[k][i];
        }
        store<wide>(grad_x, mine * columns + column, (mine + 1) * columns, g[k]);
      }
    }
  }

  const int width = blockDim.x * n;
  const int thread = threadIdx.y * blockDim.x + threadIdx.x;
#pragma unroll
  for (int i = 0; i < n; ++i) sum_of[thread * n + i] = sum[i];
  __syncthreads();
  if (thread < width && tile_begin + thread < columns) {
    float total = 0.0f;
    for (int row = 0; row < static_cast<int>(blockDim.y); ++row) {
      total += sum_of[row * width + thread];
    }
    sums[blockIdx.y * columns + tile_begin + thread] = total;
  }
}

constexpr int kAdders = kWarp * kWarp;

// grad_bias[column] = the sum of sums [stripes, columns]; a block adds 32 columns.
__global__ void __launch_bounds__(kAdders)
    add_stripes_kernel(const float* sums, float* grad_bias, int64_t stripes, int64_t columns) {
  __shared__ float sum_of[kWarp][kWarp];
  const int64_t column = static_cast<int64_t>(blockIdx.x) * kWarp + threadIdx.x;
  float sum = 0.0f;
  if (column < columns) {
    for (int64_t i = threadIdx.y; i < stripes; i += kWarp) sum += sums[i * columns + column];
  }
  sum_of[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.y == 0 && column < columns) {
    float total = 0.0f;
    for (int i = 0; i < kWarp; ++i) total += sum_of[i][threadIdx.x];
    grad_bias[column] = total;
  }
}

template <typename T, typename B>
cudaError_t forward(const T* x, const B* bias, const int64_t* rng, int64_t layer, double p,
                    Place place, T* y, int64_t rows, int64_t columns, cudaStream_t stream) {
  constexpr int n = kGroup;
  const int64_t size = rows * columns;
  const unsigned blocks = blocks_for(size, kThreads * n, kMostForwardBlocks);
  const int64_t turn = static_cast<int64_t>(blocks) * kThreads * n % columns;
  const auto start = [&](auto kernel) {
    return launch(kernel, blocks, kThreads, stream, x, bias, rng, layer, Dropout(p), place, y, size,
                  columns, turn);
  };
  const bool is_whole = place.width == columns || rows == 1;  // rows are contiguous there
  if (p > 0 && (!is_whole || place.offset % n != 0)) {
    return start(forward_kernel<Layout::placed, T, B>);
  }
  if (!aligned<n>(x) || !aligned<n>(y) || size % n != 0) {
    return start(forward_kernel<Layout::any, T, B>);
  }
  return aligned<n>(bias) && columns % n == 0 ? start(forward_kernel<Layout::rows, T, B>)
                                              : start(forward_kernel<Layout::packs, T, B>);
}

template <typename T>
cudaError_t backward(const T* grad, const T* y, double p, T* grad_x, float* grad_bias, float* sums,
                     int64_t rows, int64_t columns, cudaStream_t stream) {
  constexpr int n = kWidth<T>;
  const bool packed = aligned<n>(grad) && aligned<n>(y) && aligned<n>(grad_x) && columns % n == 0;
  const Tiling tiling = tile(rows, columns, n);
  const dim3 grid(tiling.tiles, static_cast<unsigned>(tiling.stripes));
  const dim3 block(tiling.lanes, tiling.height);
  const bool once = tiling.stripes == 1;
  const cudaError_t error = with_flag(packed, [&](auto wide) {
    return launch(backward_kernel<wide, T>, grid, block, stream, grad, y, Dropout(p).scale, grad_x,
                  once ? grad_bias : sums, rows, columns);
  });
  if (error != cudaSuccess || once) return error;
  return launch(add_stripes_kernel, static_cast<unsigned>(divide_up(columns, kWarp)),
                dim3(kWarp, kWarp), stream, sums, grad_bias, tiling.stripes, columns);
}

int width_of(Type type) {
  return with_type(type, [](auto kind) { return kWidth<decltype(kind)>; });
}

}  // namespace

cudaError_t bias_relu_dropout(const void* x, const void* bias, const int64_t* rng, int64_t layer,
                              double p, int64_t offset, int64_t width, void* y, int64_t rows,
                              int64_t columns, Type type, Type bias_type, cudaStream_t stream) {
  if (rows < 0 || columns < 0 || !droppable(p)) return cudaErrorInvalidValue;
  if (offset < 0 || width < columns) return cudaErrorInvalidValue;
  if (bias_type != Type::float32 && bias_type != type) return cudaErrorInvalidValue;
  if (rows * columns == 0) return cudaSuccess;
  return with_type(type, [&](auto kind) {
    using T = decltype(kind);
    const auto* values = static_cast<const T*>(x);
    auto* result = static_cast<T*>(y);
    const Place place{offset, width};
    if (bias_type == type) {
      return forward(values, static_cast<const T*>(bias), rng, layer, p, place, result, rows,
                     columns, stream);
    }
    return forward(values, static_cast<const float*>(bias), rng, layer, p, place, result, rows,
                   columns, stream);
  });
}

cudaError_t bias_relu_dropout_backward(const void* grad, const void* y, double p, void* grad_x,
                                       float* grad_bias, void* workspace, int64_t rows,
                                       int64_t columns, Type type, cudaStream_t stream) {
  if (rows < 0 || columns < 0 || !droppable(p)) return cudaErrorInvalidValue;
  if (columns == 0) return cudaSuccess;
  if (rows == 0) return cudaMemsetAsync(grad_bias, 0, columns * sizeof(float), stream);
  return with_type(type, [&](auto kind) {
    using T = decltype(kind);
    return backward(static_cast<const T*>(grad), static_cast<const T*>(y), p,
                    static_cast<T*>(grad_x), grad_bias, static_cast<float*>(workspace), rows,
                    columns, stream);
  });
}

int64_t bias_relu_dropout_backward_workspace(int64_t rows, int64_t columns, Type type) {
  if (rows <= 0 || columns <= 0) return 0;
  const Tiling tiling = tile(rows, columns, width_of(type));
  return tiling.stripes == 1 ? 0 : tiling.stripes * columns * static_cast<int64_t>(sizeof(float));
}

}  // namespace trialfleet::cuda
