// Launches of kernels.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace trialfleet::cuda {

// Declare a block's dynamic shared memory as an array of `type`.
#ifdef __CUDACC__
#define TRIALFLEET_DYNAMIC_SHARED(type, name) extern __shared__ type name[]
#else
#define TRIALFLEET_DYNAMIC_SHARED(type, name) \
  type* name = static_cast<type*>(stand_in::dynamic_shared_memory())
#endif

constexpr int kThreads = 256;  // per block, unless a kernel sets another number
constexpr int kWarp = 32;

// More blocks than any GPU runs at once, but few enough that launching them costs little; a kernel
// loops until its work is done (a grid-stride loop). The tests set 3, so that kernels have to loop.
#ifndef TRIALFLEET_MOST_BLOCKS
#define TRIALFLEET_MOST_BLOCKS 65536
#endif
constexpr int64_t kMostBlocks = TRIALFLEET_MOST_BLOCKS;

__host__ __device__ constexpr int64_t divide_up(int64_t a, int64_t b) { return (a + b - 1) / b; }

// Return the smallest power of two that is at least n, but at most `most` (also a power of two).
__host__ __device__ constexpr int power_of_two(int64_t n, int most) {
  int power = 1;
  while (power < n && power < most) power *= 2;
  return power;
}

// Return the number of blocks for the work, at most `most`.
inline unsigned blocks_for(int64_t work, int64_t work_of_a_block, int64_t most = kMostBlocks) {
  const int64_t blocks = divide_up(work, work_of_a_block);
  return static_cast<unsigned>(blocks < most ? blocks : most);
}

// Dynamic shared memory in bytes: of a launch, and the maximum of all launches of the kernel.
struct Shared {
  size_t bytes, most;
};

// Start `kernel` and return the error of this launch. cudaGetLastError after <<<>>> could return
// the error of an earlier call by other code.
template <typename... Parameters, typename... Arguments>
cudaError_t launch_with_shared(void (*kernel)(Parameters...), dim3 grid, dim3 block, Shared shared,
                               cudaStream_t stream, Arguments... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared.bytes;
  config.stream = stream;
  if (shared.most >
      0) {  // needed above 48 KB; the same for all launches, as other threads may launch the kernel
    const cudaError_t refused = cudaFuncSetAttribute(
        kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared.most));
    if (refused != cudaSuccess) return cudaGetLastError(), refused;
  }
  const cudaError_t error =
      cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
  if (error != cudaSuccess) cudaGetLastError();  // it is returned here, so clear it for other code
  return error;
}

// Start `kernel` without dynamic shared memory.
template <typename... Parameters, typename... Arguments>
cudaError_t launch(void (*kernel)(Parameters...), dim3 grid, dim3 block, cudaStream_t stream,
                   Arguments... arguments) {
  return launch_with_shared(kernel, grid, block, Shared{0, 0}, stream, arguments...);
}

}  // namespace trialfleet::cuda
