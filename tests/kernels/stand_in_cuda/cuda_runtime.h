// A stand-in for CUDA's runtime: compiles the project's .cu files with g++ and runs their grids on
// the CPU, block after block. It is for tests of the kernels' arithmetic and addressing on machines
// without a GPU; it says nothing about speed, and has only what these kernels use.
//
// Like the GPU: threads of a block are fibers, so __syncthreads, shuffles and shared memory mean
// what they mean there. Stricter than the GPU: a thread that has returned or waits elsewhere while
// others wait for it ends the program; a grid that a GPU would refuse is refused.
// Unlike the GPU: between two such waits a thread runs alone. So a missing __syncthreads may go
// unseen in one order of the threads; stand_in_reverse(true) runs them the other way round, and the
// results must be the same. Every block finds its shared memory full of NaN.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

#define __global__
#define __device__
#define __host__
#define __shared__ static __attribute__((section("shared_memory")))
#define __grid_constant__
#define __launch_bounds__(...)

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

inline dim3 threadIdx, blockIdx, blockDim, gridDim;

enum cudaError_t {
  cudaSuccess = 0,
  cudaErrorInvalidValue = 1,
  cudaErrorInvalidConfiguration = 9,
  cudaErrorInvalidDevice = 101
};
using cudaStream_t = struct CUstream_st*;

struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
};

namespace stand_in {

// Runs `thread` once for each thread of the grid.
cudaError_t run(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& thread);

// The block's dynamic shared memory, of the size that the launch asked for.
void* dynamic_shared_memory();

// Waits for the lanes of the warp and returns which of them hold true.
unsigned ballot(bool value);

// Hands `value` to the other lanes of the warp and returns that of lane `source`.
uint64_t exchange(uint64_t value, unsigned source);
unsigned lane();

}  // namespace stand_in

template <typename... Expected, typename... Given>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Expected...),
                               Given... given) {
  static_assert((sizeof(Expected) + ... + 0) <= 4096, "kernel parameters hold 4 KiB");
  return stand_in::run(config->gridDim, config->blockDim, config->dynamicSmemBytes,
                       [&] { kernel(given...); });
}

inline cudaError_t cudaGetLastError() { return cudaSuccess; }

// So little shared memory that small cases don't fit in it at once.
enum cudaDeviceAttr { cudaDevAttrMaxSharedMemoryPerBlockOptin };
enum cudaFuncAttribute { cudaFuncAttributeMaxDynamicSharedMemorySize };
constexpr int kSharedBytes = 34 * 1024;

inline cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
inline cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr, int) {
  return *value = kSharedBytes, cudaSuccess;
}
template <typename... Expected>
cudaError_t cudaFuncSetAttribute(void (*)(Expected...), cudaFuncAttribute, int bytes) {
  return bytes <= kSharedBytes ? cudaSuccess : cudaErrorInvalidValue;
}

inline cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
  std::memset(to, value, bytes);
  return cudaSuccess;
}

// The GPU's fast arithmetic, here exact: what it rounds more coarsely only a GPU shows.
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float x, float y) { return x / y; }

void __syncthreads();
inline void __syncwarp() { stand_in::ballot(false); }
inline unsigned __ballot_sync(unsigned /*mask*/, bool value) { return stand_in::ballot(value); }
inline int __popc(unsigned value) { return __builtin_popcount(value); }
inline long long __float2ll_rn(float x) { return std::llrint(std::fmin(std::fmax(x, -0x1p62f), 0x1p62f)); }

template <typename T>
T atomicAdd(T* to, T value) {
  const T before = *to;
  *to = static_cast<T>(static_cast<uint32_t>(before) + static_cast<uint32_t>(value));
  return before;
}

template <typename T>
T __shfl_xor_sync(unsigned /*mask*/, T value, int lane_mask) {
  uint64_t bits = 0;
  static_assert(sizeof(T) <= sizeof(bits));
  std::memcpy(&bits, &value, sizeof(T));
  bits = stand_in::exchange(bits, stand_in::lane() ^ static_cast<unsigned>(lane_mask));
  std::memcpy(&value, &bits, sizeof(T));
  return value;
}
