// Random numbers for dropout, the same bits on CPU and GPU.
//
// Philox4x32-10: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC
// 2011. It computes random words from a counter (4 words) and a key (2 words), so there is no state
// to store or to share between threads.
//
//   Element i of a layer's activations (row-major, in the whole batch) uses half i % 8 of the four
//   words of key (seed lo, seed hi), counter (i/8 lo, i/8 hi, layer, step lo), each word's lower
//   half first. The element is kept if and only if its half >= floor(p * 2^16). So the probability
//   exceeds 1 - p by less than 2^-16.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define TRIALFLEET_EVERYWHERE __host__ __device__
#else
#define TRIALFLEET_EVERYWHERE
#endif

namespace trialfleet {

struct Words {
  uint32_t at[4];
};

struct Product {
  uint32_t high, low;
};

TRIALFLEET_EVERYWHERE inline Product multiply(uint32_t a, uint32_t b) {
#ifdef __CUDA_ARCH__  // for a 64-bit product nvcc 13.0 adds a zero to the high word (SASS)
  Product product;
  asm("{.reg .u64 p;\n mul.wide.u32 p, %2, %3;\n mov.b64 {%0, %1}, p;}"
      : "=r"(product.low), "=r"(product.high)
      : "r"(a), "r"(b));
  return product;
#else
  const uint64_t product = static_cast<uint64_t>(a) * b;
  return {static_cast<uint32_t>(product >> 32), static_cast<uint32_t>(product)};
#endif
}

// Return Philox4x32-10 of a counter and a key.
TRIALFLEET_EVERYWHERE inline Words philox(Words counter, uint32_t key_lo, uint32_t key_hi) {
  for (int round = 0; round < 10; ++round) {
    const Product a = multiply(0xD2511F53u, counter.at[0]);
    const Product b = multiply(0xCD9E8D57u, counter.at[2]);
    counter = {{b.high ^ counter.at[1] ^ key_lo, b.low, a.high ^ counter.at[3] ^ key_hi, a.low}};
    key_lo += 0x9E3779B9u;
    key_hi += 0xBB67AE85u;
  }
  return counter;
}

// The number of elements that use one block's random halves.
constexpr int kGroup = 8;

// Return the words for elements 8 * group to 8 * group + 7.
TRIALFLEET_EVERYWHERE inline Words dropout_words(int64_t seed, int64_t step, int64_t layer,
                                                 int64_t group) {
  const uint64_t key = static_cast<uint64_t>(seed);
  return philox({{static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32),
                  static_cast<uint32_t>(layer), static_cast<uint32_t>(step)}},
                static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
}

// The position of an array of activations in a larger array, of whose mask it uses a part. So ranks
// that share a batch's rows or a layer's columns drop the same elements as a single rank.
struct Place {
  int64_t offset;  // of its first element, row-major
  int64_t width;   // columns of the larger array

  TRIALFLEET_EVERYWHERE int64_t of(int64_t row, int64_t column) const {
    return offset + row * width + column;
  }
};

// The parameters of dropout with a probability p in [0, 1).
struct Dropout {
  uint32_t threshold;  // floor(p * 2^16), in the upper half; 0 keeps everything
  float scale;         // factor of kept elements: 1 / (1 - p)

  explicit Dropout(double p)
      : threshold(static_cast<uint32_t>(p * 65536.0) << 16),
        scale(static_cast<float>(1.0 / (1.0 - p))) {}

  // Return whether element i of a group is kept. Bits below a half in its word have no effect.
  TRIALFLEET_EVERYWHERE bool keeps(const Words& words, int i) const {
    const uint32_t word = words.at[i / 2];
    return (i % 2 ? word : word << 16) >= threshold;
  }
};

}  // namespace trialfleet
