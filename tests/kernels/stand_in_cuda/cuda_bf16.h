// A stand-in for CUDA's bfloat16: the upper half of a float32, rounded to nearest even.
#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

struct __nv_bfloat16 {
  uint16_t bits;
};

inline float __bfloat162float(__nv_bfloat16 x) {
  const uint32_t bits = static_cast<uint32_t>(x.bits) << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline __nv_bfloat16 __float2bfloat16_rn(float x) {
  if (std::isnan(x)) return {0x7fff};
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof bits);
  return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}
