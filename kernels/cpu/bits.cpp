// Bit slicing: n ring elements to one packed plane of bits for each bit position, and back.
#include <cstring>

#include "bits.h"
#include "common.h"
#include "isa.h"

namespace mpk {
namespace {

constexpr Index kBlock = 512;  // elements sliced before their planes are written: one cache line a plane
constexpr Index kBlockWords = kBlock / 64;

// Slices of one block: [bit][word].
using Slices = std::uint64_t[64][kBlockWords];

// Transposes 8 bytes as an 8x8 bit matrix (Hacker's Delight, section 7-3): byte j of the result holds bit j of each.
inline std::uint64_t transpose8(std::uint64_t x) {
  std::uint64_t t;
  t = (x ^ (x >> 7)) & 0x00AA00AA00AA00AAull;
  x ^= t ^ (t << 7);
  t = (x ^ (x >> 14)) & 0x0000CCCC0000CCCCull;
  x ^= t ^ (t << 14);
  t = (x ^ (x >> 28)) & 0x00000000F0F0F0F0ull;
  return x ^ t ^ (t << 28);
}

// Bits 0 to count-1 of 64 elements, as one word for each bit.
template <class T>
void slice64_portable(const T* x, int count, std::uint64_t (*slices)[kBlockWords], Index word) {
  for (int base = 0; base < count; base += 8) {
    std::uint64_t octets[8];  // octets[g]: byte j holds bit base + j of elements 8g to 8g + 7
    for (int g = 0; g < 8; ++g) {
      std::uint64_t bytes = 0;
      for (int i = 0; i < 8; ++i)
        bytes |= static_cast<std::uint64_t>(static_cast<std::uint8_t>(x[8 * g + i] >> base)) << (8 * i);
      octets[g] = transpose8(bytes);
    }
    const int bits = count - base < 8 ? count - base : 8;
    for (int j = 0; j < bits; ++j) {
      std::uint64_t plane = 0;
      for (int g = 0; g < 8; ++g) plane |= ((octets[g] >> (8 * j)) & 0xFF) << (8 * g);
      slices[base + j][word] = plane;
    }
  }
}

#ifdef MPK_X86

// The bytes of 32 elements of 32 bits, regrouped: out[b] holds byte b of element i at position i.
// part[i] holds elements 4i..4i+3 in its low half and 16+4i..16+4i+3 in its high half.
MPK_TARGET("avx2") inline void regroup32(const __m256i part[4], __m256i out[4]) {
  const __m256i order = _mm256_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15,  //
                                         0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
  const __m256i p0 = _mm256_shuffle_epi8(part[0], order), p1 = _mm256_shuffle_epi8(part[1], order);
  const __m256i p2 = _mm256_shuffle_epi8(part[2], order), p3 = _mm256_shuffle_epi8(part[3], order);
  const __m256i low01 = _mm256_unpacklo_epi32(p0, p1), high01 = _mm256_unpackhi_epi32(p0, p1);
  const __m256i low23 = _mm256_unpacklo_epi32(p2, p3), high23 = _mm256_unpackhi_epi32(p2, p3);
  out[0] = _mm256_unpacklo_epi64(low01, low23);
  out[1] = _mm256_unpackhi_epi64(low01, low23);
  out[2] = _mm256_unpacklo_epi64(high01, high23);
  out[3] = _mm256_unpackhi_epi64(high01, high23);
}

MPK_TARGET("avx2") inline __m256i halves(const std::uint32_t* low, const std::uint32_t* high) {
  return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(low))),
                                 _mm_loadu_si128(reinterpret_cast<const __m128i*>(high)), 1);
}

// Low or high words of 4 elements of 64 bits.
MPK_TARGET("avx2") inline __m128i narrow4(const std::uint64_t* x, bool high) {
  const __m128 a = _mm_loadu_ps(reinterpret_cast<const float*>(x));
  const __m128 b = _mm_loadu_ps(reinterpret_cast<const float*>(x + 2));
  return _mm_castps_si128(high ? _mm_shuffle_ps(a, b, 0xDD) : _mm_shuffle_ps(a, b, 0x88));
}

// The topmost `bits` bits of each byte of `low` (elements 0-31) and `high` (32-63), as slices bits-1 to 0.
MPK_TARGET("avx2")
inline void slice_byte(__m256i low, __m256i high, int bits, std::uint64_t (*slices)[kBlockWords], Index word) {
  for (int j = bits - 1; j >= 0; --j) {
    slices[j][word] = static_cast<std::uint32_t>(_mm256_movemask_epi8(low)) |
                      static_cast<std::uint64_t>(static_cast<std::uint32_t>(_mm256_movemask_epi8(high))) << 32;
    low = _mm256_add_epi8(low, low);
    high = _mm256_add_epi8(high, high);
  }
}

// `count` (1 to 32) slices of 64 elements whose bytes are regrouped: first[b] elements 0-31, second[b] 32-63.
MPK_TARGET("avx2")
inline void slice_bytes(const __m256i first[4], const __m256i second[4], int count,
                        std::uint64_t (*slices)[kBlockWords], Index word) {
  int b = 0;
  for (; 8 * b + 8 <= count; ++b) slice_byte(first[b], second[b], 8, slices + 8 * b, word);
  if (8 * b < count) {
    const __m128i skip = _mm_cvtsi32_si128(8 - (count - 8 * b));  // the topmost wanted bit becomes the byte's sign
    slice_byte(_mm256_sll_epi16(first[b], skip), _mm256_sll_epi16(second[b], skip), count - 8 * b, slices + 8 * b, word);
  }
}

MPK_TARGET("avx2")
void slice64_avx2(const std::uint32_t* x, int count, std::uint64_t (*slices)[kBlockWords], Index word) {
  __m256i part[4], first[4], second[4];
  for (int i = 0; i < 4; ++i) part[i] = halves(x + 4 * i, x + 16 + 4 * i);
  regroup32(part, first);
  for (int i = 0; i < 4; ++i) part[i] = halves(x + 32 + 4 * i, x + 48 + 4 * i);
  regroup32(part, second);
  slice_bytes(first, second, count, slices, word);
}

MPK_TARGET("avx2")
void slice64_avx2(const std::uint64_t* x, int count, std::uint64_t (*slices)[kBlockWords], Index word) {
  for (int half = 0; 32 * half < count; ++half) {
    __m256i part[4], first[4], second[4];
    for (int i = 0; i < 4; ++i)
      part[i] = _mm256_set_m128i(narrow4(x + 16 + 4 * i, half > 0), narrow4(x + 4 * i, half > 0));
    regroup32(part, first);
    for (int i = 0; i < 4; ++i)
      part[i] = _mm256_set_m128i(narrow4(x + 48 + 4 * i, half > 0), narrow4(x + 32 + 4 * i, half > 0));
    regroup32(part, second);
    const int bits = count - 32 * half < 32 ? count - 32 * half : 32;
    slice_bytes(first, second, bits, slices + 32 * half, word);
  }
}

#endif

template <class T>
void slice64(bool wide, const T* x, int count, std::uint64_t (*slices)[kBlockWords], Index word) {
#ifdef MPK_X86
  if (wide) return slice64_avx2(x, count, slices, word);
#endif
  (void)wide;
  slice64_portable(x, count, slices, word);
}

}  // namespace

template <class T>
void bit_planes(const T* x, const T* y, Index n, int count, std::uint64_t* planes, Index stride) {
  const int width = 8 * static_cast<int>(sizeof(T)), sliced = count < width ? count : width;
  const bool wide = has_avx2();
  alignas(64) Slices slices;
  alignas(64) T sum[kBlock];
  for (Index start = 0; start < n; start += kBlock) {
    const Index here = n - start < kBlock ? n - start : kBlock, word0 = start / 64, here_words = ceil_div(here, 64);
    const T* from = x + start;
    if (y != nullptr) {
      for (Index i = 0; i < here; ++i) sum[i] = static_cast<T>(x[start + i] + y[start + i]);
      from = sum;
    }
    for (Index w = 0; w < here / 64; ++w) slice64(wide, from + 64 * w, sliced, slices, w);
    if (here % 64 != 0) {
      T last[64] = {};
      std::memcpy(last, from + here / 64 * 64, static_cast<std::size_t>(here % 64) * sizeof(T));
      slice64(wide, last, sliced, slices, here / 64);
    }
    for (int j = 0; j < sliced; ++j)
      std::memcpy(planes + j * stride + word0, slices[j], static_cast<std::size_t>(here_words) * 8);
    for (int j = sliced; j < count; ++j)  // sign extension
      std::memcpy(planes + j * stride + word0, slices[width - 1], static_cast<std::size_t>(here_words) * 8);
  }
}

template void bit_planes(const std::uint32_t*, const std::uint32_t*, Index, int, std::uint64_t*, Index);
template void bit_planes(const std::uint64_t*, const std::uint64_t*, Index, int, std::uint64_t*, Index);

namespace {

template <class T>
void unpack_portable(const std::uint64_t* plane, Index n, T* out) {
  Index i = 0;
  for (; i + 64 <= n; i += 64) {
    const std::uint64_t word = plane[i / 64];
    for (int j = 0; j < 64; ++j) out[i + j] = static_cast<T>((word >> j) & 1);
  }
  for (; i < n; ++i) out[i] = static_cast<T>((plane[i / 64] >> (i % 64)) & 1);
}

#ifdef MPK_X86

MPK_TARGET("avx2") void unpack_avx2(const std::uint64_t* plane, Index n, std::uint32_t* out) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7), one = _mm256_set1_epi32(1);
  Index i = 0;
  for (; i + 64 <= n; i += 64)
    for (int j = 0; j < 8; ++j) {
      const __m256i bits = _mm256_set1_epi32(static_cast<int>((plane[i / 64] >> (8 * j)) & 0xFF));
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i + 8 * j),
                          _mm256_and_si256(_mm256_srlv_epi32(bits, lane), one));
    }
  if (i < n) unpack_portable(plane + i / 64, n - i, out + i);
}

MPK_TARGET("avx2") void unpack_avx2(const std::uint64_t* plane, Index n, std::uint64_t* out) {
  const __m256i lane = _mm256_setr_epi64x(0, 1, 2, 3), one = _mm256_set1_epi64x(1);
  Index i = 0;
  for (; i + 64 <= n; i += 64) {
    __m256i bits = _mm256_srlv_epi64(_mm256_set1_epi64x(static_cast<long long>(plane[i / 64])), lane);
    for (int j = 0; j < 64; j += 4, bits = _mm256_srli_epi64(bits, 4))
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i + j), _mm256_and_si256(bits, one));
  }
  if (i < n) unpack_portable(plane + i / 64, n - i, out + i);
}

#endif

template <class T>
void unpack(const std::uint64_t* plane, Index n, T* out) {
#ifdef MPK_X86
  if (has_avx2()) return unpack_avx2(plane, n, out);
#endif
  unpack_portable(plane, n, out);
}

}  // namespace
}  // namespace mpk

int mpk_bit_planes(const void* x, int64_t n, int element_bytes, int count, uint64_t* planes) {
  using namespace mpk;
  return guarded([&] {
    require(n >= 0 && count >= 0 && count <= 64 && (element_bytes == 4 || element_bytes == 8));
    product(static_cast<Index>(n), 8);
    if (element_bytes == 4)
      bit_planes<std::uint32_t>(static_cast<const std::uint32_t*>(x), nullptr, n, count, planes, ceil_div(n, 64));
    else
      bit_planes<std::uint64_t>(static_cast<const std::uint64_t*>(x), nullptr, n, count, planes, ceil_div(n, 64));
  });
}

int mpk_unpack_bits(const uint64_t* plane, int64_t n, int element_bytes, void* out) {
  using namespace mpk;
  return guarded([&] {
    require(n >= 0 && (element_bytes == 4 || element_bytes == 8));
    product(static_cast<Index>(n), 8);
    if (element_bytes == 4)
      unpack(plane, static_cast<Index>(n), static_cast<std::uint32_t*>(out));
    else
      unpack(plane, static_cast<Index>(n), static_cast<std::uint64_t*>(out));
  });
}
