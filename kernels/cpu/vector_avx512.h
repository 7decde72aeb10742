// Vectors of 64 bytes (AVX-512 F and DQ): what the loops in micro.inc and strips.inc are written in.
//
// vpmullq multiplies modulo 2^64 by itself, for the price of the split product's multiplies and without its additions,
// shuffles and joins. What else there is does not pay: IFMA's 52-bit products need four of its instructions for eight
// elements (low, high, and two cross terms of 12 bits) and operands split beforehand, as much as a paired vpmullq;
// VNNI multiplies bytes and 16-bit words, of which a product modulo 2^64 takes 36 or 10.
#pragma once

#include "common.h"
#include "vector_avx2.h"

#ifdef MPK_X86

namespace mpk::avx512 {

#define MPK_HERE MPK_TARGET("avx512f,avx512dq,avx2,fma")
#define MPK_OP MPK_HERE static inline __attribute__((always_inline))

struct U64 {
  using T = std::uint64_t;
  using Reg = __m512i;
  static constexpr Index kLanes = 8;
  static constexpr int kAcross = 2;
  static constexpr Index kKC = 256;
  static constexpr bool kHasPairs = true;
  static constexpr bool kTwice = false;
  using Factor = Reg;
  using Sum = Reg;

  MPK_OP void keep(Reg& x) { asm volatile("" : "+v"(x)); }
  MPK_OP Reg load(const T* from) { return _mm512_loadu_si512(from); }
  MPK_OP void store(T* to, Reg x) { _mm512_storeu_si512(to, x); }
  MPK_OP Reg broadcast(const T* from) { return _mm512_set1_epi64(static_cast<long long>(*from)); }
  MPK_OP Reg add(Reg x, Reg y) { return _mm512_add_epi64(x, y); }
  MPK_OP Reg sub(Reg x, Reg y) { return _mm512_sub_epi64(x, y); }
  MPK_OP __mmask8 mask(Index count) { return static_cast<__mmask8>((1u << count) - 1); }
  MPK_OP Reg load_first(const T* from, Index count) { return _mm512_maskz_loadu_epi64(mask(count), from); }
  MPK_OP void store_first(T* to, Reg x, Index count) { _mm512_mask_storeu_epi64(to, mask(count), x); }

  MPK_OP Factor factor(Reg y) { return y; }
  static constexpr Index kPrepared = 1;
  static void prepare(T weight, T* to) { *to = weight; }
  MPK_OP Factor prepared(const T* from) { return broadcast(from); }

  MPK_OP Sum zero() { return _mm512_setzero_si512(); }
  MPK_OP void add_product(Sum& sum, Reg x, Factor y) { sum = _mm512_add_epi64(sum, _mm512_mullo_epi64(x, y)); }
  MPK_OP void settle(Sum& sum) { keep(sum); }
  MPK_OP Reg finish(Sum sum) { return sum; }

  static constexpr int kTransposed = 4;
  template <int width>
  static void transpose(const T* from, const Index* column, T* out) {
    avx2::U64::transpose<width>(from, column, out);
  }
};

struct U32 {
  using T = std::uint32_t;
  using Reg = __m512i;
  static constexpr Index kLanes = 16;
  static constexpr int kAcross = 2;
  static constexpr Index kKC = 384;
  static constexpr bool kHasPairs = false;
  static constexpr bool kTwice = false;
  using Factor = Reg;
  using Sum = Reg;

  MPK_OP void keep(Reg& x) { asm volatile("" : "+v"(x)); }
  MPK_OP Reg load(const T* from) { return _mm512_loadu_si512(from); }
  MPK_OP void store(T* to, Reg x) { _mm512_storeu_si512(to, x); }
  MPK_OP Reg broadcast(const T* from) { return _mm512_set1_epi32(static_cast<int>(*from)); }
  MPK_OP Reg add(Reg x, Reg y) { return _mm512_add_epi32(x, y); }
  MPK_OP __mmask16 mask(Index count) { return static_cast<__mmask16>((1u << count) - 1); }
  MPK_OP Reg load_first(const T* from, Index count) { return _mm512_maskz_loadu_epi32(mask(count), from); }
  MPK_OP void store_first(T* to, Reg x, Index count) { _mm512_mask_storeu_epi32(to, mask(count), x); }

  MPK_OP Factor factor(Reg y) { return y; }
  static constexpr Index kPrepared = 1;
  static void prepare(T weight, T* to) { *to = weight; }
  MPK_OP Factor prepared(const T* from) { return broadcast(from); }

  MPK_OP Sum zero() { return _mm512_setzero_si512(); }
  MPK_OP void add_product(Sum& sum, Reg x, Factor y) { sum = _mm512_add_epi32(sum, _mm512_mullo_epi32(x, y)); }
  MPK_OP void settle(Sum& sum) { keep(sum); }
  MPK_OP Reg finish(Sum sum) { return sum; }

  static constexpr int kTransposed = 8;
  template <int width>
  static void transpose(const T* from, const Index* column, T* out) {
    avx2::transpose32<width>(from, column, out);
  }
};

struct F32 {
  using T = float;
  using Reg = __m512;
  static constexpr Index kLanes = 16;
  static constexpr int kAcross = 2;
  static constexpr Index kKC = 384;
  static constexpr bool kHasPairs = false;
  static constexpr bool kTwice = false;
  using Factor = Reg;
  using Sum = Reg;

  MPK_OP void keep(Reg& x) { asm volatile("" : "+v"(x)); }
  MPK_OP Reg load(const T* from) { return _mm512_loadu_ps(from); }
  MPK_OP void store(T* to, Reg x) { _mm512_storeu_ps(to, x); }
  MPK_OP Reg broadcast(const T* from) { return _mm512_set1_ps(*from); }
  MPK_OP Reg add(Reg x, Reg y) { return _mm512_add_ps(x, y); }
  MPK_OP Reg load_first(const T* from, Index count) { return _mm512_maskz_loadu_ps(U32::mask(count), from); }
  MPK_OP void store_first(T* to, Reg x, Index count) { _mm512_mask_storeu_ps(to, U32::mask(count), x); }

  MPK_OP Factor factor(Reg y) { return y; }
  static constexpr Index kPrepared = 1;
  static void prepare(T weight, T* to) { *to = weight; }
  MPK_OP Factor prepared(const T* from) { return broadcast(from); }

  MPK_OP Sum zero() { return _mm512_setzero_ps(); }
  MPK_OP void add_product(Sum& sum, Reg x, Factor y) { sum = _mm512_fmadd_ps(x, y, sum); }
  MPK_OP void settle(Sum&) {}
  MPK_OP Reg finish(Sum sum) { return sum; }

  static constexpr int kTransposed = 8;
  template <int width>
  static void transpose(const T* from, const Index* column, T* out) {
    avx2::transpose32<width>(from, column, out);
  }
};

#include "micro.inc"
#include "strips.inc"

#undef MPK_OP
#undef MPK_HERE

}  // namespace mpk::avx512

#endif
