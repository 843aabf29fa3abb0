// Runs the grids of the stand-in: each thread of a block is a fiber that gives way where it waits.
#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <vector>

#include "cuda_runtime.h"

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/common_interface_defs.h>
#endif

// Where the linker put what is __shared__.
extern "C" __attribute__((weak)) char __start_shared_memory[];
extern "C" __attribute__((weak)) char __stop_shared_memory[];

namespace stand_in {
namespace {

constexpr size_t kStackBytes = 64 * 1024;
constexpr unsigned kWarp = 32;
constexpr unsigned kMostThreads = 1024;

enum class State { ready, at_barrier, at_shuffle, done };

struct Fiber {
  ucontext_t context;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  State state;
  unsigned shuffles;  // so far
};

// Two places for each lane: a lane can be one shuffle ahead of those that still read, never two.
uint64_t handed[2][kMostThreads];

std::vector<Fiber> fibers(kMostThreads);
ucontext_t scheduler;
unsigned current;  // of `fibers`
const std::function<void()>* body;
bool reversed = false;
int grids = 0;  // run so far
std::unique_ptr<char[]> dynamic_shared;
size_t dynamic_shared_bytes;

// ASan has to be told when the stack changes.
#ifdef __SANITIZE_ADDRESS__
const void* scheduler_stack;
size_t scheduler_stack_bytes;

void to_fiber(Fiber& fiber) {
  void* mine;
  __sanitizer_start_switch_fiber(&mine, fiber.stack.get(), kStackBytes);
  swapcontext(&scheduler, &fiber.context);
  __sanitizer_finish_switch_fiber(mine, nullptr, nullptr);
}

void to_scheduler(Fiber& fiber) {
  const bool over = fiber.state == State::done;
  void* mine;
  __sanitizer_start_switch_fiber(over ? nullptr : &mine, scheduler_stack, scheduler_stack_bytes);
  swapcontext(&fiber.context, &scheduler);
  __sanitizer_finish_switch_fiber(mine, &scheduler_stack, &scheduler_stack_bytes);
}

void first_switch() {
  __sanitizer_finish_switch_fiber(nullptr, &scheduler_stack, &scheduler_stack_bytes);
}
#else
void to_fiber(Fiber& fiber) { swapcontext(&scheduler, &fiber.context); }
void to_scheduler(Fiber& fiber) { swapcontext(&fiber.context, &scheduler); }
void first_switch() {}
#endif

void run_fiber() {
  first_switch();
  (*body)();
  fibers[current].state = State::done;
  to_scheduler(fibers[current]);
}

void wait(State state) {
  fibers[current].state = state;
  to_scheduler(fibers[current]);
}

void start(Fiber& fiber) {
  fiber.state = State::ready;
  fiber.shuffles = 0;
  getcontext(&fiber.context);
  fiber.context.uc_stack.ss_sp = fiber.stack.get();
  fiber.context.uc_stack.ss_size = kStackBytes;
  fiber.context.uc_link = nullptr;
  makecontext(&fiber.context, run_fiber, 0);
}

// Lets fibers [begin, end) go on if all of them wait in `state`.
bool release(State state, unsigned begin, unsigned end) {
  for (unsigned i = begin; i < end; ++i) {
    if (fibers[i].state != state) return false;
  }
  for (unsigned i = begin; i < end; ++i) fibers[i].state = State::ready;
  return true;
}

unsigned count(State state, unsigned threads) {
  unsigned found = 0;
  for (unsigned i = 0; i < threads; ++i) found += fibers[i].state == state;
  return found;
}

void run_ready(unsigned threads) {
  for (unsigned i = 0; i < threads; ++i) {
    current = reversed ? threads - 1 - i : i;
    if (fibers[current].state != State::ready) continue;
    threadIdx = dim3(current % blockDim.x, current / blockDim.x % blockDim.y,
                     current / blockDim.x / blockDim.y);
    to_fiber(fibers[current]);
  }
}

// Fills it with NaN; not by memset, which would find the guards between the variables.
__attribute__((no_sanitize("address"))) void spoil_shared_memory() {
  for (volatile char* at = __start_shared_memory; at != __stop_shared_memory; ++at) *at = -1;
  dynamic_shared.reset(new char[dynamic_shared_bytes]);
  std::memset(dynamic_shared.get(), -1, dynamic_shared_bytes);
}

void run_block(unsigned threads) {
  spoil_shared_memory();
  for (unsigned i = 0; i < threads; ++i) start(fibers[i]);
  for (;;) {
    run_ready(threads);
    if (count(State::done, threads) == threads) return;
    bool moved = release(State::at_barrier, 0, threads);
    for (unsigned lane0 = 0; lane0 < threads; lane0 += kWarp) {
      const unsigned end = lane0 + kWarp < threads ? lane0 + kWarp : threads;
      moved |= release(State::at_shuffle, lane0, end);
    }
    if (moved) continue;
    std::fprintf(stderr,
                 "deadlock in block (%u, %u, %u): %u threads wait in __syncthreads, %u in "
                 "a shuffle, %u have returned\n",
                 blockIdx.x, blockIdx.y, blockIdx.z, count(State::at_barrier, threads),
                 count(State::at_shuffle, threads), count(State::done, threads));
    std::abort();
  }
}

}  // namespace

cudaError_t run(dim3 grid, dim3 block, size_t shared_bytes, const std::function<void()>& thread) {
  const uint64_t threads = uint64_t{block.x} * block.y * block.z;
  const uint64_t blocks = uint64_t{grid.x} * grid.y * grid.z;
  if (threads == 0 || threads > kMostThreads || block.z > 64 || blocks == 0 || grid.x > INT32_MAX ||
      grid.y > 65535 || grid.z > 65535) {
    return cudaErrorInvalidConfiguration;
  }
  ++grids;
  dynamic_shared_bytes = shared_bytes;
  body = &thread;
  gridDim = grid;
  blockDim = block;
  for (uint64_t i = 0; i < blocks; ++i) {
    const uint64_t k = reversed ? blocks - 1 - i : i;
    blockIdx = dim3(static_cast<unsigned>(k % grid.x), static_cast<unsigned>(k / grid.x % grid.y),
                    static_cast<unsigned>(k / grid.x / grid.y));
    run_block(static_cast<unsigned>(threads));
  }
  return cudaSuccess;
}

unsigned lane() { return current % kWarp; }

uint64_t exchange(uint64_t value, unsigned source) {
  const unsigned me = current;
  auto& place = handed[fibers[me].shuffles++ % 2];
  place[me] = value;
  wait(State::at_shuffle);
  return place[me - me % kWarp + source];
}

unsigned ballot(bool value) {
  const unsigned me = current;
  auto& place = handed[fibers[me].shuffles++ % 2];
  place[me] = value;
  wait(State::at_shuffle);
  unsigned those = 0;
  for (unsigned i = 0; i < kWarp; ++i) those |= unsigned(place[me - me % kWarp + i] != 0) << i;
  return those;
}

void* dynamic_shared_memory() { return dynamic_shared.get(); }

}  // namespace stand_in

void __syncthreads() { stand_in::wait(stand_in::State::at_barrier); }

// For the tests: the order of threads and blocks, the number of launches, and memory whose end
// AddressSanitizer guards.
extern "C" void stand_in_reverse(bool reverse) { stand_in::reversed = reverse; }
extern "C" int stand_in_grids() { return stand_in::grids; }
extern "C" void* stand_in_allocate(size_t bytes) {
  void* memory = nullptr;
  return posix_memalign(&memory, 16, bytes) == 0 ? memory : nullptr;
}
extern "C" void stand_in_free(void* memory) { std::free(memory); }
