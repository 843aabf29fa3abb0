// Elementwise operations: each element is read once and written once, so memory is the limit.
#include "launch.cuh"
#include "launchers.h"
#include "pack.cuh"

namespace trialfleet::cuda {
namespace {

// Loads that a thread has under way before it computes. Enough bytes must be under way to hide the
// memory's latency: latency x bandwidth, some 25 KB on each multiprocessor of an H200.
constexpr int kInFlight = 4;
constexpr int kTile = kInFlight * kThreads;  // packs

struct Multiply {
  float factor;
  __device__ float operator()(float x) const { return x * factor; }
};

struct Exponential {
  __device__ float operator()(float x) const { return expf(x); }
};

// An array cut in three: `head` elements up to a 16-byte boundary, whole packs, and a tail shorter
// than a pack.
struct Cut {
  int64_t size, head, packs;
};

// y = operation(x), which may be one array. Tiles of packs go round the blocks; head and tail,
// fewer elements than a block has threads, are left to block 0.
template <typename T, int n, typename Operation>
__global__ void __launch_bounds__(kThreads)
    map_kernel(const T* x, T* y, Cut cut, Operation operation) {
  const auto* from = reinterpret_cast<const Pack<T, n>*>(x + cut.head);
  auto* to = reinterpret_cast<Pack<T, n>*>(y + cut.head);
  const int64_t stride = static_cast<int64_t>(gridDim.x) * kTile;
  for (int64_t tile = static_cast<int64_t>(blockIdx.x) * kTile; tile < cut.packs; tile += stride) {
    Pack<T, n> pack[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t k = tile + i * kThreads + threadIdx.x;
      if (k < cut.packs) pack[i] = from[k];
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t k = tile + i * kThreads + threadIdx.x;
#pragma unroll
      for (int j = 0; j < n; ++j) {
        pack[i].at[j] = from_float<T>(operation(to_float(pack[i].at[j])));
      }
      if (k < cut.packs) to[k] = pack[i];
    }
  }
  if (blockIdx.x == 0) {
    const int64_t body_end = cut.head + cut.packs * n;
    const int64_t i = threadIdx.x < cut.head ? threadIdx.x : body_end + threadIdx.x - cut.head;
    if (i < cut.size) y[i] = from_float<T>(operation(to_float(x[i])));
  }
}

template <typename T, typename Operation>
cudaError_t map(const T* x, T* y, int64_t size, Operation operation, cudaStream_t stream) {
  if (size < 0) return cudaErrorInvalidValue;
  if (size == 0) return cudaSuccess;
  const auto x_offset = reinterpret_cast<uintptr_t>(x) % 16;
  const auto y_offset = reinterpret_cast<uintptr_t>(y) % 16;
  if (x_offset != y_offset) {  // no element where packs of both could begin
    return launch(map_kernel<T, 1, Operation>, blocks_for(size, kTile), kThreads, stream, x, y,
                  Cut{size, 0, size}, operation);
  }
  const int64_t to_boundary = static_cast<int64_t>((16 - x_offset) % 16 / sizeof(T));
  const int64_t head = to_boundary < size ? to_boundary : size;
  const int64_t packs = (size - head) / kWidth<T>;
  return launch(map_kernel<T, kWidth<T>, Operation>, blocks_for(packs > 0 ? packs : 1, kTile),
                kThreads, stream, x, y, Cut{size, head, packs}, operation);
}

}  // namespace

cudaError_t mulc(void* x, float c, int64_t size, Type type, cudaStream_t stream) {
  return with_type(type, [&](auto kind) {
    auto* values = static_cast<decltype(kind)*>(x);
    return map<decltype(kind)>(values, values, size, Multiply{c}, stream);
  });
}

cudaError_t exp(const void* x, void* y, int64_t size, Type type, cudaStream_t stream) {
  return with_type(type, [&](auto kind) {
    using T = decltype(kind);
    return map(static_cast<const T*>(x), static_cast<T*>(y), size, Exponential{}, stream);
  });
}

}  // namespace trialfleet::cuda
