// Small kernels, right and wrong, for the emulation of devices. The argument says which.
#include <cstdio>
#include <string>

#include "device.h"

using namespace mpg;

struct Nothing {};
static int wrong = 0;

static void expect(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "not so: %s\n", what);
  wrong = 1;
}

template <int D>
static void one_distance() {
  const uint64_t mine = 1000u * static_cast<uint64_t>(thread()) + 7;
  expect(shuffle_xor<D>(mine) == 1000u * static_cast<uint64_t>(thread() ^ D) + 7, "shuffle_xor");
  if constexpr (2 * D < WAVE) one_distance<2 * D>();
}

template <int LANES>
static void over_lanes() {
  uint32_t v[64];
  for (int i = 0; i < 64; ++i) v[i] = static_cast<uint32_t>(thread() * 64 + i);
  sum_over_lanes<LANES, 64>(v);
  const int first = thread() / LANES * LANES;
  for (int i = 0; i < 64 / LANES; ++i) {
    uint32_t sum = 0;
    for (int lane = 0; lane < LANES; ++lane) sum += (first + lane) * 64 + thread() % LANES * (64 / LANES) + i;
    expect(v[i] == sum, "sum_over_lanes");
  }
  if constexpr (2 * LANES <= WAVE) over_lanes<2 * LANES>();
}

static void right(Nothing) {
  one_distance<1>();
  over_lanes<1>();
  const int first = thread() / WAVE * WAVE;
  expect(wave_sum(thread()) == WAVE * first + WAVE * (WAVE - 1) / 2, "wave_sum");
  int* const shared = lds<int>();
  shared[thread()] = thread();
  sync();
  expect(shared[THREADS - 1 - thread()] == THREADS - 1 - thread(), "LDS after a barrier");
}

static void poison(Nothing) { expect(lds<uint32_t>()[thread()] == 0xA5A5A5A5u, "LDS starts as poison"); }
static void past(Nothing) { lds<int>()[thread() + 1] = 1; }
static void left(Nothing) {
  if (thread() == 5) return;
  sync();
}
static void two(Nothing) {
  if (thread() < 128) {
    sync();
  } else {
    sync();
  }
}
static void lane(Nothing) {
  if (thread() != 3) wave_sum(thread());
}

int main(int, char** arguments) {
  const std::string which = arguments[1];
  auto* const kernel = which == "right"    ? &right
                       : which == "poison" ? &poison
                       : which == "past"   ? &past
                       : which == "left"   ? &left
                       : which == "two"    ? &two
                                           : &lane;
  for (unsigned order : {0u, 1u, 5u}) {
    emulated::order() = order;
    launch(kernel, 3, sizeof(int) * THREADS, nullptr, Nothing{});
  }
  for (int64_t divisor : {1, 2, 3, 7, 9, 224, 65537, 2147483647}) {
    const Divider by = divider(divisor);
    for (int64_t n : {0, 1, 6, 7, 8, 223, 224, 65536, 1000003, 2147483646, 2147483647}) {
      expect(by.quotient(static_cast<int>(n)) == n / divisor, "Divider");
    }
  }
  return wrong;
}
