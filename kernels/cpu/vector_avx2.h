// Vectors of 32 bytes (AVX2 with FMA): what the loops in micro.inc and strips.inc are written in.
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

#ifdef MPK_X86

namespace mpk::avx2 {

#define MPK_HERE MPK_TARGET("avx2,fma")
#define MPK_OP MPK_HERE static inline __attribute__((always_inline))

// Integer additions are associative, so the compiler would re-associate the sums over an unrolled k and then run out of
// registers. `settle` makes a sum opaque where it stands, as `keep` does a value. A `Factor` is what a product needs of
// its second factor.
struct U64 {
  using T = std::uint64_t;
  using Reg = __m256i;
  static constexpr Index kLanes = 4;
  static constexpr int kAcross = 1;  // vectors in a row of a micro-kernel's tile
  static constexpr Index kKC = 256;
  static constexpr bool kHasPairs = true;
  static constexpr bool kTwice = true;  // two multiplies for a product
  struct Factor {
    Reg whole, swapped;
  };
  struct Sum {
    Reg low, cross;
  };

  MPK_OP void keep(Reg& x) { asm volatile("" : "+x"(x)); }
  MPK_OP Reg load(const T* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
  MPK_OP void store(T* to, Reg x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x); }
  MPK_OP Reg broadcast(const T* from) { return _mm256_set1_epi64x(static_cast<long long>(*from)); }
  MPK_OP Reg add(Reg x, Reg y) { return _mm256_add_epi64(x, y); }
  MPK_OP Reg sub(Reg x, Reg y) { return _mm256_sub_epi64(x, y); }
  MPK_OP Reg mask(Index count) {
    return _mm256_cmpgt_epi64(_mm256_set1_epi64x(count), _mm256_setr_epi64x(0, 1, 2, 3));
  }
  MPK_OP Reg load_first(const T* from, Index count) {
    return _mm256_maskload_epi64(reinterpret_cast<const long long*>(from), mask(count));
  }
  MPK_OP void store_first(T* to, Reg x, Index count) {
    _mm256_maskstore_epi64(reinterpret_cast<long long*>(to), mask(count), x);
  }

  MPK_OP Factor factor(Reg y) { return {y, _mm256_shuffle_epi32(y, 0xB1)}; }
  // A weight as it is kept for rows of outputs: twice, with its halves swapped the second time.
  static constexpr Index kPrepared = 2;
  static void prepare(T weight, T* to) { to[0] = weight, to[1] = weight >> 32 | weight << 32; }
  MPK_OP Factor prepared(const T* from) { return {broadcast(from), broadcast(from + 1)}; }

  MPK_OP Sum zero() { return {_mm256_setzero_si256(), _mm256_setzero_si256()}; }
  MPK_OP void add_product(Sum& sum, Reg x, const Factor& y) {
    sum.low = _mm256_add_epi64(sum.low, _mm256_mul_epu32(x, y.whole));
    sum.cross = _mm256_add_epi32(sum.cross, _mm256_mullo_epi32(x, y.swapped));
  }
  MPK_OP void settle(Sum& sum) { keep(sum.low), keep(sum.cross); }
  MPK_OP Reg finish(const Sum& sum) {
    const Reg both = _mm256_add_epi32(sum.cross, _mm256_srli_epi64(sum.cross, 32));
    return _mm256_add_epi64(sum.low, _mm256_slli_epi64(both, 32));
  }

  // out[width k + j] = from[column[j] + k], for `width` columns and 4 values of k; `out` is aligned.
  static constexpr int kTransposed = 4;
  template <int width>
  MPK_HERE static void transpose(const T* from, const Index* column, T* out) {
    for (int j = 0; j < width; j += 4) {
      const Reg c0 = load(from + column[j]), c1 = load(from + column[j + 1]);
      const Reg c2 = load(from + column[j + 2]), c3 = load(from + column[j + 3]);
      const Reg even01 = _mm256_unpacklo_epi64(c0, c1), odd01 = _mm256_unpackhi_epi64(c0, c1);
      const Reg even23 = _mm256_unpacklo_epi64(c2, c3), odd23 = _mm256_unpackhi_epi64(c2, c3);
      store(out + j, _mm256_permute2x128_si256(even01, even23, 0x20));
      store(out + j + width, _mm256_permute2x128_si256(odd01, odd23, 0x20));
      store(out + j + 2 * width, _mm256_permute2x128_si256(even01, even23, 0x31));
      store(out + j + 3 * width, _mm256_permute2x128_si256(odd01, odd23, 0x31));
    }
  }
};

// Elements of 4 bytes: out[width k + j] = from[column[j] + k], for `width` columns and 8 values of k.
template <int width>
MPK_HERE inline void transpose32(const void* source, const Index* column, void* target) {
  const std::uint32_t* from = static_cast<const std::uint32_t*>(source);
  std::uint32_t* out = static_cast<std::uint32_t*>(target);
  for (int first = 0; first < width; first += 8) {
    __m256i c[8], pair[8], four[8];
    for (int j = 0; j < 8; ++j)
      c[j] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from + column[first + j]));
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
      __m256i* low = reinterpret_cast<__m256i*>(out + width * k + first);
      __m256i* high = reinterpret_cast<__m256i*>(out + width * (k + 4) + first);
      _mm256_storeu_si256(low, _mm256_permute2x128_si256(four[k], four[4 + k], 0x20));
      _mm256_storeu_si256(high, _mm256_permute2x128_si256(four[k], four[4 + k], 0x31));
    }
  }
}

struct U32 {
  using T = std::uint32_t;
  using Reg = __m256i;
  static constexpr Index kLanes = 8;
  static constexpr int kAcross = 2;
  static constexpr Index kKC = 384;
  static constexpr bool kHasPairs = false;  // as fast as the plain one here: the adders are what is busy
  static constexpr bool kTwice = false;
  using Factor = Reg;
  using Sum = Reg;

  MPK_OP void keep(Reg& x) { asm volatile("" : "+x"(x)); }
  MPK_OP Reg load(const T* from) { return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)); }
  MPK_OP void store(T* to, Reg x) { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), x); }
  MPK_OP Reg broadcast(const T* from) { return _mm256_set1_epi32(static_cast<int>(*from)); }
  MPK_OP Reg add(Reg x, Reg y) { return _mm256_add_epi32(x, y); }
  MPK_OP Reg mask(Index count) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(count)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
  MPK_OP Reg load_first(const T* from, Index count) {
    return _mm256_maskload_epi32(reinterpret_cast<const int*>(from), mask(count));
  }
  MPK_OP void store_first(T* to, Reg x, Index count) {
    _mm256_maskstore_epi32(reinterpret_cast<int*>(to), mask(count), x);
  }

  MPK_OP Factor factor(Reg y) { return y; }
  static constexpr Index kPrepared = 1;
  static void prepare(T weight, T* to) { *to = weight; }
  MPK_OP Factor prepared(const T* from) { return broadcast(from); }

  MPK_OP Sum zero() { return _mm256_setzero_si256(); }
  MPK_OP void add_product(Sum& sum, Reg x, Factor y) { sum = _mm256_add_epi32(sum, _mm256_mullo_epi32(x, y)); }
  MPK_OP void settle(Sum& sum) { keep(sum); }
  MPK_OP Reg finish(Sum sum) { return sum; }

  static constexpr int kTransposed = 8;
  template <int width>
  static void transpose(const T* from, const Index* column, T* out) {
    transpose32<width>(from, column, out);
  }
};

struct F32 {
  using T = float;
  using Reg = __m256;
  static constexpr Index kLanes = 8;
  static constexpr int kAcross = 2;
  static constexpr Index kKC = 384;
  static constexpr bool kHasPairs = false;  // not exact
  static constexpr bool kTwice = false;
  using Factor = Reg;
  using Sum = Reg;

  MPK_OP void keep(Reg& x) { asm volatile("" : "+x"(x)); }
  MPK_OP Reg load(const T* from) { return _mm256_loadu_ps(from); }
  MPK_OP void store(T* to, Reg x) { _mm256_storeu_ps(to, x); }
  MPK_OP Reg broadcast(const T* from) { return _mm256_broadcast_ss(from); }
  MPK_OP Reg add(Reg x, Reg y) { return _mm256_add_ps(x, y); }
  MPK_OP Reg load_first(const T* from, Index count) { return _mm256_maskload_ps(from, U32::mask(count)); }
  MPK_OP void store_first(T* to, Reg x, Index count) { _mm256_maskstore_ps(to, U32::mask(count), x); }

  MPK_OP Factor factor(Reg y) { return y; }
  static constexpr Index kPrepared = 1;
  static void prepare(T weight, T* to) { *to = weight; }
  MPK_OP Factor prepared(const T* from) { return broadcast(from); }

  MPK_OP Sum zero() { return _mm256_setzero_ps(); }
  MPK_OP void add_product(Sum& sum, Reg x, Factor y) { sum = _mm256_fmadd_ps(x, y, sum); }
  MPK_OP void settle(Sum&) {}
  MPK_OP Reg finish(Sum sum) { return sum; }

  static constexpr int kTransposed = 8;
  template <int width>
  static void transpose(const T* from, const Index* column, T* out) {
    transpose32<width>(from, column, out);
  }
};

#include "micro.inc"
#include "strips.inc"

#undef MPK_OP
#undef MPK_HERE

}  // namespace mpk::avx2

#endif
