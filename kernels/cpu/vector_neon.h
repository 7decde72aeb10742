// Vectors of 16 bytes (NEON on AArch64, where every processor has it): what the loops in micro.inc and strips.inc are
// written in.
//
// There is no product of 64-bit lanes, but the two parts of the split product (vector_avx2.h) are one instruction each,
// addition included: umlal for the low halves, mla for the cross terms.
#pragma once

#include "common.h"
#include "micro_portable.h"

#ifdef MPK_NEON

namespace mpk::neon {

#define MPK_HERE
#define MPK_OP static inline __attribute__((always_inline))

struct U64 {
  using T = std::uint64_t;
  using Reg = uint64x2_t;
  static constexpr Index kLanes = 2;
  static constexpr int kAcross = 2;
  static constexpr Index kKC = 256;
  static constexpr bool kHasPairs = true;
  static constexpr bool kTwice = true;  // two multiplies for a product
  struct Factor {
    uint32x2_t low;
    uint32x4_t swapped;
  };
  struct Sum {
    uint64x2_t low;
    uint32x4_t cross;
  };

  MPK_OP void keep(Reg& x) { asm volatile("" : "+w"(x)); }
  MPK_OP Reg load(const T* from) { return vld1q_u64(from); }
  MPK_OP void store(T* to, Reg x) { vst1q_u64(to, x); }
  MPK_OP Reg broadcast(const T* from) { return vld1q_dup_u64(from); }
  MPK_OP Reg add(Reg x, Reg y) { return vaddq_u64(x, y); }
  MPK_OP Reg sub(Reg x, Reg y) { return vsubq_u64(x, y); }
  MPK_OP Reg load_first(const T* from, Index) { return vld1q_lane_u64(from, vdupq_n_u64(0), 0); }  // one of two
  MPK_OP void store_first(T* to, Reg x, Index) { vst1q_lane_u64(to, x, 0); }

  MPK_OP Factor factor(Reg y) { return {vmovn_u64(y), vrev64q_u32(vreinterpretq_u32_u64(y))}; }
  static constexpr Index kPrepared = 1;
  static void prepare(T weight, T* to) { *to = weight; }
  MPK_OP Factor prepared(const T* from) { return factor(broadcast(from)); }

  MPK_OP Sum zero() { return {vdupq_n_u64(0), vdupq_n_u32(0)}; }
  MPK_OP void add_product(Sum& sum, Reg x, const Factor& y) {
    sum.low = vmlal_u32(sum.low, vmovn_u64(x), y.low);
    sum.cross = vmlaq_u32(sum.cross, vreinterpretq_u32_u64(x), y.swapped);
  }
  MPK_OP void settle(Sum&) {}
  MPK_OP Reg finish(const Sum& sum) {
    const uint64x2_t cross = vreinterpretq_u64_u32(sum.cross);
    const uint64x2_t both = vaddq_u64(cross, vshrq_n_u64(cross, 32));  // only its low halves count
    return vaddq_u64(sum.low, vshlq_n_u64(both, 32));
  }

  static constexpr int kTransposed = 0;
};

struct U32 {
  using T = std::uint32_t;
  using Reg = uint32x4_t;
  static constexpr Index kLanes = 4;
  static constexpr int kAcross = 4;
  static constexpr Index kKC = 384;
  static constexpr bool kHasPairs = false;
  static constexpr bool kTwice = false;
  using Factor = Reg;
  using Sum = Reg;

  MPK_OP void keep(Reg& x) { asm volatile("" : "+w"(x)); }
  MPK_OP Reg load(const T* from) { return vld1q_u32(from); }
  MPK_OP void store(T* to, Reg x) { vst1q_u32(to, x); }
  MPK_OP Reg broadcast(const T* from) { return vld1q_dup_u32(from); }
  MPK_OP Reg add(Reg x, Reg y) { return vaddq_u32(x, y); }
  MPK_OP Reg load_first(const T* from, Index count) {
    T lanes[4] = {};
    for (Index i = 0; i < count; ++i) lanes[i] = from[i];
    return load(lanes);
  }
  MPK_OP void store_first(T* to, Reg x, Index count) {
    T lanes[4];
    store(lanes, x);
    for (Index i = 0; i < count; ++i) to[i] = lanes[i];
  }

  MPK_OP Factor factor(Reg y) { return y; }
  static constexpr Index kPrepared = 1;
  static void prepare(T weight, T* to) { *to = weight; }
  MPK_OP Factor prepared(const T* from) { return broadcast(from); }

  MPK_OP Sum zero() { return vdupq_n_u32(0); }
  MPK_OP void add_product(Sum& sum, Reg x, Factor y) { sum = vmlaq_u32(sum, x, y); }
  MPK_OP void settle(Sum&) {}
  MPK_OP Reg finish(Sum sum) { return sum; }

  static constexpr int kTransposed = 0;
};

struct F32 {
  using T = float;
  using Reg = float32x4_t;
  static constexpr Index kLanes = 4;
  static constexpr int kAcross = 4;
  static constexpr Index kKC = 384;
  static constexpr bool kHasPairs = false;
  static constexpr bool kTwice = false;
  using Factor = Reg;
  using Sum = Reg;

  MPK_OP void keep(Reg& x) { asm volatile("" : "+w"(x)); }
  MPK_OP Reg load(const T* from) { return vld1q_f32(from); }
  MPK_OP void store(T* to, Reg x) { vst1q_f32(to, x); }
  MPK_OP Reg broadcast(const T* from) { return vld1q_dup_f32(from); }
  MPK_OP Reg add(Reg x, Reg y) { return vaddq_f32(x, y); }
  MPK_OP Reg load_first(const T* from, Index count) {
    T lanes[4] = {};
    for (Index i = 0; i < count; ++i) lanes[i] = from[i];
    return load(lanes);
  }
  MPK_OP void store_first(T* to, Reg x, Index count) {
    T lanes[4];
    store(lanes, x);
    for (Index i = 0; i < count; ++i) to[i] = lanes[i];
  }

  MPK_OP Factor factor(Reg y) { return y; }
  static constexpr Index kPrepared = 1;
  static void prepare(T weight, T* to) { *to = weight; }
  MPK_OP Factor prepared(const T* from) { return broadcast(from); }

  MPK_OP Sum zero() { return vdupq_n_f32(0); }
  MPK_OP void add_product(Sum& sum, Reg x, Factor y) { sum = vfmaq_f32(sum, x, y); }
  MPK_OP void settle(Sum&) {}
  MPK_OP Reg finish(Sum sum) { return sum; }

  static constexpr int kTransposed = 0;
};

#include "micro.inc"
#include "strips.inc"

#undef MPK_OP
#undef MPK_HERE

}  // namespace mpk::neon

#endif
