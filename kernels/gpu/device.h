// One dialect for three compilers: nvcc, hipcc, and any C++17 compiler, which runs the kernels on the CPU
// (emulated.h).
//
// Kernels use only what is declared here: KERNEL, DEVICE, UNROLL, lds<T>(), thread(), block(), sync(),
// shuffle_xor<D>() and what is built of them. A kernel takes one struct by value and is started by launch(). Blocks
// have one dimension, grids too. Wave sizes are never literal: they are WAVE, a compile-time constant.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__HIP__) || defined(__HIPCC__)
#include <hip/hip_runtime.h>
#define MPG_HIP 1
#elif defined(__CUDACC__)
#include <cuda_runtime.h>
#define MPG_CUDA 1
#else
#define MPG_EMULATED 1
#endif

#define MPG_PRAGMA(text) _Pragma(#text)

#if defined(MPG_EMULATED)
#define UNROLL
#define NO_UNROLL
#include "emulated.h"
#else
#define UNROLL MPG_PRAGMA(unroll)
#define NO_UNROLL MPG_PRAGMA(unroll 1)
#include "device_real.h"
#endif

namespace mpg {

// Threads of every block, whatever the wave.
constexpr int THREADS = 256;
constexpr int WAVES = THREADS / WAVE;
static_assert(THREADS == 256 && THREADS % WAVE == 0, "blocks are whole waves");

BOTH int ceil_div(int a, int b) { return (a + b - 1) / b; }

// The value of the lane whose number differs by the power of two D: within 16 lanes by permutations in the vector unit
// where the machine has them (GCN's DPP), since there a shuffle goes through the LDS.
template <int D, class T>
DEVICE T shuffle_xor(T v) {
  static_assert(D > 0 && D < WAVE && (D & (D - 1)) == 0, "a power of two within the wave");
  if constexpr (!HAS_DPP || D > 8) {
    return shuffle_xor_any(v, D);
  } else if constexpr (D == 1) {
    return dpp<QUAD_1032>(v);
  } else if constexpr (D == 2) {
    return dpp<QUAD_2301>(v);
  } else if constexpr (D == 4) {  // i ^ 3 ^ 7
    return dpp<ROW_HALF_MIRROR>(dpp<QUAD_3210>(v));
  } else {  // (i + 8) modulo 16
    return dpp<ROW_ROTATE_8>(v);
  }
}

// One of two values. By value on purpose: `which ? v[0] : v[1]` would choose an address, and move v from registers to
// memory.
template <class T>
DEVICE T choose(bool which, T yes, T no) {
  return which ? yes : no;
}

// Recursive halving over LANES neighbouring lanes: N values a lane become N / LANES, the first of which is the sum of
// value (lane % LANES) * (N / LANES) over all of them. N - N / LANES shuffles, where a sum of each value takes N log2
// LANES.
template <int LANES, int N, int ALL, class T>
DEVICE void sum_over_lanes(T (&v)[ALL]) {
  static_assert(N % LANES == 0 && N <= ALL, "every lane keeps as many values");
  if constexpr (LANES > 1) {
    constexpr int D = LANES / 2, KEPT = N / 2;
    const bool upper = (thread() & D) != 0;
    UNROLL
    for (int i = 0; i < KEPT; ++i) {
      const T given = choose<T>(upper, v[i], v[i + KEPT]), kept = choose<T>(upper, v[i + KEPT], v[i]);
      v[i] = kept + shuffle_xor<D>(given);
    }
    sum_over_lanes<D, KEPT>(v);
  }
}

// The sum over the whole wave, in every lane.
template <int D = WAVE / 2, class T>
DEVICE T wave_sum(T v) {
  if constexpr (D == 0) {
    return v;
  } else {
    return wave_sum<D / 2>(v + shuffle_xor<(D > 0 ? D : 1)>(v));
  }
}

// Division of n in 0 .. 2^31 - 1 by a number known at launch: a multiplication and a shift (Granlund, Montgomery
// 1994).
struct Divider {
  uint32_t divisor, factor, shift;
  DEVICE int quotient(int n) const {
    const uint32_t u = static_cast<uint32_t>(n);
    return static_cast<int>((static_cast<uint32_t>((static_cast<uint64_t>(u) * factor) >> 32) + u) >> shift);
  }
};

inline Divider divider(int64_t divisor) {
  uint32_t shift = 0;
  while ((int64_t{1} << shift) < divisor) ++shift;
  const uint64_t factor = ((uint64_t{1} << 32) * ((uint64_t{1} << shift) - divisor)) / divisor + 1;
  return {static_cast<uint32_t>(divisor), static_cast<uint32_t>(factor), shift};
}

}  // namespace mpg
