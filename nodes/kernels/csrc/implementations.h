// Registration of all operators for a backend: the body of its TORCH_LIBRARY_IMPL(trialfleet,
// BACKEND, m). The backend must have a function with each operator's name.
#pragma once

#define TRIALFLEET_IMPLEMENTATIONS(m) \
  m.impl("bias_relu_dropout", &bias_relu_dropout); \
  m.impl("bias_relu_dropout_backward", &bias_relu_dropout_backward); \
  m.impl("softmax_cross_entropy", &softmax_cross_entropy); \
  m.impl("sigmoid_bce", &sigmoid_bce); \
  m.impl("mean_squared_error", &mean_squared_error); \
  m.impl("gather_embed", &gather_embed); \
  m.impl("gather_embed_backward", &gather_embed_backward); \
  m.impl("adamw_step_", &adamw_step_); \
  m.impl("sgd_step_", &sgd_step_); \
  m.impl("tick_", &tick_);
