// Version counts of tensors that a kernel changes in place, for autograd.
#pragma once

#include <ATen/core/Tensor.h>

namespace trialfleet {

// Count a change of a tensor, so that autograd refuses a backward pass that needs its old values.
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
