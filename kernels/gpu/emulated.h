// The dialect of device.h on the CPU, to test what kernels compute where there is no device. Not a fast back end.
//
// A block's threads are fibers: each runs until it waits for others, at a barrier or in a shuffle, and goes on when
// all that it waits for are there. So barriers, shuffles and LDS mean exactly what they mean on a device, and mistakes
// show:
//
//   a missing barrier         fibers run forward, backward or shuffled (set_order), and results differ
//   LDS read before written   it is filled with 0xA5 before every block
//   LDS written past its end  a canary behind it
//   a barrier not all reach   an error: threads that left, or wait at another line, are named
//
// What it cannot show: speed, coalescing, bank conflicts, races between blocks.
#pragma once

#include <ucontext.h>

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <numeric>
#include <type_traits>
#include <utility>
#include <vector>

#define DEVICE inline __attribute__((always_inline))
#define BOTH constexpr
#define KERNEL inline void
#define KERNEL_FOR(...) inline void

#ifndef MPG_WAVE
#define MPG_WAVE 64
#endif

namespace mpg {

constexpr int WAVE = MPG_WAVE;
// Waves of 64 stand for GCN and its DPP, waves of 32 for NVIDIA.
constexpr bool HAS_DPP = WAVE == 64;
constexpr int QUAD_1032 = 0xB1, QUAD_2301 = 0x4E, QUAD_3210 = 0x1B, ROW_ROTATE_8 = 0x128, ROW_HALF_MIRROR = 0x141;

namespace emulated {

constexpr size_t STACK_BYTES = 1 << 16;
constexpr size_t CANARY_BYTES = 64;
constexpr unsigned char POISON = 0xA5;

enum class State { ready, at_barrier, in_shuffle, done };

struct Fiber {
  ucontext_t start;
  void* here[5];  // __builtin_setjmp's: no system call, unlike swapcontext
  bool started;
  State state;
  int line;             // of the barrier it waits at
  unsigned shuffles;    // how many it has taken part in
  uint64_t given[2];    // by the parity of `shuffles`, so that one rendezvous a shuffle is enough
  std::unique_ptr<char[]> stack;
};

struct Block {
  std::vector<Fiber> fibers;
  std::vector<unsigned char> lds;
  void* scheduler[5];
  int number = 0, current = 0;
  void (*body)(const void*) = nullptr;
  const void* argument = nullptr;
};

inline Block& state() {
  static thread_local Block block;
  return block;
}

// 0 forward, 1 backward, others seed a shuffle of every round.
inline unsigned& order() {
  static unsigned value = 0;
  return value;
}

[[noreturn]] inline void fail(const char* what, int line) {
  std::fprintf(stderr, "emulated device: %s (line %d)\n", what, line);
  std::abort();
}

[[noreturn]] __attribute__((noinline)) inline void jump(void** to) { __builtin_longjmp(to, 1); }

__attribute__((noinline)) inline void wait(State why) {
  Block& block = state();
  Fiber& fiber = block.fibers[block.current];
  fiber.state = why;
  if (!__builtin_setjmp(fiber.here)) jump(block.scheduler);
}

inline void entry() {
  state().body(state().argument);
  Block& block = state();
  block.fibers[block.current].state = State::done;
  jump(block.scheduler);
}

__attribute__((noinline)) inline void resume(Block& block, int number) {
  Fiber& fiber = block.fibers[number];
  block.current = number;
  if (__builtin_setjmp(block.scheduler)) return;
  if (fiber.started) jump(fiber.here);
  fiber.started = true;
  setcontext(&fiber.start);
}

// Lets go those that wait for nobody any more. Returns how many threads are still alive.
inline int release(Block& block) {
  const int count = static_cast<int>(block.fibers.size());
  int alive = 0, waiting = 0, line = 0;
  bool moved = false;
  for (int first = 0; first < count; first += WAVE) {
    int shuffling = 0;
    for (int i = first; i < first + WAVE; ++i) {
      const Fiber& fiber = block.fibers[i];
      alive += fiber.state != State::done;
      shuffling += fiber.state == State::in_shuffle;
      if (fiber.state == State::at_barrier) {
        if (waiting++ == 0) line = fiber.line;
        if (fiber.line != line) fail("threads of a block wait at two barriers", fiber.line);
      }
    }
    if (shuffling == WAVE) {
      for (int i = first; i < first + WAVE; ++i) block.fibers[i].state = State::ready;
      moved = true;
    }
  }
  if (moved || alive == 0) return alive;
  if (waiting != count) fail("some threads wait at a barrier or in a shuffle that others do not reach", line);
  for (Fiber& fiber : block.fibers) fiber.state = State::ready;
  return alive;
}

inline void run_block(Block& block, size_t lds_bytes) {
  block.lds.assign(lds_bytes + CANARY_BYTES, POISON);
  for (Fiber& fiber : block.fibers) {
    fiber.started = false;
    fiber.state = State::ready;
    fiber.shuffles = 0;
    getcontext(&fiber.start);
    fiber.start.uc_stack.ss_sp = fiber.stack.get();
    fiber.start.uc_stack.ss_size = STACK_BYTES;
    fiber.start.uc_link = nullptr;
    makecontext(&fiber.start, entry, 0);
  }
  const int count = static_cast<int>(block.fibers.size());
  std::vector<int> turn(count);
  std::iota(turn.begin(), turn.end(), 0);
  if (order() == 1) {
    for (int i = 0; i < count; ++i) turn[i] = count - 1 - i;
  }
  uint32_t random = order() * 2654435761u + 1;
  do {
    if (order() > 1) {
      for (int i = count - 1; i > 0; --i) {
        random = random * 1664525u + 1013904223u;
        std::swap(turn[i], turn[(random >> 8) % (i + 1)]);
      }
    }
    for (int number : turn) {
      if (block.fibers[number].state == State::ready) resume(block, number);
    }
  } while (release(block));
  for (size_t i = lds_bytes; i < block.lds.size(); ++i) {
    if (block.lds[i] != POISON) fail("LDS was written past its end", static_cast<int>(i - lds_bytes));
  }
}

// `v` of the lane that `from` names, of those of this lane's wave.
template <class T>
T exchange(T v, int from) {
  static_assert(sizeof(T) <= sizeof(uint64_t), "a slot holds 8 bytes");
  Block& block = state();
  const int me = block.current;
  const unsigned parity = block.fibers[me].shuffles++ & 1;
  std::memcpy(&block.fibers[me].given[parity], &v, sizeof(T));
  wait(State::in_shuffle);
  T taken;
  std::memcpy(&taken, &state().fibers[me / WAVE * WAVE + from].given[parity], sizeof(T));
  return taken;
}

}  // namespace emulated

inline int thread() { return emulated::state().current; }
inline int block() { return emulated::state().number; }

inline void sync(int line = __builtin_LINE()) {
  emulated::Block& block = emulated::state();
  block.fibers[block.current].line = line;
  emulated::wait(emulated::State::at_barrier);
}

template <class T>
T* lds() {
  return reinterpret_cast<T*>(emulated::state().lds.data());
}

template <class T>
T shuffle_xor_any(T v, int distance) {
  return emulated::exchange(v, (thread() % WAVE) ^ distance);
}

// What the DPP controls above mean: each lane reads another one of its row of 16.
template <int CONTROL, class T>
T dpp(T v) {
  const int lane = thread() % WAVE, row = lane / 16 * 16, i = lane % 16;
  int from = i;
  if constexpr (CONTROL <= 0xFF) {  // within 4: two bits for each
    from = i / 4 * 4 + ((CONTROL >> (2 * (i % 4))) & 3);
  } else if constexpr (CONTROL == ROW_ROTATE_8) {
    from = (i + 16 - 8) % 16;
  } else {
    static_assert(CONTROL == ROW_HALF_MIRROR, "a control that has no meaning here yet");
    from = i / 8 * 8 + 7 - i % 8;
  }
  return emulated::exchange(v, row + from);
}

template <class P>
int launch(void (*kernel)(P), int64_t grid, size_t lds_bytes, void*, const P& params) {
  struct Call {
    void (*kernel)(P);
    const P* params;
  } call{kernel, &params};
  emulated::Block& block = emulated::state();
  while (block.fibers.size() < 256) {
    block.fibers.emplace_back();
    block.fibers.back().stack.reset(new char[emulated::STACK_BYTES]);
  }
  block.body = [](const void* argument) {
    const Call* found = static_cast<const Call*>(argument);
    found->kernel(*found->params);
  };
  block.argument = &call;
  for (int64_t number = 0; number < grid; ++number) {
    block.number = static_cast<int>(number);
    emulated::run_block(block, lds_bytes);
  }
  return 0;
}

inline int set_device(int) { return 0; }
inline const char* error_text(int) { return "no error"; }

}  // namespace mpg
