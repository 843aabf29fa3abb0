// Dropout's random numbers, the same bits on CPU and GPU.
//
// Philox4x32-10: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
// SC 2011. A bijection of a counter (4 words) under a key (2 words); no state to keep or to hand
// from thread to thread.
//
//   element i of a layer's activations (row-major) takes word i % 4 of
//   key (seed lo, seed hi), counter (i/4 lo, i/4 hi, layer, step lo), and is kept iff that word
//   >= floor(p * 2^32).
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

// Philox4x32-10 of a counter and a key.
TRIALFLEET_EVERYWHERE inline Words philox(Words counter, uint32_t key_lo, uint32_t key_hi) {
  for (int round = 0; round < 10; ++round) {
    const uint64_t a = 0xD2511F53ull * counter.at[0];
    const uint64_t b = 0xCD9E8D57ull * counter.at[2];
    counter = {{static_cast<uint32_t>(b >> 32) ^ counter.at[1] ^ key_lo, static_cast<uint32_t>(b),
                static_cast<uint32_t>(a >> 32) ^ counter.at[3] ^ key_hi, static_cast<uint32_t>(a)}};
    key_lo += 0x9E3779B9u;
    key_hi += 0xBB67AE85u;
  }
  return counter;
}

// The words of elements 4 * group to 4 * group + 3.
TRIALFLEET_EVERYWHERE inline Words dropout_words(int64_t seed, int64_t step, int64_t layer,
                                                 int64_t group) {
  const uint64_t key = static_cast<uint64_t>(seed);
  return philox({{static_cast<uint32_t>(group), static_cast<uint32_t>(group >> 32),
                  static_cast<uint32_t>(layer), static_cast<uint32_t>(step)}},
                static_cast<uint32_t>(key), static_cast<uint32_t>(key >> 32));
}

// What a probability p in [0, 1) comes to.
struct Dropout {
  uint32_t threshold;  // kept iff the word is at least this; 0 keeps everything
  float scale;         // of what is kept: 1 / (1 - p)

  explicit Dropout(double p)
      : threshold(static_cast<uint32_t>(p * 4294967296.0)),
        scale(static_cast<float>(1.0 / (1.0 - p))) {}
};

}  // namespace trialfleet
