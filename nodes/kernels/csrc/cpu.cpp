// The operators on the CPU, for machines without a GPU and for tests of code that uses them.
//
// The same input gives the same bits for any number of threads, because one thread computes each
// sum. Arithmetic is float32 (float64 for a float64 tensor), sums are float64.

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>
#include <type_traits>
#include <vector>

#include "autograd.h"
#include "checks.h"
#include "implementations.h"
#include "philox.h"

namespace trialfleet {
namespace {

constexpr at::DeviceType kHere = at::kCPU;
constexpr int64_t kGrain = 32768;  // minimum elements per thread

// The type of the arithmetic on elements of type T.
template <typename T>
using Wide = std::conditional_t<std::is_same_v<T, double>, double, float>;

at::ScalarType wide_type(const Tensor& x) {
  return x.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// Call body with a zero of the type.
template <typename Body>
void for_type(at::ScalarType type, const Body& body) {
  switch (type) {
    case at::kFloat:
      return body(float{});
    case at::kBFloat16:
      return body(at::BFloat16{});
    case at::kHalf:
      return body(at::Half{});
    case at::kDouble:
      return body(double{});
    default:
      TORCH_INTERNAL_ASSERT(false, "checks.h lets no ", name_of(type), " pass");
  }
}

// --- Bias, activation, dropout -------------------------------------------------------------------

Tensor bias_relu_dropout(const Tensor& x, const Tensor& bias, const Tensor& rng, int64_t layer,
                         double p, int64_t offset, int64_t width) {
  check::bias_relu_dropout(x, bias, rng, layer, p, offset, width, kHere);
  Tensor y = at::empty_like(x);
  const int64_t size = x.numel(), columns = x.size(1);
  const Place place{offset, width ? width : columns};
  const int64_t seed = rng.const_data_ptr<int64_t>()[0], step = rng.const_data_ptr<int64_t>()[1];
  const Dropout dropout(p);
  const Tensor wide_bias = bias.to(wide_type(x));
  for_type(x.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T* in = x.const_data_ptr<T>();
    const Wide<T>* of_column = wide_bias.const_data_ptr<Wide<T>>();
    const Wide<T> scale = static_cast<Wide<T>>(1 / (1 - p));
    T* out = y.mutable_data_ptr<T>();
    constexpr int64_t n = kGroup;
    at::parallel_for(0, (size + n - 1) / n, kGrain / n, [&](int64_t begin, int64_t end) {
      for (int64_t group = begin; group < end; ++group) {
        Words words = {};
        int64_t known = -1;  // the Philox block of `words`
        for (int64_t i = n * group; i < std::min(size, n * group + n); ++i) {
          const int64_t element = place.of(i / columns, i % columns);
          if (dropout.threshold && element / n != known) {
            known = element / n;
            words = dropout_words(seed, step, layer, known);
          }
          const Wide<T> sum = static_cast<Wide<T>>(in[i]) + of_column[i % columns];
          const Wide<T> active = sum <= 0 ? 0 : sum;  // NaN stays NaN
          out[i] = static_cast<T>(dropout.keeps(words, element % n) ? active * scale : 0);
        }
      }
    });
  });
  return y;
}

std::tuple<Tensor, Tensor> bias_relu_dropout_backward(const Tensor& grad, const Tensor& y,
                                                      double p) {
  check::bias_relu_dropout_backward(grad, y, p, kHere);
  const int64_t rows = grad.size(0), columns = grad.size(1);
  Tensor grad_x = at::empty_like(grad);
  Tensor grad_bias = at::empty({columns}, grad.options().dtype(wide_type(grad)));
  for_type(grad.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T* in = grad.const_data_ptr<T>();
    const T* active = y.const_data_ptr<T>();
    const Wide<T> scale = static_cast<Wide<T>>(1 / (1 - p));
    T* out = grad_x.mutable_data_ptr<T>();
    Wide<T>* of_column = grad_bias.mutable_data_ptr<Wide<T>>();
    const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, rows));
    at::parallel_for(0, columns, grain, [&](int64_t begin, int64_t end) {
      std::vector<double> sums(end - begin, 0.0);
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t column = begin; column < end; ++column) {
          const int64_t i = row * columns + column;
          const Wide<T> value = active[i] > T(0) ? static_cast<Wide<T>>(in[i]) * scale : 0;
          out[i] = static_cast<T>(value);
          sums[column - begin] += value;
        }
      }
      std::copy(sums.begin(), sums.end(), of_column + begin);
    });
  });
  return {grad_x, grad_bias};
}

// --- Losses --------------------------------------------------------------------------------------

// Return the mean of loss_of(row), or NaN if there are no rows; loss_of also writes the gradient.
template <typename Function>
Tensor mean_loss(const Tensor& outputs, int64_t grain, const Function& loss_of) {
  const int64_t rows = outputs.size(0);
  std::vector<double> losses(rows);
  at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
    for (int64_t row = begin; row < end; ++row) losses[row] = loss_of(row);
  });
  double sum = 0;
  for (const double loss : losses) sum += loss;
  const double mean =
      rows ? sum / static_cast<double>(rows) : std::numeric_limits<double>::quiet_NaN();
  return at::empty({}, outputs.options().dtype(wide_type(outputs))).fill_(mean);
}

std::tuple<Tensor, Tensor> softmax_cross_entropy(const Tensor& logits, const Tensor& target) {
  check::softmax_cross_entropy(logits, target, kHere);
  const int64_t rows = logits.size(0), classes = logits.size(1);
  const int64_t* chosen = target.const_data_ptr<int64_t>();
  for (int64_t row = 0; row < rows; ++row) {
    TORCH_CHECK_VALUE(chosen[row] >= 0 && chosen[row] < classes,
                      "trialfleet::softmax_cross_entropy: target[", row, "] must be in [0, ",
                      classes, "); it is ", chosen[row]);
  }
  Tensor gradient = at::empty_like(logits), loss;
  for_type(logits.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T* all = logits.const_data_ptr<T>();
    T* out = gradient.mutable_data_ptr<T>();
    const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, classes));
    loss = mean_loss(logits, grain, [&](int64_t row) {
      const T* of_row = all + row * classes;
      const Wide<T> most = static_cast<Wide<T>>(*std::max_element(of_row, of_row + classes));
      double sum = 0;
      for (int64_t j = 0; j < classes; ++j) sum += std::exp(static_cast<Wide<T>>(of_row[j]) - most);
      for (int64_t j = 0; j < classes; ++j) {
        const double share = std::exp(static_cast<Wide<T>>(of_row[j]) - most) / sum;
        out[row * classes + j] = static_cast<T>((share - (j == chosen[row])) / rows);
      }
      return std::log(sum) + most - static_cast<Wide<T>>(of_row[chosen[row]]);
    });
  });
  return {loss, gradient};
}

// Return a loss of one output per row; function(output, target) returns the loss and its
// derivative.
template <typename Function>
std::tuple<Tensor, Tensor> loss_by_row(const Tensor& outputs, const Tensor& target,
                                       const Function& function) {
  Tensor gradient = at::empty_like(outputs), loss;
  const float* wanted = target.const_data_ptr<float>();
  for_type(outputs.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T* given = outputs.const_data_ptr<T>();
    T* out = gradient.mutable_data_ptr<T>();
    loss = mean_loss(outputs, kGrain, [&](int64_t row) {
      const auto [value, slope] = function(static_cast<double>(given[row]), double{wanted[row]});
      out[row] = static_cast<T>(slope / static_cast<double>(outputs.size(0)));
      return value;
    });
  });
  return {loss, gradient};
}

std::tuple<Tensor, Tensor> sigmoid_bce(const Tensor& logits, const Tensor& target) {
  check::sigmoid_bce(logits, target, kHere);
  return loss_by_row(logits, target, [](double z, double wanted) {
    const double tail = std::exp(-std::abs(z));
    const double sigmoid = (z < 0 ? tail : 1) / (1 + tail);
    return std::pair((z < 0 ? 0 : z) - z * wanted + std::log1p(tail), sigmoid - wanted);
  });
}

std::tuple<Tensor, Tensor> mean_squared_error(const Tensor& outputs, const Tensor& target) {
  check::mean_squared_error(outputs, target, kHere);
  return loss_by_row(outputs, target, [](double output, double wanted) {
    const double difference = output - wanted;
    return std::pair(difference * difference, 2 * difference);
  });
}

// --- The batch -----------------------------------------------------------------------------------

// Return the samples [rows] from the cursor on; positions outside the order are clamped to its
// first and last.
Tensor samples_at(const Tensor& order, const Tensor& cursor, int64_t rows, int64_t n) {
  Tensor samples = at::empty({rows}, order.options());
  const int64_t* at = order.const_data_ptr<int64_t>();
  int64_t* out = samples.mutable_data_ptr<int64_t>();
  const int64_t start = *cursor.const_data_ptr<int64_t>(), last = order.numel() - 1;
  for (int64_t row = 0; row < rows; ++row) {
    out[row] = at[std::clamp<int64_t>(start + row, 0, last)];
    TORCH_CHECK_VALUE(out[row] >= 0 && out[row] < n,
                      "trialfleet::gather_embed: order must be in [0, ", n, "); it has ", out[row]);
  }
  return samples;
}

// Return the samples' rows of weight [rows, k].
Tensor codes_of(const Tensor& samples, const Tensor& categorical, const Tensor& first_code,
                int64_t vocabulary) {
  const int64_t rows = samples.numel(), k = first_code.numel();
  Tensor codes = at::empty({rows, k}, categorical.options());
  const int64_t* sample = samples.const_data_ptr<int64_t>();
  const int32_t* category = categorical.const_data_ptr<int32_t>();
  const int32_t* first = first_code.const_data_ptr<int32_t>();
  int32_t* out = codes.mutable_data_ptr<int32_t>();
  for (int64_t i = 0; i < rows * k; ++i) {
    const int64_t code = int64_t{first[i % k]} + category[sample[i / k] * k + i % k];
    TORCH_CHECK_VALUE(code >= 0 && code < vocabulary,
                      "trialfleet::gather_embed: categorical + first_code must be in [0, ",
                      vocabulary, "), the rows of weight; column ", i % k, " of row ",
                      sample[i / k], " has ", code);
    out[i] = static_cast<int32_t>(code);
  }
  return codes;
}

std::tuple<Tensor, Tensor, Tensor> gather_embed(const Tensor& numeric, const Tensor& categorical,
                                                const Tensor& target, const Tensor& order,
                                                const Tensor& cursor, const Tensor& first_code,
                                                const Tensor& weight, int64_t rows,
                                                at::ScalarType dtype) {
  check::gather_embed(numeric, categorical, target, order, cursor, first_code, weight, rows, dtype,
                      kHere);
  const int64_t d = numeric.size(1), k = categorical.size(1), e = weight.size(1);
  const int64_t width = d + k * e;
  const Tensor samples = samples_at(order, cursor, rows, numeric.size(0));
  Tensor codes = codes_of(samples, categorical, first_code, weight.size(0));
  Tensor joined = at::empty({rows, width}, numeric.options().dtype(dtype));
  for_type(dtype, [&](auto zero) {
    using T = decltype(zero);
    const int64_t* sample = samples.const_data_ptr<int64_t>();
    const int32_t* code = codes.const_data_ptr<int32_t>();
    const float* numbers = numeric.const_data_ptr<float>();
    const float* embeddings = weight.const_data_ptr<float>();
    T* rows_out = joined.mutable_data_ptr<T>();
    const auto cast = [](float value) { return static_cast<T>(value); };
    const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, width));
    at::parallel_for(0, rows, grain, [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        const float* of_row = numbers + sample[row] * d;
        T* out = std::transform(of_row, of_row + d, rows_out + row * width, cast);
        for (int64_t i = row * k; i < (row + 1) * k; ++i) {
          const float* embedding = embeddings + code[i] * e;
          out = std::transform(embedding, embedding + e, out, cast);
        }
      }
    });
  });
  return {joined, codes, target.index_select(0, samples)};
}

Tensor gather_embed_backward(const Tensor& grad, const Tensor& codes, int64_t numeric,
                             int64_t vocabulary, int64_t embedding) {
  check::gather_embed_backward(grad, codes, numeric, vocabulary, embedding, kHere);
  const int64_t rows = codes.size(0), k = codes.size(1), width = grad.size(1);
  const int32_t* code_of = codes.const_data_ptr<int32_t>();
  Tensor grad_weight = at::empty({vocabulary, embedding}, grad.options().dtype(at::kFloat));
  float* out = grad_weight.mutable_data_ptr<float>();
  for_type(grad.scalar_type(), [&](auto zero) {
    using T = decltype(zero);
    const T* in = grad.const_data_ptr<T>();
    // Every thread reads all codes, and sums the gradients of its part of the vocabulary.
    const int64_t grain = std::max<int64_t>(1, kGrain / std::max<int64_t>(1, embedding));
    at::parallel_for(0, vocabulary, grain, [&](int64_t begin, int64_t end) {
      std::vector<double> sums((end - begin) * embedding, 0.0);
      for (int64_t i = 0; i < rows * k; ++i) {
        if (code_of[i] < begin || code_of[i] >= end) continue;
        const T* from = in + i / k * width + numeric + i % k * embedding;
        double* to = sums.data() + (code_of[i] - begin) * embedding;
        for (int64_t j = 0; j < embedding; ++j) to[j] += static_cast<float>(from[j]);
      }
      std::copy(sums.begin(), sums.end(), out + begin * embedding);
    });
  });
  return grad_weight;
}

// --- The step ------------------------------------------------------------------------------------

// Return the schedule's row: learning rate, 1 / (1 - beta1^t), 1 / (1 - beta2^t).
const float* row_at(const Tensor& schedule, const Tensor& step) {
  const int64_t row = *step.const_data_ptr<int64_t>();
  return schedule.const_data_ptr<float>() + 3 * std::clamp<int64_t>(row, 0, schedule.size(0) - 1);
}

// Copy the weights to their shadows; copy_ itself counts this as a change, for autograd.
void follow(TensorList shadows, TensorList weights) {
  const at::AutoDispatchBelowAutograd no_autograd;  // a copy of a weight needs no gradient
  for (size_t i = 0; i < shadows.size(); ++i) {
    if (shadows[i].numel() > 0) shadows[i].copy_(weights[i]);
  }
}

void adamw_step_(TensorList weights, TensorList gradients, TensorList m, TensorList v,
                 TensorList shadows, at::ArrayRef<double> decays, const Tensor& schedule,
                 const Tensor& step, double beta1, double beta2, double epsilon) {
  check::adamw_step_(weights, gradients, m, v, shadows, decays, schedule, step, kHere);
  const float* row = row_at(schedule, step);
  const float rate = row[0] * row[1], correction = row[2], root_floor = static_cast<float>(epsilon);
  const float new1 = static_cast<float>(1 - beta1), new2 = static_cast<float>(1 - beta2);
  const float old2 = static_cast<float>(beta2);
  for (size_t list = 0; list < weights.size(); ++list) {
    const Tensor gradient = gradients[list].to(at::kFloat);
    const float* g = gradient.const_data_ptr<float>();
    float* w = weights[list].mutable_data_ptr<float>();
    float* mean = m[list].mutable_data_ptr<float>();
    float* square = v[list].mutable_data_ptr<float>();
    const float left = 1 - row[0] * static_cast<float>(decays[list]);
    at::parallel_for(0, weights[list].numel(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        mean[i] += new1 * (g[i] - mean[i]);
        square[i] = old2 * square[i] + new2 * g[i] * g[i];
        w[i] = w[i] * left - rate * mean[i] / (std::sqrt(square[i] * correction) + root_floor);
      }
    });
  }
  follow(shadows, weights);
  touched(weights, m, v);
}

void sgd_step_(TensorList weights, TensorList gradients, TensorList velocity, TensorList shadows,
               at::ArrayRef<double> decays, const Tensor& schedule, const Tensor& step,
               double momentum) {
  check::sgd_step_(weights, gradients, velocity, shadows, decays, schedule, step, kHere);
  const float rate = row_at(schedule, step)[0], kept = static_cast<float>(momentum);
  for (size_t list = 0; list < weights.size(); ++list) {
    const Tensor gradient = gradients[list].to(at::kFloat);
    const float* g = gradient.const_data_ptr<float>();
    float* w = weights[list].mutable_data_ptr<float>();
    float* mean = velocity[list].mutable_data_ptr<float>();
    const float left = 1 - rate * static_cast<float>(decays[list]);
    at::parallel_for(0, weights[list].numel(), kGrain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        mean[i] = kept * mean[i] + g[i];
        w[i] = w[i] * left - rate * mean[i];
      }
    });
  }
  follow(shadows, weights);
  touched(weights, velocity);
}

void tick_(const Tensor& clock, const Tensor& loss, const Tensor& loss_sum, int64_t rows) {
  check::tick_(clock, loss, loss_sum, rows, kHere);
  int64_t* ticks = clock.mutable_data_ptr<int64_t>();
  ticks[0] += rows;
  ticks[1] += 1;
  ticks[3] += 1;
  *loss_sum.mutable_data_ptr<double>() += *loss.const_data_ptr<float>();
  touched(clock, loss_sum);
}

}  // namespace

TORCH_LIBRARY_IMPL(trialfleet, CPU, m) {
  TRIALFLEET_IMPLEMENTATIONS(m)
}

}  // namespace trialfleet
