// The batch and its embeddings, and the gradient of the embeddings.
#include <cmath>

#include "launch.cuh"
#include "launchers.h"
#include "pack.cuh"

namespace trialfleet::cuda {
namespace {

// --- forward
//
// A row of joined is cut into units of n neighbours: n numbers, or n of one embedding. A thread has
// the same unit of one row after the other, so it works out once what its unit is, and a row costs
// it three loads (order, category, the n values) and a store. kRows rows are under way at once, as
// each load waits for the one before it.

constexpr int kRows = 4;
constexpr int64_t kMostGatherBlocks = kMostBlocks < 4096 ? kMostBlocks : 4096;

struct Gather {
  const float* numeric;
  const int32_t* categorical;
  const void* target;
  const int64_t* order;
  const int64_t* cursor;
  const int32_t* first_code;
  const float* weight;
  int32_t* codes;
  void* batch_target;
  int64_t positions, rows, numbers, categories, vocabulary, embedding, target_size;

  __host__ __device__ int64_t width() const { return numbers + categories * embedding; }

  __device__ int64_t sample_of(int64_t position) const {
    const int64_t last = positions - 1;
    return order[position < 0 ? 0 : position < last ? position : last];
  }

  __device__ void copy_target(int64_t sample, int64_t row) const {
    if (target_size == 4) {
      static_cast<int32_t*>(batch_target)[row] = static_cast<const int32_t*>(target)[sample];
    } else {
      static_cast<int64_t*>(batch_target)[row] = static_cast<const int64_t*>(target)[sample];
    }
  }
};

// `lanes` neighbours share a row; blockIdx.y has the units beyond a block's threads.
template <int n, typename T>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const Gather g, T* joined, unsigned units, unsigned lanes) {
  const unsigned rows_at_once = kThreads / lanes;
  const unsigned row_of_block = threadIdx.x / lanes;
  const unsigned unit = blockIdx.y * kThreads + threadIdx.x % lanes;
  if (row_of_block >= rows_at_once || unit >= units) return;

  const int64_t width = g.width();
  const int64_t column = static_cast<int64_t>(unit) * n;
  const bool embeds = column >= g.numbers && column < width;
  const unsigned place = embeds ? static_cast<unsigned>(column - g.numbers) : 0;
  const unsigned category = embeds ? place / static_cast<unsigned>(g.embedding) : 0;
  const int64_t part = embeds ? place % static_cast<unsigned>(g.embedding) : column;
  const float* from = (embeds ? g.weight : g.numeric) + part;
  const int64_t pitch = embeds ? g.embedding : g.numbers;
  const int64_t first_code = embeds ? g.first_code[category] : 0;
  const bool has_values = column < width;

  const int64_t cursor = *g.cursor;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * rows_at_once;
  int64_t begin = static_cast<int64_t>(blockIdx.x) * rows_at_once + row_of_block;
  for (; begin < g.rows; begin += stride * kRows) {
    int64_t sample[kRows], index[kRows];
    float value[kRows][n];
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = begin + i * stride;
      sample[i] = row < g.rows ? g.sample_of(cursor + row) : 0;
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const bool real = begin + i * stride < g.rows;
      index[i] = sample[i];
      if (embeds && real) index[i] = first_code + g.categorical[sample[i] * g.categories + category];
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const bool known = !embeds || (index[i] >= 0 && index[i] < g.vocabulary);
      if (known && has_values && begin + i * stride < g.rows) {
        const int64_t first = index[i] * pitch;
        load<(n > 1)>(from, first, first + n, value[i]);
      } else {
#pragma unroll
        for (int j = 0; j < n; ++j) value[i][j] = NAN;
      }
    }
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const int64_t row = begin + i * stride;
      if (row >= g.rows) break;
      if (has_values) store<(n > 1)>(joined + column, row * width, (row + 1) * width, value[i]);
      if (embeds && part == 0) {
        g.codes[row * g.categories + category] = static_cast<int32_t>(index[i]);
      }
      if (unit == 0) g.copy_target(sample[i], row);
    }
  }
}

template <int n, typename T>
cudaError_t start_gather(const Gather& g, T* joined, cudaStream_t stream) {
  const int64_t packs = divide_up(g.width(), n);
  const unsigned units = static_cast<unsigned>(packs > 0 ? packs : 1);  // the target wants one
  const unsigned lanes = units < kThreads ? units : kThreads;
  const dim3 grid(blocks_for(g.rows, kThreads / lanes, kMostGatherBlocks),
                  static_cast<unsigned>(divide_up(units, kThreads)));
  return launch(gather_kernel<n, T>, grid, kThreads, stream, g, joined, units, lanes);
}

template <typename T>
cudaError_t gather(const Gather& g, T* joined, cudaStream_t stream) {
  const auto cuts = [&](auto width) {
    constexpr int n = decltype(width)::value;
    return aligned<n>(g.numeric) && aligned<n>(g.weight) && aligned<n>(joined) &&
           g.numbers % n == 0 && (g.categories == 0 || g.embedding % n == 0);
  };
  if (cuts(std::integral_constant<int, 8>())) return start_gather<8>(g, joined, stream);
  if (cuts(std::integral_constant<int, 4>())) return start_gather<4>(g, joined, stream);
  return start_gather<1>(g, joined, stream);
}

// --- backward
//
// Sums that don't depend on the order of the threads, in one pass over grad: gradients are made
// fixed-point numbers, and whole numbers add up to the same in any order.
//
// The rows of weight are cut into windows, as many rows as a block's shared memory holds sums of;
// the rows of the batch into chunks. A block has one window and one chunk: its warps go through the
// chunk's codes, 32 at a time, queue those in the window, and add the gradients of the queued ones.
// With several chunks their sums are added up by a second kernel.
//
// A sum is 64 bits in two words, since shared memory adds no more than 32 bits at once. The lower
// word begins in the middle of its range, so that the upper one is rarely touched. kResolution is
// what a unit is worth: 2^-44, far below what AdamW's epsilon (1e-8) or a float32 weight lets one
// see. Where the gradients' sizes add up to more than 2^17, the block begins anew with larger units.
// A gradient that is no number, or infinite, makes NaN of the block's whole window.

constexpr int kWarps = 16;             // of a block
constexpr int kLooks = 4;              // times 32 codes that a warp looks at before it adds
constexpr int kQueue = kLooks * kWarp;
constexpr int kAtOnce = 4;             // gradients that a lane has under way
constexpr int kResolution = -44;       // a unit is 2^kResolution
constexpr int kUnitBits = 61;          // of a sum, at most: one is the sign's, one to spare
constexpr uint32_t kMiddle = 0x80000000u;
constexpr int64_t kMostSumBlocks = kMostBlocks < 132 ? kMostBlocks : 132;  // one a multiprocessor
constexpr int64_t kFewestCodes = 4096;  // of a block, or its sums would cost more than its codes

// How a batch is cut up; the same for the same shapes on GPUs with as much shared memory.
struct Cut {
  int64_t part_width;  // columns of the embedding that a block sums: blockIdx.z
  int64_t parts;
  int64_t window;  // rows of weight: blockIdx.x
  int64_t windows;
  int64_t chunk;  // rows of the batch: blockIdx.y
  int64_t chunks;

  size_t shared_bytes() const { return static_cast<size_t>(window * part_width) * 8; }
};

constexpr int64_t kMostPartWidth = kWarp;

Cut cut_up(int64_t rows, int64_t numbers, int64_t categories, int64_t vocabulary,
           int64_t embedding, int64_t shared) {
  Cut cut;
  cut.part_width = embedding < kMostPartWidth ? embedding : kMostPartWidth;
  cut.parts = divide_up(embedding, cut.part_width);
  const int64_t most = shared / (8 * cut.part_width);
  cut.windows = divide_up(vocabulary, most);
  cut.window = divide_up(vocabulary, cut.windows);
  const int64_t useful = divide_up(rows * categories, kFewestCodes);
  const int64_t room = kMostSumBlocks / (cut.windows * cut.parts);
  int64_t chunks = useful < room ? useful : room;
  if (chunks < 1) chunks = 1;
  const int64_t addressable = INT32_MAX / (numbers + categories * embedding);  // see Queue
  cut.chunk = divide_up(rows, chunks);
  if (cut.chunk > addressable) cut.chunk = addressable;
  cut.chunks = divide_up(rows, cut.chunk);
  return cut;
}

// What a block may have of shared memory beside its queues.
int64_t shared_for_sums() {
  int device = 0, bytes = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
  return bytes - kWarps * kQueue * 8 - 1024;
}

struct Queued {
  uint32_t from;  // of the chunk's grad, where the gradient begins
  uint32_t to;    // of the block's sums
};

struct Sums {
  uint32_t* low;
  int32_t* high;

  __device__ void clear(int at) const {
    low[at] = kMiddle;
    high[at] = 0;
  }

  __device__ void add(uint32_t at, int64_t units) const {
    const auto lower = static_cast<uint32_t>(units);
    const uint32_t before = atomicAdd(low + at, lower);
    const int32_t carry = before + lower < before;
    const int32_t upper = static_cast<int32_t>(units >> 32) + carry;
    if (upper != 0) atomicAdd(high + at, upper);
  }

  __device__ int64_t at(int64_t at) const {
    const auto upper = static_cast<uint64_t>(static_cast<uint32_t>(high[at])) << 32;
    return static_cast<int64_t>(upper | low[at]) - static_cast<int64_t>(kMiddle);
  }
};

struct Scatter {
  const int32_t* codes;
  float* sums;  // [chunks, vocabulary, embedding]
  int64_t rows, numbers, categories, vocabulary, embedding;
  int64_t part_width, window, chunk;
};

// Adds the queued gradients' part; `n` neighbours to a lane. Returns the sum of their sizes.
template <int n, typename T>
__device__ float add_queued(const T* grad, const Queued* queue, int count, const Sums& sums,
                            int width, int lanes, float scale) {
  const int lane = threadIdx.x % lanes * n;
  const int at_once = kWarp / lanes;
  const int first = threadIdx.x % kWarp / lanes;
  float size = 0.0f;
  for (int begin = first; begin < count; begin += at_once * kAtOnce) {
    float value[kAtOnce][n];
    uint32_t to[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int at = begin + i * at_once;
      const bool real = at < count && lane < width;
      const Queued queued = queue[real ? at : 0];
      to[i] = queued.to + lane;
      const T* from = grad + queued.from + lane;
      if constexpr (n == 1) {
        value[i][0] = real ? to_float(*from) : 0.0f;
      } else if (real) {
        load<true>(from, 0, n, value[i]);
      } else {
#pragma unroll
        for (int j = 0; j < n; ++j) value[i][j] = 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
#pragma unroll
      for (int j = 0; j < n; ++j) {
        size += fabsf(value[i][j]);
        if (value[i][j] != 0.0f) sums.add(to[i] + j, __float2ll_rn(value[i][j] * scale));
      }
    }
  }
  return size;
}

// One pass of a block over its chunk, with units of 2^-exponent. Returns the sum of the sizes that
// this thread added.
template <int n, typename T>
__device__ float add_chunk(const T* grad, const Scatter& s, const Sums& sums, Queued* queue,
                           int lanes, int exponent) {
  const int64_t first_row = blockIdx.y * s.chunk;
  const int64_t rows = s.rows - first_row < s.chunk ? s.rows - first_row : s.chunk;
  const int64_t column = blockIdx.z * s.part_width;
  const int width =
      static_cast<int>(s.embedding - column < s.part_width ? s.embedding - column : s.part_width);
  const auto categories = static_cast<uint32_t>(s.categories);
  const auto total = static_cast<uint32_t>(rows) * categories;
  const auto first_code = static_cast<int64_t>(blockIdx.x) * s.window;
  const int64_t left = s.vocabulary - first_code;
  const auto window = static_cast<uint32_t>(left < s.window ? left : s.window);
  const int32_t* codes = s.codes + first_row * s.categories;
  const T* corner = grad + first_row * (s.numbers + s.categories * s.embedding) + s.numbers + column;
  const int lane = threadIdx.x % kWarp;
  const float scale = ldexpf(1.0f, exponent);
  float size = 0.0f;
  for (uint32_t begin = threadIdx.x / kWarp * kQueue; begin < total; begin += kWarps * kQueue) {
    uint32_t code[kLooks];
#pragma unroll
    for (int i = 0; i < kLooks; ++i) {
      const uint32_t at = begin + i * kWarp + lane;
      const int64_t here = at < total ? codes[at] : -1;
      code[i] = here < 0 ? window : static_cast<uint32_t>(here - first_code);
    }
    int count = 0;
#pragma unroll
    for (int i = 0; i < kLooks; ++i) {
      const bool mine = code[i] < window;
      const unsigned those = __ballot_sync(0xffffffffu, mine);
      if (mine) {
        const uint32_t at = begin + i * kWarp + lane;
        const uint32_t from = at / categories * static_cast<uint32_t>(s.numbers) +
                              at * static_cast<uint32_t>(s.embedding);
        queue[count + __popc(those & ((1u << lane) - 1u))] = {
            from, code[i] * static_cast<uint32_t>(s.part_width)};
      }
      count += __popc(those);
    }
    __syncwarp();
    size += add_queued<n>(corner, queue, count, sums, width, lanes, scale);
    __syncwarp();
  }
  return size;
}

// The sum over the block, for all threads; the same whatever their order.
__device__ float sum_over_block(float value) {
  __shared__ float sum_of[kWarps];
  for (int distance = kWarp / 2; distance > 0; distance /= 2) {
    value += __shfl_xor_sync(0xffffffffu, value, distance);
  }
  if (threadIdx.x % kWarp == 0) sum_of[threadIdx.x / kWarp] = value;
  __syncthreads();
  float total = 0.0f;
  for (const float sum : sum_of) total += sum;
  return total;
}

template <int n, typename T>
__global__ void __launch_bounds__(kWarps * kWarp)
    sum_kernel(const T* grad, const Scatter s, int lanes) {
  TRIALFLEET_DYNAMIC_SHARED(uint32_t, memory);
  __shared__ Queued queues[kWarps][kQueue];
  const int64_t first_code = static_cast<int64_t>(blockIdx.x) * s.window;
  const int count = static_cast<int>(s.window * s.part_width);
  const Sums sums = {memory, reinterpret_cast<int32_t*>(memory + count)};
  Queued* queue = queues[threadIdx.x / kWarp];

  int exponent = -kResolution;
  float size = 0.0f;
  for (bool again = true; again;) {
    for (int i = threadIdx.x; i < count; i += kWarps * kWarp) sums.clear(i);
    __syncthreads();
    size = sum_over_block(add_chunk<n>(grad, s, sums, queue, lanes, exponent));
    // A sum is at most `size`, and its units take kUnitBits.
    const int fits = size > 0.0f && size < INFINITY ? kUnitBits - 1 - ilogbf(size) : exponent;
    again = fits < exponent;
    exponent = again ? fits : exponent;
    __syncthreads();
  }

  const float unit = ldexpf(1.0f, -exponent);
  const int across = lanes * n;  // a power of two, at least part_width
  const int64_t place = threadIdx.x % across;
  const int64_t column = blockIdx.z * s.part_width + place;
  if (place >= s.part_width || column >= s.embedding) return;
  for (int64_t i = threadIdx.x / across; i < s.window; i += kWarps * kWarp / across) {
    const int64_t code = first_code + i;
    if (code >= s.vocabulary) break;
    const float sum = static_cast<float>(sums.at(i * s.part_width + place)) * unit;
    s.sums[(blockIdx.y * s.vocabulary + code) * s.embedding + column] = size < INFINITY ? sum : NAN;
  }
}

// grad_weight [size] = the sum of sums [chunks, size].
__global__ void __launch_bounds__(kThreads)
    add_chunks_kernel(const float* sums, float* grad_weight, int64_t chunks, int64_t size) {
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < size;
       i += stride) {
    double total = 0.0;
    for (int64_t chunk = 0; chunk < chunks; ++chunk) total += sums[chunk * size + i];
    grad_weight[i] = static_cast<float>(total);
  }
}

template <typename T>
cudaError_t sum_gradients(const T* grad, const Scatter& s, const Cut& cut, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(cut.windows), static_cast<unsigned>(cut.chunks),
                  static_cast<unsigned>(cut.parts));
  const bool paired = aligned<2>(grad) && s.numbers % 2 == 0 && s.embedding % 2 == 0;
  const int lanes = power_of_two(paired ? divide_up(cut.part_width, 2) : cut.part_width, kWarp);
  const auto kernel = paired ? sum_kernel<2, T> : sum_kernel<1, T>;
  return launch_with_shared(kernel, grid, kWarps * kWarp, cut.shared_bytes(), stream, grad, s,
                            lanes);
}

}  // namespace

cudaError_t gather_embed(const float* numeric, const int32_t* categorical, const void* target,
                         const int64_t* order, const int64_t* cursor, const int32_t* first_code,
                         const float* weight, void* joined, int32_t* codes, void* batch_target,
                         int64_t positions, int64_t rows, int64_t numbers, int64_t categories,
                         int64_t vocabulary, int64_t embedding, int64_t target_size, Type type,
                         cudaStream_t stream) {
  if (rows < 0 || numbers < 0 || categories < 0 || vocabulary < 0 || embedding < 0 ||
      positions < 1 || (categories > 0 && embedding == 0) || categories * embedding > INT32_MAX ||
      (target_size != 4 && target_size != 8)) {
    return cudaErrorInvalidValue;
  }
  if (rows == 0) return cudaSuccess;
  const Gather g = {numeric,   categorical,  target,    order, cursor,     first_code,
                    weight,    codes,        batch_target, positions, rows, numbers,
                    categories, vocabulary, embedding, target_size};
  return with_type(type, [&](auto kind) {
    return gather(g, static_cast<decltype(kind)*>(joined), stream);
  });
}

cudaError_t gather_embed_backward(const void* grad, const int32_t* codes, float* grad_weight,
                                  void* workspace, int64_t rows, int64_t numbers,
                                  int64_t categories, int64_t vocabulary, int64_t embedding,
                                  Type type, cudaStream_t stream) {
  if (rows < 0 || numbers < 0 || categories < 0 || vocabulary < 0 || embedding < 0 ||
      numbers + categories * embedding > INT32_MAX) {
    return cudaErrorInvalidValue;
  }
  const int64_t size = vocabulary * embedding;
  if (size == 0) return cudaSuccess;
  if (rows * categories == 0) return cudaMemsetAsync(grad_weight, 0, size * sizeof(float), stream);
  const Cut cut =
      cut_up(rows, numbers, categories, vocabulary, embedding, shared_for_sums());
  if (cut.chunks > 65535 || cut.parts > 65535 || cut.windows > INT32_MAX) return cudaErrorInvalidValue;
  float* sums = cut.chunks == 1 ? grad_weight : static_cast<float*>(workspace);
  const Scatter s = {codes,     sums,           rows,       numbers,  categories, vocabulary,
                     embedding, cut.part_width, cut.window, cut.chunk};
  const cudaError_t error = with_type(type, [&](auto kind) {
    return sum_gradients(static_cast<const decltype(kind)*>(grad), s, cut, stream);
  });
  if (error != cudaSuccess || cut.chunks == 1) return error;
  return launch(add_chunks_kernel, blocks_for(size, kThreads), kThreads, stream, sums, grad_weight,
                cut.chunks, size);
}

int64_t gather_embed_backward_workspace(int64_t rows, int64_t numbers, int64_t categories,
                                        int64_t vocabulary, int64_t embedding) {
  if (rows * categories * vocabulary * embedding <= 0) return 0;
  const Cut cut =
      cut_up(rows, numbers, categories, vocabulary, embedding, shared_for_sums());
  return cut.chunks == 1 ? 0 : cut.chunks * vocabulary * embedding * static_cast<int64_t>(sizeof(float));
}

}  // namespace trialfleet::cuda
