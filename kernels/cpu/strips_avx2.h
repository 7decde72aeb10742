// The innermost loops of a depthwise convolution with AVX2. The products are those of micro_avx2.h, lane by lane.
#pragma once

#include "common.h"
#include "strips_portable.h"

#ifdef MPK_X86

namespace mpk {

#define MPK_KEEP(v) asm volatile("" : "+x"(v))

struct StripsAvx2U64 {
  using T = std::uint64_t;
  static constexpr Index kLanes = 4;
  static constexpr Index kPrepared = 8;  // the weight in four lanes, then with its halves swapped
  static constexpr int kMostTaps = 5;

  MPK_TARGET("avx2") static __m256i load(const T* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  MPK_TARGET("avx2") static __m256i join(__m256i low, __m256i cross) {
    const __m256i both = _mm256_add_epi32(cross, _mm256_srli_epi64(cross, 32));
    return _mm256_add_epi64(low, _mm256_slli_epi64(both, 32));
  }

  static void prepare(T weight, T* prepared) {
    for (int i = 0; i < 4; ++i) prepared[i] = weight, prepared[4 + i] = weight >> 32 | weight << 32;
  }

  // V vectors of outputs from column j on; the last one only up to the width.
  template <int V>
  MPK_TARGET("avx2") static void vectors(const Correlation<T>& c, Index j) {
    const __m256i zero = _mm256_setzero_si256();
    __m256i low0 = zero, low1 = zero, low2 = zero, low3 = zero;
    __m256i cross0 = zero, cross1 = zero, cross2 = zero, cross3 = zero;
    const T* source = c.source + j;
    const T* w = c.weights;
    const Index* const end = c.offset + c.taps;
    for (const Index* offset = c.offset; offset != end; ++offset, w += kPrepared) {
      const T* from = source + *offset;
      const __m256i weight = load(w), swapped = load(w + 4);
#define MPK_STEP(i)                                                             \
  if constexpr (V > i) {                                                        \
    const __m256i x = load(from + 4 * i);                                       \
    low##i = _mm256_add_epi64(low##i, _mm256_mul_epu32(x, weight));             \
    MPK_KEEP(low##i);                                                           \
    cross##i = _mm256_add_epi32(cross##i, _mm256_mullo_epi32(x, swapped));      \
    MPK_KEEP(cross##i);                                                         \
  }
      MPK_STEP(0) MPK_STEP(1) MPK_STEP(2) MPK_STEP(3)
#undef MPK_STEP
    }
#define MPK_STEP(i) \
  if constexpr (V > i) store(c, j + 4 * i, join(low##i, cross##i));
    MPK_STEP(0) MPK_STEP(1) MPK_STEP(2) MPK_STEP(3)
#undef MPK_STEP
  }

  MPK_TARGET("avx2") static void store(const Correlation<T>& c, Index j, __m256i sum) {
    T* to = c.out + j;
    if (c.width - j >= kLanes) {
      if (c.accumulate) sum = _mm256_add_epi64(sum, load(to));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), sum);
      return;
    }
    const __m256i mask = _mm256_cmpgt_epi64(_mm256_set1_epi64x(c.width - j), _mm256_setr_epi64x(0, 1, 2, 3));
    long long* masked = reinterpret_cast<long long*>(to);
    if (c.accumulate) sum = _mm256_add_epi64(sum, _mm256_maskload_epi64(masked, mask));
    _mm256_maskstore_epi64(masked, mask, sum);
  }

  static void correlate(const Correlation<T>& c) {
    Index j = 0;
    for (; j + 3 * kLanes < c.width; j += 4 * kLanes) vectors<4>(c, j);
    const Index left = c.width - j;
    if (left > 2 * kLanes) return vectors<3>(c, j);
    if (left > kLanes) return vectors<2>(c, j);
    if (left > 0) vectors<1>(c, j);
  }

  template <int R>
  MPK_TARGET("avx2") static void project(const Projection<T>& p) {
    const __m256i zero = _mm256_setzero_si256();
    __m256i low0 = zero, low1 = zero, low2 = zero, low3 = zero, low4 = zero;
    __m256i cross0 = zero, cross1 = zero, cross2 = zero, cross3 = zero, cross4 = zero;
#define MPK_TAPS(step) step(0) step(1) step(2) step(3) step(4)
    for (Index r = 0; r < p.rows; ++r) {
      const T* dy = p.dy + r * p.dy_pitch;
      const T* source = p.source + r * p.source_pitch;
      for (Index j = 0; j < p.width; j += kLanes) {
        const __m256i d = load(dy + j), swapped = _mm256_shuffle_epi32(d, 0xB1);
#define MPK_STEP(i)                                                             \
  if constexpr (R > i) {                                                        \
    const __m256i x = load(source + p.offset[i] + j);                           \
    low##i = _mm256_add_epi64(low##i, _mm256_mul_epu32(x, d));                  \
    MPK_KEEP(low##i);                                                           \
    cross##i = _mm256_add_epi32(cross##i, _mm256_mullo_epi32(x, swapped));      \
    MPK_KEEP(cross##i);                                                         \
  }
        MPK_TAPS(MPK_STEP)
#undef MPK_STEP
      }
    }
#define MPK_STEP(i) \
  if constexpr (R > i) p.sums[i] += lanes_sum(join(low##i, cross##i));
    MPK_TAPS(MPK_STEP)
#undef MPK_STEP
#undef MPK_TAPS
  }

  MPK_TARGET("avx2") static T lanes_sum(__m256i x) {
    alignas(32) T lane[4];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lane), x);
    return lane[0] + lane[1] + lane[2] + lane[3];
  }

  static void project(int taps, const Projection<T>& p) {
    switch (taps) {
      case 1: return project<1>(p);
      case 2: return project<2>(p);
      case 3: return project<3>(p);
      case 4: return project<4>(p);
      default: return project<5>(p);
    }
  }
};

struct StripsAvx2U32 {
  using T = std::uint32_t;
  static constexpr Index kLanes = 8;
  static constexpr Index kPrepared = 1;
  static constexpr int kMostTaps = 5;

  MPK_TARGET("avx2") static __m256i load(const T* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }

  static void prepare(T weight, T* prepared) { *prepared = weight; }

  template <int V>
  MPK_TARGET("avx2") static void vectors(const Correlation<T>& c, Index j) {
    const __m256i zero = _mm256_setzero_si256();
    __m256i sum0 = zero, sum1 = zero, sum2 = zero, sum3 = zero;
    for (Index t = 0; t < c.taps; ++t) {
      const T* from = c.source + c.offset[t] + j;
      const __m256i weight = _mm256_set1_epi32(static_cast<int>(c.weights[t]));
#define MPK_STEP(i)                                                                          \
  if constexpr (V > i) {                                                                     \
    sum##i = _mm256_add_epi32(sum##i, _mm256_mullo_epi32(load(from + 8 * i), weight));       \
    MPK_KEEP(sum##i);                                                                        \
  }
      MPK_STEP(0) MPK_STEP(1) MPK_STEP(2) MPK_STEP(3)
#undef MPK_STEP
    }
#define MPK_STEP(i) \
  if constexpr (V > i) store(c, j + 8 * i, sum##i);
    MPK_STEP(0) MPK_STEP(1) MPK_STEP(2) MPK_STEP(3)
#undef MPK_STEP
  }

  MPK_TARGET("avx2") static void store(const Correlation<T>& c, Index j, __m256i sum) {
    T* to = c.out + j;
    if (c.width - j >= kLanes) {
      if (c.accumulate) sum = _mm256_add_epi32(sum, load(to));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), sum);
      return;
    }
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i mask = _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(c.width - j)), lane);
    int* masked = reinterpret_cast<int*>(to);
    if (c.accumulate) sum = _mm256_add_epi32(sum, _mm256_maskload_epi32(masked, mask));
    _mm256_maskstore_epi32(masked, mask, sum);
  }

  static void correlate(const Correlation<T>& c) {
    Index j = 0;
    for (; j + 3 * kLanes < c.width; j += 4 * kLanes) vectors<4>(c, j);
    const Index left = c.width - j;
    if (left > 2 * kLanes) return vectors<3>(c, j);
    if (left > kLanes) return vectors<2>(c, j);
    if (left > 0) vectors<1>(c, j);
  }

  template <int R>
  MPK_TARGET("avx2") static void project(const Projection<T>& p) {
    const __m256i zero = _mm256_setzero_si256();
    __m256i sum0 = zero, sum1 = zero, sum2 = zero, sum3 = zero, sum4 = zero;
#define MPK_TAPS(step) step(0) step(1) step(2) step(3) step(4)
    for (Index r = 0; r < p.rows; ++r) {
      const T* source = p.source + r * p.source_pitch;
      for (Index j = 0; j < p.width; j += kLanes) {
        const __m256i d = load(p.dy + r * p.dy_pitch + j);
#define MPK_STEP(i)                                                                                  \
  if constexpr (R > i) {                                                                             \
    sum##i = _mm256_add_epi32(sum##i, _mm256_mullo_epi32(load(source + p.offset[i] + j), d));        \
    MPK_KEEP(sum##i);                                                                                \
  }
        MPK_TAPS(MPK_STEP)
#undef MPK_STEP
      }
    }
#define MPK_STEP(i) \
  if constexpr (R > i) p.sums[i] += lanes_sum(sum##i);
    MPK_TAPS(MPK_STEP)
#undef MPK_STEP
#undef MPK_TAPS
  }

  MPK_TARGET("avx2") static T lanes_sum(__m256i x) {
    alignas(32) T lane[8];
    _mm256_store_si256(reinterpret_cast<__m256i*>(lane), x);
    return lane[0] + lane[1] + lane[2] + lane[3] + lane[4] + lane[5] + lane[6] + lane[7];
  }

  static void project(int taps, const Projection<T>& p) {
    switch (taps) {
      case 1: return project<1>(p);
      case 2: return project<2>(p);
      case 3: return project<3>(p);
      case 4: return project<4>(p);
      default: return project<5>(p);
    }
  }
};

#undef MPK_KEEP

}  // namespace mpk

#endif
