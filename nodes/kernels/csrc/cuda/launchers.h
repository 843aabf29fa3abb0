// The launchers that csrc/cuda.cpp calls: one function per operation, without torch, so that nvcc
// compiles the kernels on a machine that has no CUDA torch.
//
// Common to all
//   - Pointers are device pointers unless documented otherwise; arrays are dense and row-major.
//   - Any size is allowed, and any address that is aligned to its element. Loads and stores are
//     16 bytes wide if all arrays begin at a multiple of 16 bytes and consist of whole 16 bytes (in
//     bias_relu_dropout_backward and gather_embed: their rows), otherwise one element wide. The
//     optimisers treat an odd tail separately.
//   - `Type` is the type in memory; arithmetic is float32.
//   - The work is queued on `stream`; nothing synchronises or allocates, so everything can be
//     captured in a CUDA graph. cursor, step and rng are read on the device when the kernel runs.
//   - The result is the error of this launch: cudaSuccess, cudaErrorInvalidValue for invalid
//     arguments (negative sizes, p outside [0, 1)), or the driver's error. The caller checks
//     device, shapes and types.
//   - Nothing is launched for an empty input. A non-empty output is still written. The only
//     exception is the mean of no rows: the caller writes NaN, as torch's losses do.
//   - Two runs with the same input give the same bits, on any GPU of one architecture: there are
//     no float atomics, and the order of every sum depends only on the shapes.
//   - `workspace` is scratch memory, aligned to 16, of the number of bytes that the function
//     ..._workspace returns (0: none, may be null); its content is undefined before and after.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "../philox.h"

namespace trialfleet::cuda {

enum class Type : int { float32, bfloat16, float16 };

// --- activation.cu ----------------------------------------------------------------------------

// y = max(x + bias, 0) * keep / (1 - p)                      dropout: Srivastava et al., 2014
//   x, y  [rows, columns] of type     bias [columns] of bias_type: float32 or type
//   rng   int64 [2] = (seed, step)    keep: philox.h, `layer` is its stream
//   offset, width: the place of x in a larger array (Place in philox.h)
// A NaN that is kept stays NaN; a dropped value becomes 0, even NaN.
// Moves 2 * rows * columns elements (bias stays in the cache). x and y may be the same array.
cudaError_t bias_relu_dropout(const void* x, const void* bias, const int64_t* rng, int64_t layer,
                              double p, int64_t offset, int64_t width, void* y, int64_t rows,
                              int64_t columns, Type type, Type bias_type, cudaStream_t stream);

// grad_x = grad * (y > 0) / (1 - p);   grad_bias = the sum of grad_x over the rows
//   grad, y, grad_x [rows, columns] of type; y is the result of bias_relu_dropout
//   grad_bias       float32 [columns], summed before grad_x is rounded to type; 0 if rows is 0
// Moves 3 * rows * columns elements; the workspace has at most 1 float32 for 16 elements.
// grad and grad_x may be the same array.
cudaError_t bias_relu_dropout_backward(const void* grad, const void* y, double p, void* grad_x,
                                       float* grad_bias, void* workspace, int64_t rows,
                                       int64_t columns, Type type, cudaStream_t stream);
int64_t bias_relu_dropout_backward_workspace(int64_t rows, int64_t columns, Type type);

// --- losses.cu --------------------------------------------------------------------------------
// loss float32 [] is the mean over the rows. grad is the mean's gradient by the first argument, and
// has its shape and type. In float16 a gradient below 6e-8 is 0: use bfloat16 for large batches.

// loss = mean(log(sum_j exp(logits[i, j])) - logits[i, target[i]]), after subtraction of each row's
// maximum;   grad = (softmax(logits) - one_hot(target)) / rows
//   logits, grad [rows, classes] of type     target int64 [rows]
// A target outside [0, classes) sets its row of grad and the loss to NaN, as a kernel can't raise.
// Moves 2 * rows * classes elements and 8 bytes a row. With more than 1024 classes (256, if a row
// is not a multiple of 16 bytes) logits are read twice more, from the cache.
cudaError_t softmax_cross_entropy(const void* logits, const int64_t* target, float* loss,
                                  void* grad, void* workspace, int64_t rows, int64_t classes,
                                  Type type, cudaStream_t stream);
int64_t softmax_cross_entropy_workspace(int64_t rows, int64_t classes);

// loss = mean(max(x, 0) - x * target + log1p(exp(-|x|)));   grad = (sigmoid(x) - target) / rows
//   logits x, grad [rows] of type     target float32 [rows]
// Moves 2 elements and 4 bytes a row.
cudaError_t sigmoid_bce(const void* logits, const float* target, float* loss, void* grad,
                        void* workspace, int64_t rows, Type type, cudaStream_t stream);
int64_t sigmoid_bce_workspace(int64_t rows);

// loss = mean((x - target)^2);   grad = 2 * (x - target) / rows
//   outputs x, grad [rows] of type     target float32 [rows]
// Moves 2 elements and 4 bytes a row.
cudaError_t mean_squared_error(const void* outputs, const float* target, float* loss, void* grad,
                               void* workspace, int64_t rows, Type type, cudaStream_t stream);
int64_t mean_squared_error_workspace(int64_t rows);

// --- embedding.cu -----------------------------------------------------------------------------

// Gather the batch at the cursor: in each row its numbers, then the embeddings of its categories.
//   numeric     float32 [samples, numbers]       categorical int32 [samples, categories]
//   target      [samples], target_size bytes each: 4 (float32) or 8 (int64)
//   order       int64 [positions], positions > 0, each in [0, samples)
//   cursor      int64 [1]: the batch is order[cursor : cursor + rows]; positions outside the order
//               are clamped to its first and last
//   first_code  int32 [categories]: the first row of weight for each categorical column
//   weight      float32 [vocabulary, embedding]
//   joined      [rows, numbers + categories * embedding] of type
//   codes       int32 [rows, categories] = categorical + first_code: rows of weight
//   batch_target [rows] of target's type
// A code outside [0, vocabulary) sets its embedding to NaN. numbers or categories may be 0 (and
// their arrays null); embedding may be 0 if categories is. There are fewer than 2^16 categories,
// and a row of joined has fewer than 2^20 elements. Moves per row: 4 * numbers + 8 * categories + 2
// * target_size + 8 bytes, categories * embedding float32 of weight (from the cache, if the
// vocabulary fits) and the row of joined.
cudaError_t gather_embed(const float* numeric, const int32_t* categorical, const void* target,
                         const int64_t* order, const int64_t* cursor, const int32_t* first_code,
                         const float* weight, void* joined, int32_t* codes, void* batch_target,
                         int64_t positions, int64_t rows, int64_t numbers, int64_t categories,
                         int64_t vocabulary, int64_t embedding, int64_t target_size, Type type,
                         cudaStream_t stream);

// grad_weight[c] = the sum of grad[i, numbers + k * embedding :][: embedding] over codes[i, k] = c
//   grad [rows, numbers + categories * embedding] of type     codes int32 [rows, categories]
//   grad_weight float32 [vocabulary, embedding], every row written (0 where no sample has it)
// A code outside [0, vocabulary) is ignored; vocabulary < 2^30. Each gradient is rounded to 2^-41,
// or to 2^-61 times the sum of the absolute values in one block, if that is larger (embedding.cu).
// A gradient that isn't finite sets its row of grad_weight, and neighbouring rows, to NaN.
cudaError_t gather_embed_backward(const void* grad, const int32_t* codes, float* grad_weight,
                                  void* workspace, int64_t rows, int64_t numbers,
                                  int64_t categories, int64_t vocabulary, int64_t embedding,
                                  Type type, cudaStream_t stream);
int64_t gather_embed_backward_workspace(int64_t rows, int64_t numbers, int64_t categories,
                                        int64_t vocabulary, int64_t embedding);

// --- optimizer.cu -----------------------------------------------------------------------------
// The step of all parameters, with one launch per 64 parameters. nodes/tabular/optimizers.py has
// the formulas.
//   schedule float32 [schedule_rows, 3] = (learning rate, 1 / (1 - beta1^t), 1 / (1 - beta2^t)),
//            schedule_rows > 0
//   step     int64 [1]: the schedule's row, clamped to its first and last

// One parameter, in host memory; its pointers are device pointers.
struct Parameter {
  float* weight;         // [size]
  const void* gradient;  // [size] of gradient_type
  float* m;              // [size] AdamW: mean of the gradient; SGD: velocity
  float* v;              // [size] AdamW: mean of its square; SGD: ignored
  void* shadow;          // [size] of shadow_type: a copy of the new weight; null: none
  int64_t size;
  float decay;
  Type gradient_type;
  Type shadow_type;
};

// m = m + (1 - beta1) * (g - m);   v = beta2 * v + (1 - beta2) * g * g
// w = w * (1 - lr * decay) - lr * c1 * m / (sqrt(v * c2) + epsilon), (lr, c1, c2) = schedule's row
// Moves 24 bytes per element, and its gradient and shadow.
cudaError_t adamw_step(const Parameter* parameters, int64_t count, const float* schedule,
                       int64_t schedule_rows, const int64_t* step, double beta1, double beta2,
                       double epsilon, cudaStream_t stream);

// m = momentum * m + g;   w = w * (1 - lr * decay) - lr * m
// Moves 16 bytes per element, and its gradient and shadow.
cudaError_t sgd_step(const Parameter* parameters, int64_t count, const float* schedule,
                     int64_t schedule_rows, const int64_t* step, double momentum,
                     cudaStream_t stream);

// --- clock.cu ---------------------------------------------------------------------------------

// clock[0] += rows; clock[1] += 1; clock[3] += 1; *loss_sum += *loss
//   clock int64 [4] = (cursor, step, seed, dropout_step)   loss float32 []   loss_sum float64 []
cudaError_t tick(int64_t* clock, const float* loss, double* loss_sum, int64_t rows,
                 cudaStream_t stream);

}  // namespace trialfleet::cuda
