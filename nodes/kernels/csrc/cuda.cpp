// The operators on CUDA: checks, memory and the current stream, for the kernels of
// cuda/launchers.h.
//
// This file is plain C++. Of torch's CUDA code, it only uses c10's guard and stream.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <limits>
#include <tuple>
#include <vector>

#include "autograd.h"
#include "checks.h"
#include "cuda/launchers.h"
#include "implementations.h"

namespace trialfleet {
namespace {

constexpr at::DeviceType kHere = at::kCUDA;

cuda::Type type_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return cuda::Type::float32;
    case at::kBFloat16:
      return cuda::Type::bfloat16;
    case at::kHalf:
      return cuda::Type::float16;
    default:
      TORCH_INTERNAL_ASSERT(false, "checks.h lets no ", name_of(type), " pass");
  }
}

cuda::Type type_of(const Tensor& x) { return type_of(x.scalar_type()); }

// A tensor's device, which is the current device during this object's lifetime, and the device's
// current stream.
class Launch {
 public:
  Launch(const char* operation, const Tensor& x)
      : operation_(operation), guard_(x.device()), stream_(c10::cuda::getCurrentCUDAStream()) {}

  cudaStream_t stream() const { return stream_; }

  void check(cudaError_t error) const {
    TORCH_CHECK(error == cudaSuccess, "trialfleet::", operation_,
                ": the launch failed: ", cudaGetErrorString(error));
  }

 private:
  const char* operation_;
  c10::cuda::CUDAGuard guard_;
  cudaStream_t stream_;
};

// Return scratch memory for the kernels of this call; the allocator knows their stream.
Tensor workspace(const Tensor& beside, int64_t bytes) {
  return at::empty({bytes}, beside.options().dtype(at::kByte));
}

Tensor float32(const Tensor& beside, at::IntArrayRef shape) {
  return at::empty(shape, beside.options().dtype(at::kFloat));
}

// Return the tensor for a kernel's loss; it is NaN if there are no rows, because no kernel runs.
Tensor loss_of(const Tensor& outputs) {
  Tensor loss = float32(outputs, {});
  if (outputs.size(0) == 0) loss.fill_(std::numeric_limits<double>::quiet_NaN());
  return loss;
}

Tensor bias_relu_dropout(const Tensor& x, const Tensor& bias, const Tensor& rng, int64_t layer,
                         double p, int64_t offset, int64_t width) {
  check::bias_relu_dropout(x, bias, rng, layer, p, offset, width, kHere);
  const Launch launch("bias_relu_dropout", x);
  Tensor y = at::empty_like(x);
  launch.check(cuda::bias_relu_dropout(x.const_data_ptr(), bias.const_data_ptr(),
                                       rng.const_data_ptr<int64_t>(), layer, p, offset,
                                       width ? width : x.size(1), y.mutable_data_ptr(), x.size(0),
                                       x.size(1), type_of(x), type_of(bias), launch.stream()));
  return y;
}

std::tuple<Tensor, Tensor> bias_relu_dropout_backward(const Tensor& grad, const Tensor& y,
                                                      double p) {
  check::bias_relu_dropout_backward(grad, y, p, kHere);
  const Launch launch("bias_relu_dropout_backward", grad);
  const int64_t rows = grad.size(0), columns = grad.size(1);
  Tensor grad_x = at::empty_like(grad), grad_bias = float32(grad, {columns});
  const Tensor scratch =
      workspace(grad, cuda::bias_relu_dropout_backward_workspace(rows, columns, type_of(grad)));
  launch.check(cuda::bias_relu_dropout_backward(
      grad.const_data_ptr(), y.const_data_ptr(), p, grad_x.mutable_data_ptr(),
      grad_bias.mutable_data_ptr<float>(), scratch.mutable_data_ptr(), rows, columns, type_of(grad),
      launch.stream()));
  return {grad_x, grad_bias};
}

std::tuple<Tensor, Tensor> softmax_cross_entropy(const Tensor& logits, const Tensor& target) {
  check::softmax_cross_entropy(logits, target, kHere);
  const Launch launch("softmax_cross_entropy", logits);
  const int64_t rows = logits.size(0), classes = logits.size(1);
  Tensor loss = loss_of(logits), gradient = at::empty_like(logits);
  const Tensor scratch = workspace(logits, cuda::softmax_cross_entropy_workspace(rows, classes));
  launch.check(cuda::softmax_cross_entropy(
      logits.const_data_ptr(), target.const_data_ptr<int64_t>(), loss.mutable_data_ptr<float>(),
      gradient.mutable_data_ptr(), scratch.mutable_data_ptr(), rows, classes, type_of(logits),
      launch.stream()));
  return {loss, gradient};
}

// Compute a loss of one output per row by its kernel.
std::tuple<Tensor, Tensor> loss_by_row(const char* operation, const Tensor& outputs,
                                       const Tensor& target, decltype(cuda::sigmoid_bce)* kernel,
                                       int64_t workspace_bytes) {
  const Launch launch(operation, outputs);
  Tensor loss = loss_of(outputs), gradient = at::empty_like(outputs);
  const Tensor scratch = workspace(outputs, workspace_bytes);
  launch.check(kernel(outputs.const_data_ptr(), target.const_data_ptr<float>(),
                      loss.mutable_data_ptr<float>(), gradient.mutable_data_ptr(),
                      scratch.mutable_data_ptr(), outputs.size(0), type_of(outputs),
                      launch.stream()));
  return {loss, gradient};
}

std::tuple<Tensor, Tensor> sigmoid_bce(const Tensor& logits, const Tensor& target) {
  check::sigmoid_bce(logits, target, kHere);
  return loss_by_row("sigmoid_bce", logits, target, cuda::sigmoid_bce,
                     cuda::sigmoid_bce_workspace(logits.size(0)));
}

std::tuple<Tensor, Tensor> mean_squared_error(const Tensor& outputs, const Tensor& target) {
  check::mean_squared_error(outputs, target, kHere);
  return loss_by_row("mean_squared_error", outputs, target, cuda::mean_squared_error,
                     cuda::mean_squared_error_workspace(outputs.size(0)));
}

std::tuple<Tensor, Tensor, Tensor> gather_embed(const Tensor& numeric, const Tensor& categorical,
                                                const Tensor& target, const Tensor& order,
                                                const Tensor& cursor, const Tensor& first_code,
                                                const Tensor& weight, int64_t rows,
                                                at::ScalarType dtype) {
  check::gather_embed(numeric, categorical, target, order, cursor, first_code, weight, rows, dtype,
                      kHere);
  const Launch launch("gather_embed", numeric);
  const int64_t d = numeric.size(1), k = categorical.size(1);
  const int64_t vocabulary = weight.size(0), e = weight.size(1);
  Tensor joined = at::empty({rows, d + k * e}, numeric.options().dtype(dtype));
  Tensor codes = at::empty({rows, k}, categorical.options());
  Tensor batch = at::empty({rows}, target.options());
  launch.check(cuda::gather_embed(
      numeric.const_data_ptr<float>(), categorical.const_data_ptr<int32_t>(),
      target.const_data_ptr(), order.const_data_ptr<int64_t>(), cursor.const_data_ptr<int64_t>(),
      first_code.const_data_ptr<int32_t>(), weight.const_data_ptr<float>(),
      joined.mutable_data_ptr(), codes.mutable_data_ptr<int32_t>(), batch.mutable_data_ptr(),
      order.numel(), rows, d, k, vocabulary, e, static_cast<int64_t>(target.element_size()),
      type_of(dtype), launch.stream()));
  return {joined, codes, batch};
}

Tensor gather_embed_backward(const Tensor& grad, const Tensor& codes, int64_t numeric,
                             int64_t vocabulary, int64_t embedding) {
  check::gather_embed_backward(grad, codes, numeric, vocabulary, embedding, kHere);
  const Launch launch("gather_embed_backward", grad);
  const int64_t rows = codes.size(0), k = codes.size(1);
  Tensor grad_weight = float32(grad, {vocabulary, embedding});
  const Tensor scratch = workspace(
      grad, cuda::gather_embed_backward_workspace(rows, numeric, k, vocabulary, embedding));
  launch.check(cuda::gather_embed_backward(grad.const_data_ptr(), codes.const_data_ptr<int32_t>(),
                                           grad_weight.mutable_data_ptr<float>(),
                                           scratch.mutable_data_ptr(), rows, numeric, k, vocabulary,
                                           embedding, type_of(grad), launch.stream()));
  return grad_weight;
}

// Return the tensors that a step changes; v is empty for SGD.
std::vector<cuda::Parameter> parameters(TensorList weights, TensorList gradients, TensorList m,
                                        TensorList v, TensorList shadows,
                                        at::ArrayRef<double> decays) {
  std::vector<cuda::Parameter> table;
  table.reserve(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    const bool has_shadow = !shadows.empty() && shadows[i].numel() > 0;
    table.push_back({weights[i].mutable_data_ptr<float>(), gradients[i].const_data_ptr(),
                     m[i].mutable_data_ptr<float>(),
                     v.empty() ? nullptr : v[i].mutable_data_ptr<float>(),
                     has_shadow ? shadows[i].mutable_data_ptr() : nullptr, weights[i].numel(),
                     static_cast<float>(decays[i]), type_of(gradients[i]),
                     has_shadow ? type_of(shadows[i]) : cuda::Type::float32});
  }
  return table;
}

void adamw_step_(TensorList weights, TensorList gradients, TensorList m, TensorList v,
                 TensorList shadows, at::ArrayRef<double> decays, const Tensor& schedule,
                 const Tensor& step, double beta1, double beta2, double epsilon) {
  check::adamw_step_(weights, gradients, m, v, shadows, decays, schedule, step, kHere);
  const Launch launch("adamw_step_", schedule);
  const auto table = parameters(weights, gradients, m, v, shadows, decays);
  launch.check(cuda::adamw_step(
      table.data(), static_cast<int64_t>(table.size()), schedule.const_data_ptr<float>(),
      schedule.size(0), step.const_data_ptr<int64_t>(), beta1, beta2, epsilon, launch.stream()));
  touched(weights, m, v, shadows);
}

void sgd_step_(TensorList weights, TensorList gradients, TensorList velocity, TensorList shadows,
               at::ArrayRef<double> decays, const Tensor& schedule, const Tensor& step,
               double momentum) {
  check::sgd_step_(weights, gradients, velocity, shadows, decays, schedule, step, kHere);
  const Launch launch("sgd_step_", schedule);
  const auto table = parameters(weights, gradients, velocity, {}, shadows, decays);
  launch.check(cuda::sgd_step(table.data(), static_cast<int64_t>(table.size()),
                              schedule.const_data_ptr<float>(), schedule.size(0),
                              step.const_data_ptr<int64_t>(), momentum, launch.stream()));
  touched(weights, velocity, shadows);
}

void tick_(const Tensor& clock, const Tensor& loss, const Tensor& loss_sum, int64_t rows) {
  check::tick_(clock, loss, loss_sum, rows, kHere);
  const Launch launch("tick_", clock);
  launch.check(cuda::tick(clock.mutable_data_ptr<int64_t>(), loss.const_data_ptr<float>(),
                          loss_sum.mutable_data_ptr<double>(), rows, launch.stream()));
  touched(clock, loss_sum);
}

}  // namespace

TORCH_LIBRARY_IMPL(trialfleet, CUDA, m) { TRIALFLEET_IMPLEMENTATIONS(m) }

}  // namespace trialfleet
