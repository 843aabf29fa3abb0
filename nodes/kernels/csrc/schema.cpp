// The operators' schemas, which are defined only here: if this library isn't built, ops.py reads
// these lines and defines the operators in pure torch. plain.py documents each operator.

#include <torch/library.h>

TORCH_LIBRARY(trialfleet, m) {
  // Every kernel needs contiguous tensors, so the compiler must not choose other strides for them.
  const std::vector<at::Tag> tags = {at::Tag::pt2_compliant_tag, at::Tag::needs_fixed_stride_order};

  m.def("bias_relu_dropout(Tensor x, Tensor bias, Tensor rng, int layer, float p, "
        "int offset=0, int width=0) -> Tensor", tags);
  m.def("bias_relu_dropout_backward(Tensor grad, Tensor y, float p) -> (Tensor, Tensor)", tags);
  m.def("softmax_cross_entropy(Tensor logits, Tensor target) -> (Tensor, Tensor)", tags);
  m.def("sigmoid_bce(Tensor logits, Tensor target) -> (Tensor, Tensor)", tags);
  m.def("mean_squared_error(Tensor outputs, Tensor target) -> (Tensor, Tensor)", tags);
  m.def(
      "gather_embed(Tensor numeric, Tensor categorical, Tensor target, Tensor order, Tensor cursor,"
      " Tensor first_code, Tensor weight, int rows, ScalarType dtype)"
      " -> (Tensor, Tensor, Tensor)",
      tags);
  m.def(
      "gather_embed_backward(Tensor grad, Tensor codes, int numeric, int vocabulary, int embedding)"
      " -> Tensor",
      tags);
  m.def(
      "adamw_step_(Tensor(a!)[] weights, Tensor[] gradients, Tensor(b!)[] m, Tensor(c!)[] v,"
      " Tensor(d!)[] shadows, float[] decays, Tensor schedule, Tensor step, float beta1,"
      " float beta2, float epsilon) -> ()",
      tags);
  m.def(
      "sgd_step_(Tensor(a!)[] weights, Tensor[] gradients, Tensor(b!)[] velocity,"
      " Tensor(c!)[] shadows, float[] decays, Tensor schedule, Tensor step, float momentum) -> ()",
      tags);
  m.def("tick_(Tensor(a!) clock, Tensor loss, Tensor(b!) loss_sum, int rows) -> ()", tags);
}
