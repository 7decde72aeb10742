// The innermost product with AVX2. See micro_portable.h for what a micro-kernel computes.
//
// Modulo 2^64 a product of two elements takes two vector multiplies for four lanes. With a = aL + 2^32 aH and
// b = bL + 2^32 bH,
//
//     a b = aL bL + 2^32 ((aL bH + aH bL) mod 2^32)        modulo 2^64.
//
// The low products are summed in 64-bit lanes (vpmuludq). The cross term counts modulo 2^32 only, so one 32-bit
// multiply (vpmulld) of the broadcast a = [aL aH ...] with the half-swapped b = [bH bL ...] gives both cross products,
// which are summed in 32-bit lanes. The two sums are joined once, at the end.
#pragma once

#include "common.h"

#ifdef MPK_X86

namespace mpk {

// Integer additions are associative, so the compiler would re-associate the sums over an unrolled k and then run out of
// registers. This makes a sum opaque where it stands.
#define MPK_KEEP(v) asm volatile("" : "+x"(v))

#define MPK_FOR_ROWS(step) step(0) step(1) step(2) step(3) step(4) step(5)

struct MicroAvx2U64 {
  using T = std::uint64_t;
  using Kernel = void (*)(Index kc, const T* a, const T* b, const Index* offset, T* c, Index ldc, bool accumulate);
  static constexpr int kMR = 6, kNR = 4;
  static constexpr Index kKC = 256, kMC = 96, kNC = 1024;

  template <int R>
  MPK_TARGET("avx2")
  static void run(Index kc, const T* a, const T* b, const Index* offset, T* c, Index ldc, bool accumulate) {
    const __m256i zero = _mm256_setzero_si256();
    __m256i low0 = zero, low1 = zero, low2 = zero, low3 = zero, low4 = zero, low5 = zero;
    __m256i cross0 = zero, cross1 = zero, cross2 = zero, cross3 = zero, cross4 = zero, cross5 = zero;
#pragma GCC unroll 4
    for (Index k = 0; k < kc; ++k, a += R) {
      const __m256i bv = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(b + offset[k]));
      const __m256i swapped = _mm256_shuffle_epi32(bv, 0xB1);
#define MPK_STEP(i)                                                              \
  if constexpr (R > i) {                                                         \
    const __m256i av = _mm256_set1_epi64x(static_cast<long long>(a[i]));         \
    low##i = _mm256_add_epi64(low##i, _mm256_mul_epu32(av, bv));                 \
    MPK_KEEP(low##i);                                                            \
    cross##i = _mm256_add_epi32(cross##i, _mm256_mullo_epi32(av, swapped));      \
    MPK_KEEP(cross##i);                                                          \
  }
      MPK_FOR_ROWS(MPK_STEP)
#undef MPK_STEP
    }
#define MPK_STEP(i)                                                                                               \
  if constexpr (R > i) {                                                                                          \
    __m256i* to = reinterpret_cast<__m256i*>(c + i * ldc);                                                        \
    const __m256i both = _mm256_add_epi32(cross##i, _mm256_srli_epi64(cross##i, 32));                             \
    __m256i sum = _mm256_add_epi64(low##i, _mm256_slli_epi64(both, 32));                                          \
    if (accumulate) sum = _mm256_add_epi64(sum, _mm256_loadu_si256(to));                                          \
    _mm256_storeu_si256(to, sum);                                                                                 \
  }
    MPK_FOR_ROWS(MPK_STEP)
#undef MPK_STEP
  }

  static constexpr Kernel kKernels[kMR + 1] = {nullptr, run<1>, run<2>, run<3>, run<4>, run<5>, run<6>};
};

struct MicroAvx2U32 {
  using T = std::uint32_t;
  using Kernel = void (*)(Index kc, const T* a, const T* b, const Index* offset, T* c, Index ldc, bool accumulate);
  static constexpr int kMR = 6, kNR = 16;
  static constexpr Index kKC = 384, kMC = 96, kNC = 1024;

  template <int R>
  MPK_TARGET("avx2")
  static void run(Index kc, const T* a, const T* b, const Index* offset, T* c, Index ldc, bool accumulate) {
    const __m256i zero = _mm256_setzero_si256();
    __m256i left0 = zero, left1 = zero, left2 = zero, left3 = zero, left4 = zero, left5 = zero;
    __m256i right0 = zero, right1 = zero, right2 = zero, right3 = zero, right4 = zero, right5 = zero;
#pragma GCC unroll 4
    for (Index k = 0; k < kc; ++k, a += R) {
      const __m256i* row = reinterpret_cast<const __m256i*>(b + offset[k]);
      const __m256i b0 = _mm256_loadu_si256(row), b1 = _mm256_loadu_si256(row + 1);
#define MPK_STEP(i)                                                        \
  if constexpr (R > i) {                                                   \
    const __m256i av = _mm256_set1_epi32(static_cast<int>(a[i]));          \
    left##i = _mm256_add_epi32(left##i, _mm256_mullo_epi32(av, b0));       \
    MPK_KEEP(left##i);                                                     \
    right##i = _mm256_add_epi32(right##i, _mm256_mullo_epi32(av, b1));     \
    MPK_KEEP(right##i);                                                    \
  }
      MPK_FOR_ROWS(MPK_STEP)
#undef MPK_STEP
    }
#define MPK_STEP(i)                                                                             \
  if constexpr (R > i) {                                                                        \
    __m256i* to = reinterpret_cast<__m256i*>(c + i * ldc);                                      \
    if (accumulate) {                                                                           \
      left##i = _mm256_add_epi32(left##i, _mm256_loadu_si256(to));                              \
      right##i = _mm256_add_epi32(right##i, _mm256_loadu_si256(to + 1));                        \
    }                                                                                           \
    _mm256_storeu_si256(to, left##i);                                                           \
    _mm256_storeu_si256(to + 1, right##i);                                                      \
  }
    MPK_FOR_ROWS(MPK_STEP)
#undef MPK_STEP
  }

  static constexpr Kernel kKernels[kMR + 1] = {nullptr, run<1>, run<2>, run<3>, run<4>, run<5>, run<6>};
};

}  // namespace mpk

#endif
