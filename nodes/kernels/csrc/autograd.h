// What a kernel that changes its arguments owes autograd.
#pragma once

#include <ATen/core/Tensor.h>

namespace trialfleet {

// Count a change of a tensor, so that a backward that wants its old values is refused.
inline void touched(const at::Tensor& x) { x.unsafeGetTensorImpl()->bump_version(); }

inline void touched(at::TensorList tensors) {
  for (const at::Tensor& x : tensors) touched(x);
}

template <typename First, typename Second, typename... Others>
void touched(const First& first, const Second& second, const Others&... others) {
  touched(first);
  touched(second);
  (touched(others), ...);
}

}  // namespace trialfleet
