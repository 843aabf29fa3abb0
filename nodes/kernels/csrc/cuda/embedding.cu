// The batch and its embeddings, and the gradient of the embeddings.
//
// Advantages over torch.compile: no trial waits for a compiler. On an H100 torch.compile takes 1.8
// to 1.9 times as long for the batch; for the gradient 1.5 times on a large batch and 0.73 times on
// a small one, with different bits each time. torch's deterministic kernel takes 10 to 14 times as
// long (tests/bench/BENCHMARKS.md).
#include <cmath>

#include "launch.cuh"
#include "launchers.h"
#include "pack.cuh"

namespace trialfleet::cuda {
namespace {

// Return whether positions in a row fit in 31 bits, as the kernels need, and the row's parts fit in
// a grid.
bool few(int64_t numbers, int64_t categories, int64_t embedding) {
  return categories < 1 << 16 && embedding < 1 << 20 && numbers + categories * embedding < 1 << 20;
}

// --- forward
//
// A block handles a tile of rows: it looks up their samples, and then writes `joined`, divided into
// units of n adjacent values: n numbers, or n values of one embedding. A thread writes the same
// unit of kRows rows, so it determines only once which unit this is.

template <int n>
constexpr int kRows = n == 1 ? 8 : 16 / n;  // of a thread

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

// `lanes` adjacent threads share a row; blockIdx.y selects units beyond a block's threads.
template <int n, typename T>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(const Gather g, T* joined, unsigned lanes) {
  __shared__ int64_t samples[kThreads * kRows<n>];
  const unsigned rows_at_once = kThreads / lanes;
  const unsigned tile = rows_at_once * kRows<n>;
  const unsigned row_of_block = threadIdx.x / lanes;
  const unsigned unit = blockIdx.y * kThreads + threadIdx.x % lanes;

  const int64_t width = g.width();
  const int64_t column = static_cast<int64_t>(unit) * n;
  const bool writes = row_of_block < rows_at_once && column < width;
  const bool embeds = writes && column >= g.numbers;
  const unsigned place = embeds ? static_cast<unsigned>(column - g.numbers) : 0;
  const unsigned category = embeds ? place / static_cast<unsigned>(g.embedding) : 0;
  const int64_t part = embeds ? place % static_cast<unsigned>(g.embedding) : column;
  const float* from = (embeds ? g.weight : g.numeric) + part;
  const int64_t pitch = embeds ? g.embedding : g.numbers;
  const int64_t first_code = embeds ? g.first_code[category] : 0;
  const int64_t cursor = *g.cursor;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * tile;
  for (int64_t begin = static_cast<int64_t>(blockIdx.x) * tile; begin < g.rows; begin += stride) {
    const auto count = static_cast<unsigned>(g.rows - begin < tile ? g.rows - begin : tile);
    for (unsigned i = threadIdx.x; i < count; i += kThreads) {
      samples[i] = g.sample_of(cursor + begin + i);
      if (blockIdx.y == 0) g.copy_target(samples[i], begin + i);
    }
    __syncthreads();
    int64_t index[kRows<n>];
    float value[kRows<n>][n];
#pragma unroll
    for (int i = 0; i < kRows<n>; ++i) {
      const unsigned row = row_of_block + i * rows_at_once;
      index[i] = writes && row < count ? samples[row] : 0;
      if (embeds && row < count) {
        index[i] = first_code + g.categorical[index[i] * g.categories + category];
      }
    }
#pragma unroll
    for (int i = 0; i < kRows<n>; ++i) {
      const bool real = writes && row_of_block + i * rows_at_once < count;
      if (real && (!embeds || (index[i] >= 0 && index[i] < g.vocabulary))) {
        const int64_t first = index[i] * pitch;
        load<(n > 1)>(from, first, first + n, value[i]);
      } else {
#pragma unroll
        for (int j = 0; j < n; ++j) value[i][j] = NAN;
      }
    }
#pragma unroll
    for (int i = 0; i < kRows<n>; ++i) {
      const unsigned row = row_of_block + i * rows_at_once;
      if (!writes || row >= count) continue;
      const int64_t first = (begin + row) * width;
      store<(n > 1)>(joined + column, first, first + width, value[i]);
      if (embeds && part == 0) {
        g.codes[(begin + row) * g.categories + category] = static_cast<int32_t>(index[i]);
      }
    }
    __syncthreads();  // before the next tile's samples
  }
}

template <int n, typename T>
cudaError_t start_gather(const Gather& g, T* joined, cudaStream_t stream) {
  const int64_t packs = divide_up(g.width(), n);
  const unsigned units = static_cast<unsigned>(packs > 0 ? packs : 1);  // one for the target
  const unsigned lanes = units < kThreads ? units : kThreads;
  const dim3 grid(blocks_for(g.rows, kThreads / lanes * kRows<n>),
                  static_cast<unsigned>(divide_up(units, kThreads)));
  return launch(gather_kernel<n, T>, grid, kThreads, stream, g, joined, lanes);
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
// The sums don't depend on the order of the threads, and need one pass over grad: gradients are
// converted to fixed-point numbers, and sums of integers are the same in any order.
//
// The rows of weight are divided into windows, whose sums fit in a block's shared memory; the rows
// of the batch are divided into chunks. A block has one window and one chunk. Its warps read the
// chunk's codes, 32 at a time, queue the codes that are in the window, and add the gradients of the
// queued codes. If there are several chunks, a second kernel adds their sums.
//
// A sum has 64 bits in two words, since atomics in shared memory add at most 32 bits at once. The
// lower word begins in the middle of its range, so that the upper one rarely changes. A unit is
// 2^kResolution = 2^-40. Each gradient is rounded to units before it is added: its error, at most
// half a unit, is too small to matter beside AdamW's epsilon (1e-8) or in a float32 weight. A sum
// of n gradients has at most n such errors.
// If the absolute values of a block's gradients add up to 2^21 or more, the block starts again with
// a unit of 2^-60 times that sum. A gradient that is infinite or NaN sets the block's whole window
// to NaN.

constexpr int kWarps = 32;     // per block
constexpr int kLooks = 4;      // codes that a lane loads at once
constexpr int kRound = kWarp;  // gradients that a warp adds at a time
constexpr int kQueue = kRound + kLooks * kWarp;
constexpr int kAtOnce = 4;        // gradients that a lane loads at once
constexpr int kResolution = -40;  // a unit is 2^kResolution
constexpr int kUnitBits = 61;     // of a sum at most: one bit is for the sign, two are spare
constexpr uint32_t kMiddle = 0x80000000u;
constexpr int64_t kMostPartWidth = kWarp;
constexpr int64_t kMostSumBlocks = kMostBlocks < 132 ? kMostBlocks : 132;  // one per multiprocessor
constexpr int64_t kFewestCodes = 1024;  // per block; fewer cost less than its start

// The gradients that a warp has to add.
struct Queue {
  uint32_t from[kQueue];  // offset of a gradient in the chunk's part of grad
  uint16_t to[kQueue];    // its offset in the block's sums
};

// The division of a batch among blocks; it depends only on the shapes and the GPU's shared memory.
struct Cut {
  int64_t part_width;  // columns of the embedding that a block sums: blockIdx.z
  int64_t parts;
  int64_t window;  // rows of weight: blockIdx.x
  int64_t windows;
  int64_t chunk;  // rows of the batch: blockIdx.y
  int64_t chunks;

  size_t shared_bytes() const { return static_cast<size_t>(window * part_width) * 8; }
};

// Estimate the time of a division in picoseconds, by a formula fitted to measurements on an H100.
// With few windows a small batch uses few multiprocessors. With many windows each block reads more
// codes. Several chunks need a second kernel.
int64_t cost_of(const Cut& cut, int64_t categories) {
  const int64_t sums = cut.window * cut.part_width;
  const int64_t codes = cut.chunk * categories;
  const int64_t added = codes / cut.windows * cut.part_width;
  const int64_t of_block = 100 * codes + 100 * added + 300 * sums;
  const int64_t second = 2500000 + 4 * cut.chunks * cut.windows * cut.parts * sums;
  return of_block + (cut.chunks > 1 ? second : 0);
}

Cut cut_up(int64_t rows, int64_t numbers, int64_t categories, int64_t vocabulary, int64_t embedding,
           int64_t shared) {
  Cut best = {};
  const int64_t part_width = embedding < kMostPartWidth ? embedding : kMostPartWidth;
  const int64_t parts = divide_up(embedding, part_width);
  const int64_t addressable = INT32_MAX / (numbers + categories * embedding);  // by Queue::from
  const int64_t fewest = divide_up(vocabulary, shared / (8 * part_width));
  for (int64_t windows = fewest; windows == fewest || windows <= kMostSumBlocks; windows *= 2) {
    Cut cut = {part_width, parts, divide_up(vocabulary, windows), 0, 0, 0};
    cut.windows = divide_up(vocabulary, cut.window);
    const int64_t room = kMostSumBlocks / (cut.windows * parts);
    const int64_t useful = divide_up(rows * categories, kFewestCodes);
    const int64_t chunks = useful < room ? useful : room;
    cut.chunk = divide_up(rows, chunks > 1 ? chunks : 1);
    if (cut.chunk > addressable) cut.chunk = addressable;
    cut.chunks = divide_up(rows, cut.chunk);
    if (best.windows == 0 || cost_of(cut, categories) < cost_of(best, categories)) {
      best = cut;
    }
  }
  return best;
}

// Return the bytes of shared memory that a block can have besides its queues; 0 if unknown.
int64_t shared_for_sums() {
  int device = 0, bytes = 0;
  const bool known = cudaGetDevice(&device) == cudaSuccess &&
                     cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin,
                                            device) == cudaSuccess;
  return known ? bytes - static_cast<int>(sizeof(Queue)) * kWarps - 1024 : 0;
}

struct Sums {
  uint32_t* low;
  int32_t* high;
  int count;

  __device__ void clear(int at) const {
    low[at] = kMiddle;
    high[at] = 0;
  }

  // Add units[i] at at[i]. All lower words are issued before the first result is used.
  template <int n>
  __device__ void add(const uint32_t (&at)[n], const int64_t (&units)[n]) const {
    uint32_t before[n];
    int32_t upper[n], any = 0;
#pragma unroll
    for (int i = 0; i < n; ++i) before[i] = atomicAdd(low + at[i], static_cast<uint32_t>(units[i]));
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const uint64_t after = static_cast<uint64_t>(units[i]) + before[i];
      upper[i] = static_cast<int32_t>(after >> 32);
      any |= upper[i];
    }
    if (any == 0) return;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (upper[i] != 0) atomicAdd(high + at[i], upper[i]);
    }
  }

  __device__ int64_t at(int64_t at) const {
    const auto upper = static_cast<uint64_t>(static_cast<uint32_t>(high[at])) << 32;
    return static_cast<int64_t>(upper | low[at]) - static_cast<int64_t>(kMiddle);
  }
};

// Division of numbers below 2^31 by a number in (0, 2^16), as a product: Granlund and Montgomery,
// "Division by invariant integers using multiplication", 1994, theorem 4.2.
struct Divisor {
  uint32_t factor;
  int shift;

  explicit Divisor(int64_t by) : shift(31) {
    while (int64_t{1} << (shift - 31) < by) ++shift;
    factor = static_cast<uint32_t>(divide_up(int64_t{1} << shift, by));
  }

  __device__ uint32_t of(uint32_t number) const {
    return static_cast<uint32_t>(static_cast<uint64_t>(number) * factor >> shift);
  }
};

struct Scatter {
  const int32_t* codes;
  float* sums;  // [chunks, vocabulary, embedding]
  int64_t rows, numbers, categories, vocabulary, embedding;
  int64_t part_width, window, chunk;
  Divisor category_of;
  int lane_bits;  // 2^lane_bits lanes share a gradient's part
};

// Add a part of `count` queued gradients, with `n` adjacent values per lane. `whole`: `count` is a
// full round. Return the sum of their absolute values, in units.
template <bool whole, int n, typename T>
__device__ float add_round(const T* grad, const Queue& queue, int first, int count,
                           const Sums& sums, int width, int lane_bits, float scale) {
  const int lane = (threadIdx.x & ((1 << lane_bits) - 1)) * n;
  const int place = lane < width ? lane : 0;
  const int at_once = kWarp >> lane_bits;
  const int begin = first + (threadIdx.x % kWarp >> lane_bits);
  const float factor = lane < width ? scale : 0.0f;
  float size = 0.0f;
  for (int done = 0; done < count; done += at_once * kAtOnce) {
    float value[kAtOnce][n], factors[kAtOnce];
    uint32_t to[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      // Past the end, a gradient is added with the factor 0.
      const bool real = whole || done + i * at_once + begin - first < count;
      const int at = real ? begin + done + i * at_once : first;
      factors[i] = real ? factor : 0.0f;
      to[i] = queue.to[at] + place;
      load<true>(grad + place + queue.from[at], 0, n, value[i]);
    }
    uint32_t places[kAtOnce * n];
    int64_t units[kAtOnce * n];
#pragma unroll
    for (int i = 0; i < kAtOnce * n; ++i) {
      const float each = value[i / n][i % n] * factors[i / n];
      size += fabsf(each);
      places[i] = to[i / n] + i % n;
      units[i] = __float2ll_rn(each);
    }
    sums.add(places, units);
  }
  return size;
}

// Set a block's sums to 0 and add its chunk to them; a unit is 1 / scale. Return the sum of the
// absolute values that this thread added, in units.
template <int n, typename T>
__device__ float add_chunk(const T* grad, const Scatter& s, const Sums& sums, Queue& queue,
                           float scale) {
  const int64_t first_row = blockIdx.y * s.chunk;
  const int64_t rows = s.rows - first_row < s.chunk ? s.rows - first_row : s.chunk;
  const int64_t column = blockIdx.z * s.part_width;
  const int width =
      static_cast<int>(s.embedding - column < s.part_width ? s.embedding - column : s.part_width);
  const auto total = static_cast<uint32_t>(rows * s.categories);
  const auto first_code = static_cast<uint32_t>(blockIdx.x * s.window);
  const int64_t left = s.vocabulary - first_code;
  const auto window = static_cast<uint32_t>(left < s.window ? left : s.window);
  const auto numbers = static_cast<uint32_t>(s.numbers);
  const auto embedding = static_cast<uint32_t>(s.embedding);
  const T* corner =
      grad + first_row * (s.numbers + s.categories * s.embedding) + s.numbers + column;
  const unsigned lane = threadIdx.x % kWarp;
  const unsigned before = (1u << lane) - 1u;

  constexpr uint32_t kStride = kWarps * kLooks * kWarp;
  uint32_t at = threadIdx.x / kWarp * kLooks * kWarp + lane;
  const int32_t* codes = s.codes + first_row * s.categories + at;
  const auto look = [&](uint32_t from, uint32_t (&place)[kLooks]) {
#pragma unroll
    for (int i = 0; i < kLooks; ++i) {
      const int32_t code = from + i * kWarp < total ? codes[i * kWarp] : -1;
      place[i] = static_cast<uint32_t>(code) - first_code;
    }
  };
  float size = 0.0f;
  int count = 0;
  uint32_t next[kLooks];
  look(at, next);
  for (int i = threadIdx.x; i < sums.count; i += kWarps * kWarp) sums.clear(i);
  __syncthreads();
  for (bool last = false; !last; at += kStride) {
    uint32_t place[kLooks];
#pragma unroll
    for (int i = 0; i < kLooks; ++i) place[i] = next[i];
    codes += kStride;
    look(at + kStride, next);
#pragma unroll
    for (int i = 0; i < kLooks; ++i) {
      const bool mine = place[i] < window;
      const unsigned those = __ballot_sync(0xffffffffu, mine);
      if (mine) {
        const uint32_t here = at + i * kWarp;
        const int slot = count + __popc(those & before);
        queue.from[slot] = s.category_of.of(here) * numbers + here * embedding;
        queue.to[slot] = static_cast<uint16_t>(place[i] * s.part_width);
      }
      count += __popc(those);
    }
    last = at - lane + kStride >= total;
    __syncwarp();
    for (; count >= kRound; count -= kRound) {
      size += add_round<true, n>(corner, queue, count - kRound, kRound, sums, width, s.lane_bits,
                                 scale);
    }
    __syncwarp();
  }
  size += add_round<false, n>(corner, queue, 0, count, sums, width, s.lane_bits, scale);
  return size;
}

// Return the sum over the block's threads to all of them; it doesn't depend on their order.
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
__global__ void __launch_bounds__(kWarps* kWarp) sum_kernel(const T* grad, const Scatter s) {
  TRIALFLEET_DYNAMIC_SHARED(uint32_t, memory);
  __shared__ Queue queues[kWarps];
  const int64_t first_code = static_cast<int64_t>(blockIdx.x) * s.window;
  const int count = static_cast<int>(s.window * s.part_width);
  const Sums sums = {memory, reinterpret_cast<int32_t*>(memory + count), count};
  Queue& queue = queues[threadIdx.x / kWarp];

  int exponent = -kResolution;
  float size = 0.0f;
  for (int pass = 0;; ++pass) {
    size = sum_over_block(add_chunk<n>(grad, s, sums, queue, ldexpf(1.0f, exponent)));
    // The first unit is kept if it is large enough; a larger one lets a sum use all of its bits.
    const bool finite = size > 0.0f && size < INFINITY;
    const int spare = finite ? kUnitBits - 1 - ilogbf(size) : 0;
    const bool too_many = size == INFINITY;  // too many of the first units for float32
    if (pass == 2 || (pass == 0 ? spare >= 0 && !too_many : spare == 0)) break;
    exponent += too_many ? -128 : spare;  // add_chunk synchronises before the next sum
  }

  const float unit = ldexpf(1.0f, -exponent);
  const int across = n << s.lane_bits;  // at least part_width
  const int64_t place = threadIdx.x % across;
  const int64_t column = blockIdx.z * s.part_width + place;
  if (place >= s.part_width || column >= s.embedding) return;
  for (int64_t i = threadIdx.x / across; i < s.window; i += kWarps * kWarp / across) {
    const int64_t code = first_code + i;
    if (code >= s.vocabulary) break;
    const auto sum = static_cast<float>(sums.at(i * s.part_width + place)) * unit;
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
cudaError_t sum_gradients(const T* grad, Scatter s, const Cut& cut, int64_t shared,
                          cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>(cut.windows), static_cast<unsigned>(cut.chunks),
                  static_cast<unsigned>(cut.parts));
  const bool paired = aligned<2>(grad) && s.numbers % 2 == 0 && s.embedding % 2 == 0;
  s.lane_bits = 2;  // a full round has a multiple of kAtOnce gradients per lane
  while ((paired ? 2 : 1) << s.lane_bits < cut.part_width) ++s.lane_bits;
  const auto kernel = paired ? sum_kernel<2, T> : sum_kernel<1, T>;
  const Shared bytes = {cut.shared_bytes(), static_cast<size_t>(shared)};
  return launch_with_shared(kernel, grid, kWarps * kWarp, bytes, stream, grad, s);
}

}  // namespace

cudaError_t gather_embed(const float* numeric, const int32_t* categorical, const void* target,
                         const int64_t* order, const int64_t* cursor, const int32_t* first_code,
                         const float* weight, void* joined, int32_t* codes, void* batch_target,
                         int64_t positions, int64_t rows, int64_t numbers, int64_t categories,
                         int64_t vocabulary, int64_t embedding, int64_t target_size, Type type,
                         cudaStream_t stream) {
  if (rows < 0 || numbers < 0 || categories < 0 || vocabulary < 0 || embedding < 0 ||
      positions < 1 || (categories > 0 && embedding == 0) || !few(numbers, categories, embedding) ||
      (target_size != 4 && target_size != 8)) {
    return cudaErrorInvalidValue;
  }
  if (rows == 0) return cudaSuccess;
  const Gather g = {numeric,    categorical, target,       order,      cursor, first_code,
                    weight,     codes,       batch_target, positions,  rows,   numbers,
                    categories, vocabulary,  embedding,    target_size};
  return with_type(
      type, [&](auto kind) { return gather(g, static_cast<decltype(kind)*>(joined), stream); });
}

cudaError_t gather_embed_backward(const void* grad, const int32_t* codes, float* grad_weight,
                                  void* workspace, int64_t rows, int64_t numbers,
                                  int64_t categories, int64_t vocabulary, int64_t embedding,
                                  Type type, cudaStream_t stream) {
  if (rows < 0 || numbers < 0 || categories < 0 || vocabulary < 0 || embedding < 0 ||
      vocabulary >= 1 << 30 || !few(numbers, categories, embedding)) {
    return cudaErrorInvalidValue;
  }
  const int64_t size = vocabulary * embedding;
  if (size == 0) return cudaSuccess;
  if (rows * categories == 0) return cudaMemsetAsync(grad_weight, 0, size * sizeof(float), stream);
  const int64_t shared = shared_for_sums();
  if (shared == 0) return cudaErrorInvalidDevice;
  const Cut cut = cut_up(rows, numbers, categories, vocabulary, embedding, shared);
  float* sums = cut.chunks == 1 ? grad_weight : static_cast<float*>(workspace);
  const Scatter s = {
      codes,     sums,           rows,       numbers,   categories,          vocabulary,
      embedding, cut.part_width, cut.window, cut.chunk, Divisor(categories), 0};
  const cudaError_t error = with_type(type, [&](auto kind) {
    return sum_gradients(static_cast<const decltype(kind)*>(grad), s, cut, shared, stream);
  });
  if (error != cudaSuccess || cut.chunks == 1) return error;
  return launch(add_chunks_kernel, blocks_for(size, kThreads), kThreads, stream, sums, grad_weight,
                cut.chunks, size);
}

int64_t gather_embed_backward_workspace(int64_t rows, int64_t numbers, int64_t categories,
                                        int64_t vocabulary, int64_t embedding) {
  const int64_t shared = shared_for_sums();
  if (rows <= 0 || categories <= 0 || vocabulary <= 0 || embedding <= 0 || shared == 0 ||
      !few(numbers, categories, embedding)) {
    return 0;
  }
  const Cut cut = cut_up(rows, numbers, categories, vocabulary, embedding, shared);
  return cut.chunks == 1 ? 0 : cut.chunks * vocabulary * embedding * int64_t{sizeof(float)};
}

}  // namespace trialfleet::cuda
