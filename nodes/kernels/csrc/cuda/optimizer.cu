// The optimiser's step over all parameters: one launch instead of several per parameter, and each
// array is read and written once.
//
// Advantages over torch.compile: no trial waits for a compiler, and the same kernel writes the
// weights' shadows. On an H100 torch.compile's step takes 1.01 times as long for many weights and
// 1.4 times for few; torch.optim's fused AdamW takes 1.15 and 3.7 times
// (tests/bench/BENCHMARKS.md).
#include "launch.cuh"
#include "launchers.h"
#include "pack.cuh"

namespace trialfleet::cuda {
namespace {

// --- the arguments of a launch

// The kernel's parameters, of which every GPU allows 4 KiB, contain the arrays' addresses. So
// nothing is copied to the device, and a CUDA graph keeps the addresses.
constexpr int kMostEntries = 64;
constexpr size_t kParameterBytes = 4096;

constexpr int kPack = 4;
constexpr int kPacksOfAThread = 2;  // so that AdamW has 8 loads of 16 bytes in flight
constexpr int64_t kChunk = kThreads * kPack * kPacksOfAThread;  // elements per block

struct Entry {
  float* weight;
  const void* gradient;
  float* m;
  float* v;
  void* shadow;
  int64_t size;  // > 0
  float decay;
  int8_t gradient_type;
  int8_t shadow_type;
  bool packed;  // every array is aligned to packs
};

struct Table {
  Entry entry[kMostEntries];
  int32_t first_block[kMostEntries];  // the first block of each entry, ascending
  int32_t count;

  // Return a block's entry: the last entry that begins at or before this block.
  __device__ int of_block(int32_t block) const {
    int low = 0, high = count;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (first_block[middle] <= block ? low : high) = middle;
    }
    return low;
  }
};

struct Schedule {
  const float* rates;  // [rows, 3]
  int64_t rows;
  const int64_t* step;

  __device__ const float* now() const {
    const int64_t last = rows - 1;
    return rates + 3 * (*step < 0 ? 0 : *step < last ? *step : last);
  }
};

// --- the two rules; nodes/tabular/optimizers.py has the formulas

struct AdamW {
  static constexpr bool kHasV = true;
  Schedule schedule;
  float beta1_rest, beta2, beta2_rest, epsilon;  // rest: 1 - beta

  struct Now {
    float keep, m_rate, v_correction;
  };

  __device__ Now now(float decay) const {
    const float* rates = schedule.now();
    return {1.0f - rates[0] * decay, rates[0] * rates[1], rates[2]};
  }

  __device__ void move(const Now& now, float g, float& w, float& m, float& v) const {
    m += beta1_rest * (g - m);
    v = beta2 * v + beta2_rest * g * g;
    w = w * now.keep - now.m_rate * m / (sqrtf(v * now.v_correction) + epsilon);
  }
};

struct Sgd {
  static constexpr bool kHasV = false;
  Schedule schedule;
  float momentum;

  struct Now {
    float keep, rate;
  };

  __device__ Now now(float decay) const {
    const float* rates = schedule.now();
    return {1.0f - rates[0] * decay, rates[0]};
  }

  __device__ void move(const Now& now, float g, float& w, float& m, float& /*v*/) const {
    m = momentum * m + g;
    w = w * now.keep - now.rate * m;
  }
};

// --- the kernel

// `wide`: the chunk consists of whole packs.
template <bool wide, typename Gradient, typename Rule>
__device__ void move_chunk(const Entry& entry, const Rule& rule, int64_t begin) {
  const typename Rule::Now now = rule.now(entry.decay);
  const auto* gradient = static_cast<const Gradient*>(entry.gradient);
  float g[kPacksOfAThread][kPack], w[kPacksOfAThread][kPack];
  float m[kPacksOfAThread][kPack], v[kPacksOfAThread][kPack];
  begin += threadIdx.x * kPack;
#pragma unroll
  for (int i = 0; i < kPacksOfAThread; ++i) {
    const int64_t first = begin + i * kThreads * kPack;
    if (first >= entry.size) continue;
    load<wide>(gradient, first, entry.size, g[i]);
    load<wide>(entry.weight, first, entry.size, w[i]);
    load<wide>(entry.m, first, entry.size, m[i]);
    if constexpr (Rule::kHasV) load<wide>(entry.v, first, entry.size, v[i]);
  }
#pragma unroll
  for (int i = 0; i < kPacksOfAThread; ++i) {
    const int64_t first = begin + i * kThreads * kPack;
    if (first >= entry.size) continue;
#pragma unroll
    for (int j = 0; j < kPack; ++j) rule.move(now, g[i][j], w[i][j], m[i][j], v[i][j]);
    store<wide>(entry.weight, first, entry.size, w[i]);
    store<wide>(entry.m, first, entry.size, m[i]);
    if constexpr (Rule::kHasV) store<wide>(entry.v, first, entry.size, v[i]);
    if (!entry.shadow) continue;
    if (entry.shadow_type == static_cast<int8_t>(Type::bfloat16)) {
      store<wide>(static_cast<__nv_bfloat16*>(entry.shadow), first, entry.size, w[i]);
    } else {
      store<wide>(static_cast<__half*>(entry.shadow), first, entry.size, w[i]);
    }
  }
}

template <typename Gradient, typename Rule>
__device__ void move_some(const Entry& entry, const Rule& rule, int64_t begin) {
  const bool whole = begin + kChunk <= entry.size || entry.size % kPack == 0;
  if (entry.packed && whole) {
    move_chunk<true, Gradient>(entry, rule, begin);
  } else {
    move_chunk<false, Gradient>(entry, rule, begin);
  }
}

template <typename Rule>
__global__ void __launch_bounds__(kThreads)
    step_kernel(const __grid_constant__ Table table, const __grid_constant__ Rule rule) {
  const int block = static_cast<int>(blockIdx.x);
  const int which = table.of_block(block);
  const Entry& entry = table.entry[which];
  const int64_t begin = (block - table.first_block[which]) * kChunk;
  switch (static_cast<Type>(entry.gradient_type)) {
    case Type::float32:
      move_some<float>(entry, rule, begin);
      break;
    case Type::bfloat16:
      move_some<__nv_bfloat16>(entry, rule, begin);
      break;
    case Type::float16:
      move_some<__half>(entry, rule, begin);
      break;
  }
}

// --- from the caller's parameters to launches

bool is_sound(const Parameter& p) {
  return p.size >= 0 && (!p.shadow || p.shadow_type != Type::float32);
}

bool is_packed(const Parameter& p) {
  const bool gradient_packed = with_type(p.gradient_type, [&](auto kind) {
    return aligned<kPack>(static_cast<const decltype(kind)*>(p.gradient));
  });
  return gradient_packed && aligned<kPack>(p.weight) && aligned<kPack>(p.m) &&
         aligned<kPack>(p.v) && aligned<kPack>(static_cast<const __half*>(p.shadow));
}

Entry entry_of(const Parameter& p) {
  const auto gradient_type = static_cast<int8_t>(p.gradient_type);
  const auto shadow_type = static_cast<int8_t>(p.shadow_type);
  return {p.weight, p.gradient, p.m,           p.v,         p.shadow,
          p.size,   p.decay,    gradient_type, shadow_type, is_packed(p)};
}

template <typename Rule>
cudaError_t step(const Parameter* parameters, int64_t count, const Rule& rule,
                 cudaStream_t stream) {
  static_assert(sizeof(Table) + sizeof(Rule) <= kParameterBytes, "fewer entries fit");
  if (count < 0 || rule.schedule.rows < 1) return cudaErrorInvalidValue;
  for (int64_t i = 0; i < count; ++i) {
    if (!is_sound(parameters[i])) return cudaErrorInvalidValue;
  }
  for (int64_t next = 0; next < count;) {
    Table table = {};
    int64_t blocks = 0;
    for (; next < count && table.count < kMostEntries; ++next) {
      const Parameter& p = parameters[next];
      if (p.size == 0) continue;
      table.first_block[table.count] = static_cast<int32_t>(blocks);
      table.entry[table.count++] = entry_of(p);
      blocks += divide_up(p.size, kChunk);
      if (blocks > INT32_MAX) return cudaErrorInvalidValue;  // 4 * 10^12 elements
    }
    if (blocks == 0) continue;
    const cudaError_t error =
        launch(step_kernel<Rule>, static_cast<unsigned>(blocks), kThreads, stream, table, rule);
    if (error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

}  // namespace

cudaError_t adamw_step(const Parameter* parameters, int64_t count, const float* schedule,
                       int64_t schedule_rows, const int64_t* step_now, double beta1, double beta2,
                       double epsilon, cudaStream_t stream) {
  const AdamW rule = {{schedule, schedule_rows, step_now},
                      static_cast<float>(1.0 - beta1),
                      static_cast<float>(beta2),
                      static_cast<float>(1.0 - beta2),
                      static_cast<float>(epsilon)};
  return step(parameters, count, rule, stream);
}

cudaError_t sgd_step(const Parameter* parameters, int64_t count, const float* schedule,
                     int64_t schedule_rows, const int64_t* step_now, double momentum,
                     cudaStream_t stream) {
  const Sgd rule = {{schedule, schedule_rows, step_now}, static_cast<float>(momentum)};
  return step(parameters, count, rule, stream);
}

}  // namespace trialfleet::cuda
