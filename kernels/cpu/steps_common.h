// What the local steps of protocols share: signs as packed bits, sizes as constants.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "common.h"
#include "isa.h"

namespace mpk {

#define MPK_INLINE inline __attribute__((always_inline))

template <class T>
MPK_INLINE T wrapped(T x, int spare) {  // T is unsigned; the signed representative's bits
  using Signed = std::make_signed_t<T>;
  return static_cast<T>(static_cast<Signed>(x << spare) >> spare);
}

// Bit i set where element i >= 0, of up to 64.
template <class T>
MPK_INLINE std::uint64_t nonnegative_bits(const T* x, Index here) {
  constexpr int kTop = 8 * static_cast<int>(sizeof(T)) - 1;
  std::uint64_t word = 0;
  for (Index i = 0; i < here; ++i) word |= static_cast<std::uint64_t>(~x[i] >> kTop & 1) << i;
  return word;
}

#ifdef MPK_X86
MPK_TARGET("avx2") inline std::uint64_t nonnegative_bits64_avx2(const std::uint64_t* x) {
  std::uint64_t word = 0;
  for (int i = 0; i < 64; i += 4) {
    const __m256d part = _mm256_loadu_pd(reinterpret_cast<const double*>(x + i));
    word |= static_cast<std::uint64_t>(static_cast<unsigned>(_mm256_movemask_pd(part))) << i;
  }
  return ~word;
}

MPK_TARGET("avx2") inline std::uint64_t nonnegative_bits64_avx2(const std::uint32_t* x) {
  std::uint64_t word = 0;
  for (int i = 0; i < 64; i += 8) {
    const __m256 part = _mm256_loadu_ps(reinterpret_cast<const float*>(x + i));
    word |= static_cast<std::uint64_t>(static_cast<unsigned>(_mm256_movemask_ps(part))) << i;
  }
  return ~word;
}
#endif

// Bit i set where element i >= 0, of up to 64. A call for whole words: it may use other instructions than its caller.
template <class T>
inline std::uint64_t signs(bool wide, const T* x, Index here) {
#ifdef MPK_X86
  if (wide && here == 64) return nonnegative_bits64_avx2(x);
#endif
  (void)wide;
  return nonnegative_bits(x, here);
}

// Calls `body` with `bytes` (1 to 8) as a constant.
template <class Body>
inline void with_bytes(int bytes, Body&& body) {
  switch (bytes) {
    case 1: return body(std::integral_constant<int, 1>{});
    case 2: return body(std::integral_constant<int, 2>{});
    case 3: return body(std::integral_constant<int, 3>{});
    case 4: return body(std::integral_constant<int, 4>{});
    case 5: return body(std::integral_constant<int, 5>{});
    case 6: return body(std::integral_constant<int, 6>{});
    case 7: return body(std::integral_constant<int, 7>{});
    default: return body(std::integral_constant<int, 8>{});
  }
}

// Calls `body` with a zero of the unsigned type that has `bytes` bytes.
template <class Body>
inline void with_width(int bytes, Body&& body) {
  if (bytes == 4)
    body(std::uint32_t{});
  else
    body(std::uint64_t{});
}

inline void require_elements(std::int64_t n, int element_bytes, int k) {
  require(n >= 0 && (element_bytes == 4 || element_bytes == 8) && k >= 1 && k <= 8 * element_bytes);
  product(static_cast<Index>(n), 8);
}

}  // namespace mpk
