// Checks of the operators' arguments. In plain torch, torch itself checks them.
//
// Every error names the operator, the argument, the allowed values and the given value. Its text is
// made only if a check fails, so that no launch waits for it.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>

#include <initializer_list>
#include <ostream>
#include <string>

#define TRIALFLEET_REQUIRE(arguments, met, argument, wanted, given)                            \
  TORCH_CHECK_VALUE(met, "trialfleet::", (arguments).operation(), ": ", argument, " must be ", \
                    wanted, "; it is ", given)

namespace trialfleet {

using at::Tensor;
using at::TensorList;
using Types = std::initializer_list<at::ScalarType>;

constexpr int64_t kAny = -1;  // a dimension of any size

// The name of an argument, or of one tensor of a list.
struct Argument {
  Argument(const char* name, int64_t index = -1) : name(name), index(index) {}

  const char* name;
  int64_t index;
};

inline std::ostream& operator<<(std::ostream& out, const Argument& argument) {
  out << argument.name;
  return argument.index < 0 ? out : out << '[' << argument.index << ']';
}

inline std::string name_of(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return "float32";
    case at::kBFloat16:
      return "bfloat16";
    case at::kHalf:
      return "float16";
    case at::kDouble:
      return "float64";
    case at::kBool:
      return "bool";
    case at::kByte:
      return "uint8";
    case at::kChar:
      return "int8";
    case at::kShort:
      return "int16";
    case at::kInt:
      return "int32";
    case at::kLong:
      return "int64";
    default:
      return c10::toString(type);
  }
}

// "float32, bfloat16 or float16"
inline std::string either(Types types) {
  std::string words;
  for (auto type = types.begin(); type != types.end(); ++type) {
    const auto left = types.end() - type;
    words += name_of(*type) + (left > 2 ? ", " : left == 2 ? " or " : "");
  }
  return words;
}

// "[*, 64]"
inline std::string written(at::IntArrayRef sizes) {
  std::string words;
  for (const int64_t size : sizes) {
    words += (words.empty() ? "" : ", ") + (size == kAny ? "*" : std::to_string(size));
  }
  return "[" + words + "]";
}

inline bool fits(at::IntArrayRef sizes, at::IntArrayRef shape) {
  if (sizes.size() != shape.size()) return false;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (shape[i] != kAny && shape[i] != sizes[i]) return false;
  }
  return true;
}

// The arguments of one call, which must all be on the device of the first argument.
class Arguments {
 public:
  Arguments(const char* operation, const Tensor& first, at::DeviceType type)
      : operation_(operation), device_(first.device()) {
    TRIALFLEET_REQUIRE(*this, device_.type() == type, "its first argument",
                       "on " + c10::DeviceTypeName(type, true), "on " + device_.str());
  }

  const char* operation() const { return operation_; }

  // Require a contiguous tensor of one of the types and of the shape.
  void tensor(Argument argument, const Tensor& value, Types types, at::IntArrayRef shape) const {
    TRIALFLEET_REQUIRE(*this, value.device() == device_, argument,
                       "on " + device_.str() + ", as the other arguments are",
                       "on " + value.device().str());
    TRIALFLEET_REQUIRE(*this, has_type(value, types), argument, either(types),
                       name_of(value.scalar_type()));
    TRIALFLEET_REQUIRE(*this, fits(value.sizes(), shape), argument, "of shape " + written(shape),
                       written(value.sizes()));
    TRIALFLEET_REQUIRE(
        *this, value.is_contiguous(), argument, "contiguous",
        "not: shape " + written(value.sizes()) + ", strides " + written(value.strides()));
  }

  void tensor(Argument argument, const Tensor& value, Types types) const {
    tensor(argument, value, types, value.sizes());
  }

  // Require float32, bfloat16 or float16; on the CPU also float64, for references in tests.
  void floating(Argument argument, const Tensor& value, at::IntArrayRef shape) const {
    if (device_.is_cpu()) {
      tensor(argument, value, {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}, shape);
    } else {
      tensor(argument, value, {at::kFloat, at::kBFloat16, at::kHalf}, shape);
    }
  }

  // Require a list with one element per weight.
  void list(Argument argument, size_t count, size_t weights) const {
    TRIALFLEET_REQUIRE(*this, count == weights, argument,
                       "a list of " + std::to_string(weights) + ", one per weight",
                       "one of " + std::to_string(count));
  }

  void at_least_0(Argument argument, int64_t value) const {
    TRIALFLEET_REQUIRE(*this, value >= 0, argument, "at least 0", value);
  }

  void probability(double p) const {
    TRIALFLEET_REQUIRE(*this, p >= 0 && p < 1, "p", "in [0, 1)", p);
  }

 private:
  static bool has_type(const Tensor& value, Types types) {
    for (const auto type : types) {
      if (value.scalar_type() == type) return true;
    }
    return false;
  }

  const char* operation_;
  at::Device device_;
};

namespace check {

inline void bias_relu_dropout(const Tensor& x, const Tensor& bias, const Tensor& rng, int64_t layer,
                              double p, int64_t offset, int64_t width, at::DeviceType device) {
  const Arguments arguments("bias_relu_dropout", x, device);
  arguments.floating("x", x, {kAny, kAny});
  const at::IntArrayRef row = x.sizes().slice(1);
  if (x.scalar_type() == at::kFloat) {
    arguments.tensor("bias", bias, {at::kFloat}, row);
  } else {
    arguments.tensor("bias", bias, {at::kFloat, x.scalar_type()}, row);
  }
  arguments.tensor("rng", rng, {at::kLong}, {2});
  TRIALFLEET_REQUIRE(arguments, layer >= 0 && layer < (int64_t{1} << 32), "layer", "in [0, 2^32)",
                     layer);
  arguments.probability(p);
  TRIALFLEET_REQUIRE(arguments, offset >= 0, "offset", "at least 0", offset);
  TRIALFLEET_REQUIRE(arguments, width == 0 || width >= x.size(1), "width",
                     "0 or at least the columns of x", width);
}

inline void bias_relu_dropout_backward(const Tensor& grad, const Tensor& y, double p,
                                       at::DeviceType device) {
  const Arguments arguments("bias_relu_dropout_backward", grad, device);
  arguments.floating("grad", grad, {kAny, kAny});
  arguments.tensor("y", y, {grad.scalar_type()}, grad.sizes());
  arguments.probability(p);
}

inline void softmax_cross_entropy(const Tensor& logits, const Tensor& target,
                                  at::DeviceType device) {
  const Arguments arguments("softmax_cross_entropy", logits, device);
  arguments.floating("logits", logits, {kAny, kAny});
  arguments.tensor("target", target, {at::kLong}, {logits.size(0)});
}

inline void sigmoid_bce(const Tensor& logits, const Tensor& target, at::DeviceType device) {
  const Arguments arguments("sigmoid_bce", logits, device);
  arguments.floating("logits", logits, {kAny});
  arguments.tensor("target", target, {at::kFloat}, logits.sizes());
}

inline void mean_squared_error(const Tensor& outputs, const Tensor& target, at::DeviceType device) {
  const Arguments arguments("mean_squared_error", outputs, device);
  arguments.floating("outputs", outputs, {kAny});
  arguments.tensor("target", target, {at::kFloat}, outputs.sizes());
}

// The kernels' limits for a row: its categories, and its numbers with the embeddings.
inline void row(const Arguments& arguments, const char* name, const Tensor& codes, int64_t width) {
  TRIALFLEET_REQUIRE(arguments, codes.size(1) < (1 << 16), name, "of fewer than 2^16 columns",
                     "of shape " + written(codes.sizes()));
  TRIALFLEET_REQUIRE(arguments, width < (1 << 20), "a row with its embeddings",
                     "of fewer than 2^20 numbers", "of " + std::to_string(width));
}

inline void gather_embed(const Tensor& numeric, const Tensor& categorical, const Tensor& target,
                         const Tensor& order, const Tensor& cursor, const Tensor& first_code,
                         const Tensor& weight, int64_t rows, at::ScalarType dtype,
                         at::DeviceType device) {
  const Arguments arguments("gather_embed", numeric, device);
  arguments.tensor("numeric", numeric, {at::kFloat}, {kAny, kAny});
  const int64_t n = numeric.size(0);
  arguments.tensor("categorical", categorical, {at::kInt}, {n, kAny});
  arguments.tensor("target", target, {at::kFloat, at::kLong}, {n});
  arguments.tensor("order", order, {at::kLong}, {kAny});
  arguments.tensor("cursor", cursor, {at::kLong}, {1});
  arguments.tensor("first_code", first_code, {at::kInt}, {categorical.size(1)});
  arguments.tensor("weight", weight, {at::kFloat}, {kAny, kAny});
  TRIALFLEET_REQUIRE(arguments, categorical.size(1) == 0 || weight.size(1) > 0, "weight",
                     "of at least one column", "of shape " + written(weight.sizes()));
  row(arguments, "categorical", categorical,
      numeric.size(1) + categorical.size(1) * weight.size(1));
  arguments.at_least_0("rows", rows);
  TRIALFLEET_REQUIRE(arguments, rows == 0 || order.numel() > 0, "order", "of at least one row",
                     "empty");
  const Types floats = {at::kFloat, at::kBFloat16, at::kHalf};
  const bool known = dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf;
  TRIALFLEET_REQUIRE(arguments, known, "dtype", either(floats), name_of(dtype));
}

inline void gather_embed_backward(const Tensor& grad, const Tensor& codes, int64_t numeric,
                                  int64_t vocabulary, int64_t embedding, at::DeviceType device) {
  const Arguments arguments("gather_embed_backward", grad, device);
  arguments.at_least_0("numeric", numeric);
  arguments.at_least_0("vocabulary", vocabulary);
  arguments.at_least_0("embedding", embedding);
  arguments.tensor("codes", codes, {at::kInt}, {kAny, kAny});
  arguments.tensor("grad", grad, {at::kFloat, at::kBFloat16, at::kHalf},
                   {codes.size(0), numeric + codes.size(1) * embedding});
  row(arguments, "codes", codes, grad.size(1));
  TRIALFLEET_REQUIRE(arguments, vocabulary < (1 << 30), "vocabulary", "below 2^30", vocabulary);
}

// The arguments that both optimisers have.
inline void step(const Arguments& arguments, TensorList weights, TensorList gradients,
                 TensorList shadows, at::ArrayRef<double> decays, const Tensor& schedule,
                 const Tensor& step) {
  arguments.list("gradients", gradients.size(), weights.size());
  arguments.list("decays", decays.size(), weights.size());
  if (!shadows.empty()) arguments.list("shadows", shadows.size(), weights.size());
  arguments.tensor("schedule", schedule, {at::kFloat}, {kAny, 3});
  arguments.tensor("step", step, {at::kLong}, {1});
  TRIALFLEET_REQUIRE(arguments, schedule.size(0) > 0, "schedule", "of at least one step", "empty");
  for (size_t i = 0; i < weights.size(); ++i) {
    const int64_t index = static_cast<int64_t>(i);
    const at::IntArrayRef shape = weights[i].sizes();
    arguments.tensor({"weights", index}, weights[i], {at::kFloat});
    arguments.tensor({"gradients", index}, gradients[i], {at::kFloat, at::kBFloat16, at::kHalf},
                     shape);
    if (!shadows.empty() && shadows[i].numel() > 0) {
      arguments.tensor({"shadows", index}, shadows[i], {at::kBFloat16, at::kHalf}, shape);
    }
  }
}

// A state of an optimiser: float32 tensors of the weights' shapes.
inline void state(const Arguments& arguments, const char* name, TensorList values,
                  TensorList weights) {
  arguments.list(name, values.size(), weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    arguments.tensor({name, static_cast<int64_t>(i)}, values[i], {at::kFloat}, weights[i].sizes());
  }
}

inline void adamw_step_(TensorList weights, TensorList gradients, TensorList m, TensorList v,
                        TensorList shadows, at::ArrayRef<double> decays, const Tensor& schedule,
                        const Tensor& rows, at::DeviceType device) {
  const Arguments arguments("adamw_step_", schedule, device);
  step(arguments, weights, gradients, shadows, decays, schedule, rows);
  state(arguments, "m", m, weights);
  state(arguments, "v", v, weights);
}

inline void sgd_step_(TensorList weights, TensorList gradients, TensorList velocity,
                      TensorList shadows, at::ArrayRef<double> decays, const Tensor& schedule,
                      const Tensor& rows, at::DeviceType device) {
  const Arguments arguments("sgd_step_", schedule, device);
  step(arguments, weights, gradients, shadows, decays, schedule, rows);
  state(arguments, "velocity", velocity, weights);
}

inline void tick_(const Tensor& clock, const Tensor& loss, const Tensor& loss_sum, int64_t rows,
                  at::DeviceType device) {
  const Arguments arguments("tick_", clock, device);
  arguments.tensor("clock", clock, {at::kLong}, {4});
  arguments.tensor("loss", loss, {at::kFloat}, {});
  arguments.tensor("loss_sum", loss_sum, {at::kDouble}, {});
  arguments.at_least_0("rows", rows);
}

}  // namespace check
}  // namespace trialfleet
