// Kernels with a fault each, to see that the stand-in and the sanitizers tell. `faulty NAME` runs
// one; "sound" has none.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "launch.cuh"
#include "pack.cuh"

namespace {

using namespace trialfleet::cuda;

__global__ void sum_kernel(const float* x, float* sum, bool wait, int shift) {
  __shared__ float part[kThreads];
  part[threadIdx.x + shift] = x[threadIdx.x];
  if (wait) __syncthreads();
  if (threadIdx.x == 0) {
    *sum = 0;
    for (const float each : part) *sum += each;
  }
}

__global__ void copy_kernel(const float* x, float* y, int first) {
  float value[4];
  load<true>(x + first, threadIdx.x * 4, 0, value);
  store<true>(y, threadIdx.x * 4, 0, value);
}

__global__ void leave_kernel() {
  if (threadIdx.x != 7) __syncthreads();
}

__global__ void diverge_kernel(float* y) {
  if (threadIdx.x % 2 == 0) *y = __shfl_xor_sync(0xffffffffu, *y, 1);
}

}  // namespace

int main(int, char** words) {
  const std::string fault = words[1];
  constexpr int size = kThreads * 4;
  auto* x = static_cast<float*>(std::aligned_alloc(16, size * sizeof(float)));
  auto* y = static_cast<float*>(std::aligned_alloc(16, size * sizeof(float)));
  for (int i = 0; i < size; ++i) x[i] = 1.0f;
  cudaError_t error = cudaSuccess;
  if (fault == "sound") {
    error = launch(copy_kernel, 1, kThreads, nullptr, x, y, 0);
    if (error == cudaSuccess) error = launch(sum_kernel, 1, kThreads, nullptr, x, y, true, 0);
  } else if (fault == "beyond") {
    error = launch(copy_kernel, 1, kThreads, nullptr, x, y, 4);
  } else if (fault == "beyond shared") {
    error = launch(sum_kernel, 1, kThreads, nullptr, x, y, true, 1);
  } else if (fault == "misaligned") {
    error = launch(copy_kernel, 1, kThreads - 1, nullptr, x, y, 1);
  } else if (fault == "unsynchronised") {
    error = launch(sum_kernel, 1, kThreads, nullptr, x, y, false, 0);
  } else if (fault == "left") {
    error = launch(leave_kernel, 1, kThreads, nullptr);
  } else if (fault == "divergent") {
    error = launch(diverge_kernel, 1, kThreads, nullptr, y);
  } else if (fault == "no threads") {
    error = launch(leave_kernel, 1, 0, nullptr);
  } else if (fault == "too many blocks") {
    error = launch(leave_kernel, dim3(1, 65536), 1, nullptr);
  }
  std::printf("error %d, sum %g\n", error, y[0]);
  std::free(x);
  std::free(y);
  return 0;
}
