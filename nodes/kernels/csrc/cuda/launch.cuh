// Starting a kernel.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace trialfleet::cuda {

// Names a block's dynamic shared memory, an array of `type`.
#ifdef __CUDACC__
#define TRIALFLEET_DYNAMIC_SHARED(type, name) extern __shared__ type name[]
#else
#define TRIALFLEET_DYNAMIC_SHARED(type, name) \
  type* name = static_cast<type*>(stand_in::dynamic_shared_memory())
#endif

constexpr int kThreads = 256;  // of a block, where a kernel doesn't say otherwise
constexpr int kWarp = 32;

// More blocks than any GPU runs at once, and few enough that starting them costs little; a kernel
// goes round until its work is done (a grid-stride loop). The tests take 3, so that it must.
#ifndef TRIALFLEET_MOST_BLOCKS
#define TRIALFLEET_MOST_BLOCKS 65536
#endif
constexpr int64_t kMostBlocks = TRIALFLEET_MOST_BLOCKS;

__host__ __device__ constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// The smallest power of two that is at least n, but at most `most` (itself a power of two).
__host__ __device__ constexpr int power_of_two(int64_t n, int most) {
  int power = 1;
  while (power < n && power < most) power *= 2;
  return power;
}

// Enough blocks for the work, and at most `most`.
inline unsigned blocks_for(int64_t work, int64_t work_of_a_block, int64_t most = kMostBlocks) {
  const int64_t blocks = divide_up(work, work_of_a_block);
  return static_cast<unsigned>(blocks < most ? blocks : most);
}

// Dynamic shared memory in bytes: a launch's, and the most that any of the same kernel has.
struct Shared {
  size_t bytes, most;
};

// Starts `kernel` and returns this launch's own error. A check by cudaGetLastError after <<<>>>
// could return an error that someone else left behind.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_with_shared(void (*kernel)(Parameters...), dim3 grid, dim3 block, Shared shared,
                               cudaStream_t stream, Arguments... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared.bytes;
  config.stream = stream;
  if (shared.most >
      0) {  // beyond 48 KB a kernel has to ask; the same for all, as others may launch it
    const cudaError_t refused = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared.most));
    if (refused != cudaSuccess) return cudaGetLastError(), refused;
  }
  const cudaError_t error =
      cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
  if (error != cudaSuccess) cudaGetLastError();  // it is told here: nobody else shall find it
  return error;
}

// Starts `kernel` without dynamic shared memory.
template <typename... Parameters, typename... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream,
                   Arguments... arguments) {
  return launch_with_shared(kernel, grid, block, Shared{0, 0}, stream, arguments...);
}

}  // namespace trialfleet::cuda
