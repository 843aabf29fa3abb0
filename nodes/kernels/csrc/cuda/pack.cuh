// Reading and writing several neighbours at once: 16 bytes are the widest access that every GPU
// has, and what it takes to reach the memory's bandwidth with few instructions. Seen in the SASS of
// CUDA 13.0 for sm_90: LDG.E.128 and STG.E.128 in every kernel that takes packs of 16 bytes.
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

// How many values of T are 16 bytes.
template <typename T>
constexpr int kWidth = 16 / sizeof(T);

// n neighbours. More than 16 bytes take several accesses.
template <typename T, int n>
struct alignas(n * sizeof(T) < 16 ? n * sizeof(T) : 16) Pack {
  T at[n];
};

// The pack that begins at `first`, a multiple of n. Counting in packs shows nvcc the alignment;
// where it sees a pointer to T that moves, version 13.0 takes packs apart into single stores.
template <int n, typename T>
__device__ inline auto* pack_at(T* values, int64_t first) {
  using Packed = Pack<std::remove_const_t<T>, n>;
  using Same = std::conditional_t<std::is_const_v<T>, const Packed, Packed>;
  return reinterpret_cast<Same*>(values) + static_cast<uint64_t>(first) / n;
}

// Reads n values from `first`: at once if `wide`, where `first` is a multiple of n and all n are
// there; else one by one those before `end`, and 0 for the others.
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

// Writes what `load` reads.
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

// Whether packs of n may begin at `pointer`; true of null, which is never read.
template <int n, typename T>
bool aligned(const T* pointer) {
  return reinterpret_cast<uintptr_t>(pointer) % alignof(Pack<T, n>) == 0;
}

// Calls body with std::true_type or std::false_type.
template <typename Body>
auto with_flag(bool flag, Body body) {
  return flag ? body(std::true_type()) : body(std::false_type());
}

// Calls body with a value of the C++ type that `type` stands for.
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
