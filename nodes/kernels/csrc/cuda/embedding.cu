// The batch and its embeddings, and the gradient of the embeddings.
#include <cmath>

#include "launch.cuh"
#include "launchers.h"
#include "pack.cuh"

namespace trialfleet::cuda {
namespace {

// --- forward

constexpr int kPack = 4;

struct Gather {
  const float* numeric;
  const int32_t* categorical;
  const int64_t* order;
  const int64_t* cursor;
  const int32_t* first_code;
  const float* weight;
  int32_t* codes;
  int64_t positions, rows, numbers, categories, vocabulary, embedding;

  __device__ int64_t sample_of(int64_t row) const {
    const int64_t position = *cursor + row;
    const int64_t last = positions - 1;
    return order[position < 0 ? 0 : position < last ? position : last];
  }
};

// blockDim.x neighbours share a row. Its units: `packs` packs of n for joined, then one for each
// code, then one for the target; so neighbours write neighbours, whatever the sizes are.
template <int n, typename T, typename Target>
__global__ void __launch_bounds__(kThreads)
    gather_kernel(Gather g, const Target* target, T* joined, Target* batch_target) {
  const int64_t width = g.numbers + g.categories * g.embedding;
  const int64_t packs = width / n;
  const int64_t stride = static_cast<int64_t>(gridDim.x) * blockDim.y;
  int64_t row = static_cast<int64_t>(blockIdx.x) * blockDim.y + threadIdx.y;
  for (; row < g.rows; row += stride) {
    const int64_t sample = g.sample_of(row);
    const int32_t* categories = g.categorical + sample * g.categories;
    for (int64_t unit = threadIdx.x; unit <= packs + g.categories; unit += blockDim.x) {
      const int64_t k = unit - packs;
      if (k == g.categories) {
        batch_target[row] = target[sample];
      } else if (k >= 0) {
        g.codes[row * g.categories + k] = categories[k] + g.first_code[k];
      } else {
        const int64_t column = unit * n;
        const float* from = g.numeric;
        int64_t first = sample * g.numbers + column;
        bool known = true;
        if (column >= g.numbers) {
          const int64_t category = (column - g.numbers) / g.embedding;
          const int64_t code = static_cast<int64_t>(categories[category]) + g.first_code[category];
          known = code >= 0 && code < g.vocabulary;
          from = g.weight;
          first = code * g.embedding + (column - g.numbers) % g.embedding;
        }
        float value[n];
        if (known) {
          load<(n > 1)>(from, first, first + n, value);
        } else {
          for (float& each : value) each = NAN;
        }
        store<(n > 1)>(joined, row * width + column, (row + 1) * width, value);
      }
    }
  }
}

template <typename T, typename Target>
cudaError_t gather(const Gather& g, const Target* target, T* joined, Target* batch_target,
                   cudaStream_t stream) {
  const bool packed = aligned<kPack>(g.numeric) && aligned<kPack>(g.weight) &&
                      aligned<kPack>(joined) && g.numbers % kPack == 0 &&
                      (g.categories == 0 || g.embedding % kPack == 0);
  const int64_t width = g.numbers + g.categories * g.embedding;
  const int lanes = power_of_two((packed ? width / kPack : width) + g.categories + 1, kThreads);
  const dim3 block(lanes, kThreads / lanes);
  const auto kernel = packed ? gather_kernel<kPack, T, Target> : gather_kernel<1, T, Target>;
  return launch(kernel, blocks_for(g.rows, block.y), block, stream, g, target, joined,
                batch_target);
}

// --- backward
//
// A block for each row of weight that scans all codes would read rows * vocabulary codes: 65,536
// rows and 10,000 codes are 2.6 GB. Atomics would need one pass, but give other bits each time.
// Here, without either:
//
//   1. partial_kernel: a block takes a segment of 256 rows and one category. It sorts the codes,
//      brings its part of grad into shared memory, and adds up the rows of equal code: one partial
//      sum for each different code, at the place (slot) of its first entry in the sorted order. In
//      place [code, segment] it notes the slot + 1; 0, from a memset before, says that the segment
//      lacks the code.
//   2. add_segments_kernel: the threads of a row of weight go along `place` and add the partials.
//
// Bytes: grad once; at most rows * categories * embedding float32 written and read again (less, the
// fewer the codes are); place three times, 4 * vocabulary * rows / 256 bytes. So what makes it dear
// is the product of vocabulary and rows: 100,000 codes and 8,192 rows are 13 MB, 65,536 rows 102.

constexpr int kSegment = 256;   // rows; one thread for each
constexpr int kTileWidth = 32;  // columns of grad at a time: 32 KB of shared memory
constexpr int kAdders = 128;    // threads of a block in the second step

struct Workspace {
  int64_t segments;
  int64_t partial_bytes;  // float32 [categories, segments, kSegment, embedding]
  int64_t place_bytes;    // int32 [vocabulary, segments]

  Workspace(int64_t rows, int64_t categories, int64_t vocabulary, int64_t embedding)
      : segments(divide_up(rows, kSegment)),
        partial_bytes(categories * segments * kSegment * embedding * 4),
        place_bytes(vocabulary * segments * 4) {}
};

// Grid: segments, categories, parts of the embedding (each sorts again, which is cheap).
template <typename T>
__global__ void __launch_bounds__(kSegment)
    partial_kernel(const T* grad, const int32_t* codes, float* partials, int32_t* place,
                   int64_t rows, int64_t numbers, int64_t categories, int64_t vocabulary,
                   int64_t embedding) {
  __shared__ float tile[kSegment][kTileWidth];
  __shared__ int32_t code_of[kSegment];
  __shared__ int32_t sorted_code[kSegment];
  __shared__ int16_t sorted_row[kSegment];
  const int thread = threadIdx.x;
  const int64_t segment = blockIdx.x;
  const int64_t category = blockIdx.y;
  const int64_t column = static_cast<int64_t>(blockIdx.z) * kTileWidth;  // of the embedding
  const int64_t first_row = segment * kSegment;
  const int count = static_cast<int>(rows - first_row < kSegment ? rows - first_row : kSegment);
  const int width =
      static_cast<int>(embedding - column < kTileWidth ? embedding - column : kTileWidth);

  const int64_t grad_width = numbers + categories * embedding;
  const T* corner = grad + first_row * grad_width + numbers + category * embedding + column;
  for (int i = thread; i < count * width; i += kSegment) {
    tile[i / width][i % width] = to_float(corner[i / width * grad_width + i % width]);
  }
  if (thread < count) code_of[thread] = codes[(first_row + thread) * categories + category];
  __syncthreads();

  // Sorted by counting who comes before: all 256 threads read the same word at a time, and equal
  // codes keep the order of their rows.
  if (thread < count) {
    const int32_t mine = code_of[thread];
    int before = 0;
    for (int i = 0; i < count; ++i) {
      before += code_of[i] < mine || (code_of[i] == mine && i < thread);
    }
    sorted_code[before] = mine;
    sorted_row[before] = static_cast<int16_t>(thread);
  }
  __syncthreads();

  // The slots of this block; a group of threads takes a run of equal codes.
  const int64_t first_slot = (category * gridDim.x + segment) * kSegment;
  const int lanes = power_of_two(width, kTileWidth);
  const int lane = thread % lanes;
  for (int begin = thread / lanes; begin < count; begin += kSegment / lanes) {
    const int32_t code = sorted_code[begin];
    const bool first_of_run = begin == 0 || sorted_code[begin - 1] != code;
    if (!first_of_run || code < 0 || code >= vocabulary) continue;
    if (lane < width) {
      float sum = 0.0f;
      for (int i = begin; i < count && sorted_code[i] == code; ++i) {
        sum += tile[sorted_row[i]][lane];
      }
      partials[(first_slot + begin) * embedding + column + lane] = sum;
    }
    if (column + lane == 0) {
      place[code * static_cast<int64_t>(gridDim.x) + segment] =
          static_cast<int32_t>(first_slot + begin + 1);
    }
  }
}

// blockDim.x lanes go along the embedding, blockDim.y groups along the segments; blockDim.z rows of
// weight stand in a block.
__global__ void __launch_bounds__(kAdders)
    add_segments_kernel(const float* partials, const int32_t* place, float* grad_weight,
                        int64_t segments, int64_t vocabulary, int64_t embedding) {
  __shared__ float sum_of[kAdders];
  const int64_t code = static_cast<int64_t>(blockIdx.x) * blockDim.z + threadIdx.z;
  const int group = (threadIdx.z * blockDim.y) * blockDim.x + threadIdx.x;
  const int thread = group + threadIdx.y * blockDim.x;
  for (int64_t first = 0; first < embedding; first += blockDim.x) {
    const int64_t column = first + threadIdx.x;
    const bool real = code < vocabulary && column < embedding;
    float sum = 0.0f;
    if (real) {
      for (int64_t segment = threadIdx.y; segment < segments; segment += blockDim.y) {
        const int32_t slot = place[code * segments + segment] - 1;
        if (slot >= 0) sum += partials[slot * embedding + column];
      }
    }
    sum_of[thread] = sum;
    __syncthreads();
    if (real && threadIdx.y == 0) {
      float total = 0.0f;
      for (int i = 0; i < static_cast<int>(blockDim.y); ++i) {
        total += sum_of[group + i * blockDim.x];
      }
      grad_weight[code * embedding + column] = total;
    }
    __syncthreads();
  }
}

}  // namespace

cudaError_t gather_embed(const float* numeric, const int32_t* categorical, const void* target,
                         const int64_t* order, const int64_t* cursor, const int32_t* first_code,
                         const float* weight, void* joined, int32_t* codes, void* batch_target,
                         int64_t positions, int64_t rows, int64_t numbers, int64_t categories,
                         int64_t vocabulary, int64_t embedding, int64_t target_size, Type type,
                         cudaStream_t stream) {
  if (rows < 0 || numbers < 0 || categories < 0 || vocabulary < 0 || embedding < 0 ||
      positions < 1 || (target_size != 4 && target_size != 8)) {
    return cudaErrorInvalidValue;
  }
  if (rows == 0) return cudaSuccess;
  const Gather g = {numeric,   categorical, order,   cursor,     first_code, weight,   codes,
                    positions, rows,        numbers, categories, vocabulary, embedding};
  return with_type(type, [&](auto kind) {
    auto* result = static_cast<decltype(kind)*>(joined);
    if (target_size == 4) {
      return gather(g, static_cast<const int32_t*>(target), result,
                    static_cast<int32_t*>(batch_target), stream);
    }
    return gather(g, static_cast<const int64_t*>(target), result,
                  static_cast<int64_t*>(batch_target), stream);
  });
}

cudaError_t gather_embed_backward(const void* grad, const int32_t* codes, float* grad_weight,
                                  void* workspace, int64_t rows, int64_t numbers,
                                  int64_t categories, int64_t vocabulary, int64_t embedding,
                                  Type type, cudaStream_t stream) {
  if (rows < 0 || numbers < 0 || categories < 0 || vocabulary < 0 || embedding < 0) {
    return cudaErrorInvalidValue;
  }
  if (vocabulary * embedding == 0) return cudaSuccess;
  if (rows * categories == 0) {
    return cudaMemsetAsync(grad_weight, 0, vocabulary * embedding * sizeof(float), stream);
  }
  const Workspace sizes(rows, categories, vocabulary, embedding);
  if (categories * sizes.segments * kSegment >= INT32_MAX) return cudaErrorInvalidValue;
  auto* partials = static_cast<float*>(workspace);
  auto* place = reinterpret_cast<int32_t*>(static_cast<char*>(workspace) + sizes.partial_bytes);
  cudaError_t error = cudaMemsetAsync(place, 0, sizes.place_bytes, stream);
  if (error != cudaSuccess) return error;

  const dim3 grid(static_cast<unsigned>(sizes.segments), static_cast<unsigned>(categories),
                  static_cast<unsigned>(divide_up(embedding, kTileWidth)));
  error = with_type(type, [&](auto kind) {
    using T = decltype(kind);
    return launch(partial_kernel<T>, grid, kSegment, stream, static_cast<const T*>(grad), codes,
                  partials, place, rows, numbers, categories, vocabulary, embedding);
  });
  if (error != cudaSuccess) return error;

  const int lanes = power_of_two(embedding, kTileWidth);
  const int groups = power_of_two(sizes.segments, kAdders / lanes);
  const int room = kAdders / lanes / groups;
  const dim3 block(lanes, groups, room < 64 ? room : 64);  // CUDA allows z no more
  return launch(add_segments_kernel, static_cast<unsigned>(divide_up(vocabulary, block.z)), block,
                stream, partials, place, grad_weight, sizes.segments, vocabulary, embedding);
}

int64_t gather_embed_backward_workspace(int64_t rows, int64_t categories, int64_t vocabulary,
                                        int64_t embedding) {
  const Workspace sizes(rows, categories, vocabulary, embedding);
  return sizes.partial_bytes + sizes.place_bytes;
}

}  // namespace trialfleet::cuda
