// MulC, `x *= c` on float32: the kernel that the table of 2014 calls ours. mulc.py builds it.
#include "launch.cuh"

namespace {

using namespace trialfleet::cuda;

// Loads of 16 bytes that a thread has under way before it computes. Enough bytes must be under way
// to hide the memory's latency: latency x bandwidth, some 25 KB on each multiprocessor of an H200.
constexpr int kInFlight = 4;
constexpr int kTile = kInFlight * kThreads;

// Tiles of float4 go round the blocks; the tail, fewer than four elements, is left to block 0.
__global__ void __launch_bounds__(kThreads) mulc_kernel(float* x, float c, int64_t size) {
  auto* packs = reinterpret_cast<float4*>(x);
  const int64_t count = size / 4, stride = static_cast<int64_t>(gridDim.x) * kTile;
  for (int64_t tile = static_cast<int64_t>(blockIdx.x) * kTile; tile < count; tile += stride) {
    float4 pack[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t k = tile + i * kThreads + threadIdx.x;
      if (k < count) pack[i] = packs[k];
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t k = tile + i * kThreads + threadIdx.x;
      // Not within the condition, or nvcc moves each load behind the store of the one before.
      pack[i] = {pack[i].x * c, pack[i].y * c, pack[i].z * c, pack[i].w * c};
      if (k < count) packs[k] = pack[i];
    }
  }
  const int64_t i = count * 4 + threadIdx.x;
  if (blockIdx.x == 0 && i < size) x[i] *= c;
}

}  // namespace

// x[i] *= c for `size` > 0 elements on the device, from an address that is aligned to 16 bytes.
// Returns the launch's own error.
extern "C" cudaError_t mulc(float* x, float c, int64_t size, cudaStream_t stream) {
  return launch(mulc_kernel, blocks_for(divide_up(size, 4), kTile), kThreads, stream, x, c, size);
}
