// Loads and stores of several adjacent values at once. The widest access that every GPU has is 16
// bytes; with it, few instructions reach the memory's bandwidth. The SASS of CUDA 13.0 for sm_90
// has LDG.E.128 and STG.E.128 in every kernel that uses packs of 16 bytes.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "launchers.h"

namespace trialfleet::cuda {

__device__ inline float to_float(float x) { return x; }
__device__ inline float to_float(__nv_bfloat16 x) { return __bfloat162float(x); }
__device__ inline float to_float(__half x) { return __half2float(x); }

template <typename T>
__device__ T from_float(float x);
template <>
__device__ inline float from_float<float>(float x) {
  return x;
}
template <>
__device__ inline __nv_bfloat16 from_float<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}
template <>
__device__ inline __half from_float<__half>(float x) {
  return __float2half_rn(x);
}

// The number of values of T in 16 bytes.
template <typename T>
constexpr int kWidth = 16 / sizeof(T);

// n adjacent values. More than 16 bytes need several accesses.
template <typename T, int n>
struct alignas(n * sizeof(T) < 16 ? n * sizeof(T) : 16) Pack {
  T at[n];
};

// Return the pack that begins at `first`, a multiple of n. The index counts packs, which shows nvcc
// the alignment; with a moving pointer to T, nvcc 13.0 splits packs into single stores.
template <int n, typename T>
__device__ inline auto* pack_at(T* values, int64_t first) {
  using Packed = Pack<std::remove_const_t<T>, n>;
  using Same = std::conditional_t<std::is_const_v<T>, const Packed, Packed>;
  return reinterpret_cast<Same*>(values) + static_cast<uint64_t>(first) / n;
}

// Read n values from `first` on. If `wide`, read them in one access: `first` must be a multiple of
// n, and all n values must exist. Otherwise read single values before `end`; the others are 0.
template <bool wide, typename T, int n>
__device__ inline void load(const T* values, int64_t first, int64_t end, float (&to)[n]) {
  if constexpr (wide) {
    const Pack<T, n> pack = *pack_at<n>(values, first);
#pragma unroll
    for (int i = 0; i < n; ++i) to[i] = to_float(pack.at[i]);
  } else {
#pragma unroll
    for (int i = 0; i < n; ++i) to[i] = first + i < end ? to_float(values[first + i]) : 0.0f;
  }
}

// Write n values, at the same places as `load` reads them.
template <bool wide, typename T, int n>
__device__ inline void store(T* values, int64_t first, int64_t end, const float (&from)[n]) {
  if constexpr (wide) {
    Pack<T, n> pack;
#pragma unroll
    for (int i = 0; i < n; ++i) pack.at[i] = from_float<T>(from[i]);
    *pack_at<n>(values, first) = pack;
  } else {
#pragma unroll
    for (int i = 0; i < n; ++i) {
      if (first + i < end) values[first + i] = from_float<T>(from[i]);
    }
  }
}

// Return whether packs of n may begin at `pointer`; true for null, which is never read.
template <int n, typename T>
bool aligned(const T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % alignof(Pack<T, n>) == 0;
}

// Call body with std::true_type or std::false_type.
template <typename Body>
auto with_flag(bool flag, Body body) {
  return flag ? body(std::true_type()) : body(std::false_type());
}

// Call body with a value of the C++ type of `type`.
template <typename Body>
auto with_type(Type type, Body body) {
  switch (type) {
    case Type::bfloat16:
      return body(__nv_bfloat16());
    case Type::float16:
      return body(__half());
    default:
      return body(float());
  }
}

}  // namespace trialfleet::cuda
