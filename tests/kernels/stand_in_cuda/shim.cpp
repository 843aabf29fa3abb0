// The launchers for ctypes: a pointer to each under a name that C++ doesn't change.
#include <algorithm>

#include "launchers.h"
#include "philox.h"

#define OFFER(name) auto* launch_##name = &trialfleet::cuda::name;

extern "C" {
OFFER(bias_relu_dropout)
OFFER(bias_relu_dropout_backward)
OFFER(bias_relu_dropout_backward_workspace)
OFFER(softmax_cross_entropy)
OFFER(softmax_cross_entropy_workspace)
OFFER(sigmoid_bce)
OFFER(sigmoid_bce_workspace)
OFFER(mean_squared_error)
OFFER(mean_squared_error_workspace)
OFFER(gather_embed)
OFFER(gather_embed_backward)
OFFER(gather_embed_backward_workspace)
OFFER(adamw_step)
OFFER(sgd_step)
OFFER(tick)

// philox.h's functions; the result goes to words [4].
void philox(const uint32_t* counter, const uint32_t* key, uint32_t* words) {
  const trialfleet::Words found =
      trialfleet::philox({{counter[0], counter[1], counter[2], counter[3]}}, key[0], key[1]);
  std::copy_n(found.at, 4, words);
}

void dropout_words(int64_t seed, int64_t step, int64_t layer, int64_t group, uint32_t* words) {
  std::copy_n(trialfleet::dropout_words(seed, step, layer, group).at, 4, words);
}

}  // extern "C"
