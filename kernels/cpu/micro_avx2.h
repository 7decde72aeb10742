// The innermost product with AVX2. See micro_portable.h for what a micro-kernel computes.
//
// Modulo 2^64 a product of two elements takes two vector multiplies for four lanes. With a = aL + 2^32 aH and
// b = bL + 2^32 bH,
//
//     a b = aL bL + 2^32 ((aL bH + aH bL) mod 2^32)        modulo 2^64.
//
// The low products are summed in 64-bit lanes (vpmuludq). The cross term counts modulo 2^32 only, so one 32-bit
// multiply (vpmulld) of a = [aL aH ...] with the half-swapped b = [bH bL ...] gives both cross products, which are
// summed in 32-bit lanes. The two sums are joined once, at the end.
#pragma once

#include "common.h"
#include "micro_portable.h"
#include "strips_avx2.h"

#ifdef MPK_X86

namespace mpk {

// Integer additions are associative, so the compiler would re-associate the sums over an unrolled k and then run out of
// registers. This makes a sum opaque where it stands.
#define MPK_KEEP(v) asm volatile("" : "+x"(v))

// Sums are named, not in arrays, so that they stay in registers.
#define MPK_FOR_ROWS(step) step(0) step(1) step(2) step(3) step(4) step(5)

struct MicroAvx2U64 {
  using T = std::uint64_t;
  using Strips = StripsAvx2U64;
  using Kernel = void (*)(const Tile<T>& tile);
  static constexpr bool kHasPairs = true;
  static constexpr int kMR = 6, kPairedMR = 6, kNR = 4, kTransposed = 4;
  static constexpr Index kKC = 256, kMC = 96, kNC = 1024;

  MPK_TARGET("avx2") static __m256i load(const T* from) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  MPK_TARGET("avx2") static __m256i broadcast(const T* from) {
    return _mm256_set1_epi64x(static_cast<long long>(*from));
  }
  MPK_TARGET("avx2") static __m256i swap(__m256i x) { return _mm256_shuffle_epi32(x, 0xB1); }
  MPK_TARGET("avx2") static __m256i join(__m256i low, __m256i cross) {
    const __m256i both = _mm256_add_epi32(cross, _mm256_srli_epi64(cross, 32));
    return _mm256_add_epi64(low, _mm256_slli_epi64(both, 32));
  }
  MPK_TARGET("avx2") static void store(T* to, __m256i sum, bool accumulate) {
    if (accumulate) sum = _mm256_add_epi64(sum, load(to));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), sum);
  }

#define MPK_SUMS                                                                                \
  const __m256i zero = _mm256_setzero_si256();                                                  \
  __m256i low0 = zero, low1 = zero, low2 = zero, low3 = zero, low4 = zero, low5 = zero;         \
  __m256i cross0 = zero, cross1 = zero, cross2 = zero, cross3 = zero, cross4 = zero, cross5 = zero;
#define MPK_ADD_PRODUCT(i, x, y, swapped_y)                                 \
  low##i = _mm256_add_epi64(low##i, _mm256_mul_epu32(x, y));                \
  MPK_KEEP(low##i);                                                         \
  cross##i = _mm256_add_epi32(cross##i, _mm256_mullo_epi32(x, swapped_y));  \
  MPK_KEEP(cross##i);

  template <int R>
  MPK_TARGET("avx2") static void plain(const Tile<T>& tile) {
    MPK_SUMS
    const T* a = tile.a;
    const Index* offset = tile.offset;
    const Index* const end = offset + tile.kc;
    for (; offset != end; ++offset, a += R) {
      const __m256i b = load(tile.b + *offset), swapped = swap(b);
#define MPK_STEP(i)                         \
  if constexpr (R > i) {                    \
    const __m256i ai = broadcast(a + i);    \
    MPK_ADD_PRODUCT(i, ai, b, swapped)      \
  }
      MPK_FOR_ROWS(MPK_STEP)
#undef MPK_STEP
    }
#define MPK_STEP(i) \
  if constexpr (R > i) store(tile.c + tile.row[i], join(low##i, cross##i), tile.accumulate);
    MPK_FOR_ROWS(MPK_STEP)
#undef MPK_STEP
  }

  template <int R>
  MPK_TARGET("avx2") static void paired(const Tile<T>& tile) {
    MPK_SUMS
    const T* a = tile.a;
    const Index* offset = tile.offset;
    const Index* const end = offset + tile.kc;
    for (; offset != end; offset += 2, a += 2 * R) {
      const __m256i b0 = load(tile.b + offset[0]), b1 = load(tile.b + offset[1]);
#define MPK_STEP(i)                                                               \
  if constexpr (R > i) {                                                          \
    const __m256i s = _mm256_add_epi64(broadcast(a + 2 * i), b1);                 \
    const __m256i t = _mm256_add_epi64(broadcast(a + 2 * i + 1), b0);             \
    MPK_ADD_PRODUCT(i, s, t, swap(t))                                             \
  }
      MPK_FOR_ROWS(MPK_STEP)
#undef MPK_STEP
    }
    const __m256i of_column = load(tile.column_excess);
#define MPK_STEP(i)                                                                               \
  if constexpr (R > i) {                                                                          \
    const __m256i excess = _mm256_add_epi64(of_column, broadcast(tile.row_excess + i));           \
    store(tile.c + tile.row[i], _mm256_sub_epi64(join(low##i, cross##i), excess), tile.accumulate); \
  }
    MPK_FOR_ROWS(MPK_STEP)
#undef MPK_STEP
  }
#undef MPK_ADD_PRODUCT
#undef MPK_SUMS

  // The sums over pairs of b0 b1 for the columns of one panel.
  MPK_TARGET("avx2") static void column_excess(Index kc, const T* b, const Index* offset, T* excess) {
    __m256i low = _mm256_setzero_si256(), cross = low;
    for (Index k = 0; k < kc; k += 2) {
      const __m256i b0 = load(b + offset[k]), b1 = load(b + offset[k + 1]);
      low = _mm256_add_epi64(low, _mm256_mul_epu32(b0, b1));
      cross = _mm256_add_epi32(cross, _mm256_mullo_epi32(b0, swap(b1)));
    }
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(excess), join(low, cross));
  }

  // out[4 k + j] = from[column[j] + k], for 4 columns and 4 values of k.
  MPK_TARGET("avx2") static void transpose(const T* from, const Index* column, T* out) {
    const __m256i c0 = load(from + column[0]), c1 = load(from + column[1]);
    const __m256i c2 = load(from + column[2]), c3 = load(from + column[3]);
    const __m256i even01 = _mm256_unpacklo_epi64(c0, c1), odd01 = _mm256_unpackhi_epi64(c0, c1);
    const __m256i even23 = _mm256_unpacklo_epi64(c2, c3), odd23 = _mm256_unpackhi_epi64(c2, c3);
    __m256i* to = reinterpret_cast<__m256i*>(out);
    _mm256_store_si256(to + 0, _mm256_permute2x128_si256(even01, even23, 0x20));
    _mm256_store_si256(to + 1, _mm256_permute2x128_si256(odd01, odd23, 0x20));
    _mm256_store_si256(to + 2, _mm256_permute2x128_si256(even01, even23, 0x31));
    _mm256_store_si256(to + 3, _mm256_permute2x128_si256(odd01, odd23, 0x31));
  }

  static constexpr Kernel kPlain[kMR + 1] = {nullptr, plain<1>, plain<2>, plain<3>, plain<4>, plain<5>, plain<6>};
  static constexpr Kernel kPaired[kMR + 1] = {nullptr,   paired<1>, paired<2>, paired<3>,
                                              paired<4>, paired<5>, paired<6>};
};

struct MicroAvx2U32 {
  using T = std::uint32_t;
  using Strips = StripsAvx2U32;
  using Kernel = void (*)(const Tile<T>& tile);
  static constexpr bool kHasPairs = false;  // as fast as the plain one here: the adders are what is busy
  static constexpr int kMR = 6, kNR = 16, kTransposed = 8;
  static constexpr Index kKC = 384, kMC = 96, kNC = 1024;

  template <int R>
  MPK_TARGET("avx2") static void plain(const Tile<T>& tile) {
    const __m256i zero = _mm256_setzero_si256();
    __m256i left0 = zero, left1 = zero, left2 = zero, left3 = zero, left4 = zero, left5 = zero;
    __m256i right0 = zero, right1 = zero, right2 = zero, right3 = zero, right4 = zero, right5 = zero;
    const T* a = tile.a;
    const Index* offset = tile.offset;
    const Index* const end = offset + tile.kc;
    for (; offset != end; ++offset, a += R) {
      const __m256i* b = reinterpret_cast<const __m256i*>(tile.b + *offset);
      const __m256i b0 = _mm256_loadu_si256(b), b1 = _mm256_loadu_si256(b + 1);
#define MPK_STEP(i)                                                        \
  if constexpr (R > i) {                                                   \
    const __m256i ai = _mm256_set1_epi32(static_cast<int>(a[i]));          \
    left##i = _mm256_add_epi32(left##i, _mm256_mullo_epi32(ai, b0));       \
    MPK_KEEP(left##i);                                                     \
    right##i = _mm256_add_epi32(right##i, _mm256_mullo_epi32(ai, b1));     \
    MPK_KEEP(right##i);                                                    \
  }
      MPK_FOR_ROWS(MPK_STEP)
#undef MPK_STEP
    }
#define MPK_STEP(i)                                                          \
  if constexpr (R > i) {                                                     \
    __m256i* to = reinterpret_cast<__m256i*>(tile.c + tile.row[i]);          \
    if (tile.accumulate) {                                                   \
      left##i = _mm256_add_epi32(left##i, _mm256_loadu_si256(to));           \
      right##i = _mm256_add_epi32(right##i, _mm256_loadu_si256(to + 1));     \
    }                                                                        \
    _mm256_storeu_si256(to, left##i);                                        \
    _mm256_storeu_si256(to + 1, right##i);                                   \
  }
    MPK_FOR_ROWS(MPK_STEP)
#undef MPK_STEP
  }

  // out[16 k + j] = from[column[j] + k], for 16 columns and 8 values of k: two 8x8 transpositions.
  MPK_TARGET("avx2") static void transpose(const T* from, const Index* column, T* out) {
    for (int half = 0; half < 16; half += 8) {
      __m256i c[8], pair[8], four[8];
      for (int j = 0; j < 8; ++j)
        c[j] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + column[half + j]));
      for (int j = 0; j < 8; j += 2) {
        pair[j] = _mm256_unpacklo_epi32(c[j], c[j + 1]);
        pair[j + 1] = _mm256_unpackhi_epi32(c[j], c[j + 1]);
      }
      for (int j = 0; j < 8; j += 4)
        for (int h = 0; h < 2; ++h) {
          four[j + 2 * h] = _mm256_unpacklo_epi64(pair[j + h], pair[j + 2 + h]);
          four[j + 2 * h + 1] = _mm256_unpackhi_epi64(pair[j + h], pair[j + 2 + h]);
        }
      for (int k = 0; k < 4; ++k) {
        __m256i* low = reinterpret_cast<__m256i*>(out + 16 * k + half);
        __m256i* high = reinterpret_cast<__m256i*>(out + 16 * (k + 4) + half);
        _mm256_store_si256(low, _mm256_permute2x128_si256(four[k], four[4 + k], 0x20));
        _mm256_store_si256(high, _mm256_permute2x128_si256(four[k], four[4 + k], 0x31));
      }
    }
  }

  static constexpr Kernel kPlain[kMR + 1] = {nullptr, plain<1>, plain<2>, plain<3>, plain<4>, plain<5>, plain<6>};
};

#undef MPK_FOR_ROWS
#undef MPK_KEEP

}  // namespace mpk

#endif
