// GHASH of GCM (NIST SP 800-38D, 6.4) over data that come in pieces, with carry-less multiplications.
#pragma once

#include <cstring>

#include "aes.h"
#include "common.h"
#include "isa.h"

namespace mpk {

#ifdef MPK_X86
#define MPK_CLMUL MPK_TARGET("pclmul,ssse3")

// Bits of a block are reflected: bit 0 of the polynomial is the highest bit of the first byte. With the bytes reversed,
// a product of two blocks is one bit off, which the shift before the reduction puts right.
struct Product {
  __m128i low, middle, high;
};

MPK_CLMUL inline void add_product(Product& sum, __m128i a, __m128i b) {
  sum.low = _mm_xor_si128(sum.low, _mm_clmulepi64_si128(a, b, 0x00));
  sum.high = _mm_xor_si128(sum.high, _mm_clmulepi64_si128(a, b, 0x11));
  sum.middle = _mm_xor_si128(sum.middle, _mm_clmulepi64_si128(a, b, 0x10));
  sum.middle = _mm_xor_si128(sum.middle, _mm_clmulepi64_si128(a, b, 0x01));
}

// Modulo x^128 + x^7 + x^2 + x + 1.
MPK_CLMUL inline __m128i reduced(const Product& sum) {
  __m128i low = _mm_xor_si128(sum.low, _mm_slli_si128(sum.middle, 8));
  __m128i high = _mm_xor_si128(sum.high, _mm_srli_si128(sum.middle, 8));
  const __m128i carry = _mm_srli_epi32(low, 31), carry_high = _mm_srli_epi32(high, 31);
  low = _mm_or_si128(_mm_slli_epi32(low, 1), _mm_slli_si128(carry, 4));
  high = _mm_or_si128(_mm_slli_epi32(high, 1), _mm_slli_si128(carry_high, 4));
  high = _mm_or_si128(high, _mm_srli_si128(carry, 12));
  __m128i folded = _mm_xor_si128(_mm_slli_epi32(low, 31), _mm_slli_epi32(low, 30));
  folded = _mm_xor_si128(folded, _mm_slli_epi32(low, 25));
  const __m128i rest = _mm_srli_si128(folded, 4);
  low = _mm_xor_si128(low, _mm_slli_si128(folded, 12));
  __m128i down = _mm_xor_si128(_mm_srli_epi32(low, 1), _mm_srli_epi32(low, 2));
  down = _mm_xor_si128(down, _mm_xor_si128(_mm_srli_epi32(low, 7), rest));
  return _mm_xor_si128(high, _mm_xor_si128(low, down));
}

MPK_CLMUL inline __m128i reversed(__m128i block) {
  return _mm_shuffle_epi8(block, _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
}

#define MPK_WIDE_CLMUL MPK_TARGET("vpclmulqdq,avx2,pclmul,ssse3")

// The same of two blocks an instruction.
struct WideProduct {
  __m256i low, middle, high;
};

MPK_WIDE_CLMUL inline void add_product(WideProduct& sum, __m256i a, __m256i b) {
  sum.low = _mm256_xor_si256(sum.low, _mm256_clmulepi64_epi128(a, b, 0x00));
  sum.high = _mm256_xor_si256(sum.high, _mm256_clmulepi64_epi128(a, b, 0x11));
  sum.middle = _mm256_xor_si256(sum.middle, _mm256_clmulepi64_epi128(a, b, 0x10));
  sum.middle = _mm256_xor_si256(sum.middle, _mm256_clmulepi64_epi128(a, b, 0x01));
}

MPK_WIDE_CLMUL inline __m128i both(__m256i x) {
  return _mm_xor_si128(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
}

// sum = sum p^n + block_0 p^n + block_1 p^(n-1) + ..., n blocks, as many as `powers` (p^1 first) times `steps`.
template <int Lanes>
MPK_WIDE_CLMUL __m128i add_wide(__m128i sum, const __m128i* powers, const __m128i* blocks, Index steps) {
  const __m256i reverse = _mm256_broadcastsi128_si256(
      _mm_set_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15));
  __m256i pairs[Lanes / 2];  // p^n and p^(n-1), and so on
  for (int i = 0; i < Lanes / 2; ++i)
    pairs[i] = _mm256_set_m128i(powers[Lanes - 2 - 2 * i], powers[Lanes - 1 - 2 * i]);
  for (; steps > 0; --steps, blocks += Lanes) {
    WideProduct product{};
    for (int i = Lanes / 2 - 1; i >= 0; --i) {  // what waits for the sum comes last
      __m256i block = _mm256_shuffle_epi8(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(blocks + 2 * i)), reverse);
      if (i == 0) block = _mm256_xor_si256(block, _mm256_zextsi128_si256(sum));
      add_product(product, block, pairs[i]);
    }
    sum = reduced(Product{both(product.low), both(product.middle), both(product.high)});
  }
  return sum;
}

// GMAC: the tag of AES-128-GCM with nothing to encrypt, a nonce of 12 zero bytes, and the data as what is authenticated.
class Gmac {
 public:
  MPK_CLMUL void start(const std::uint8_t key[16]) {
    std::uint8_t blocks[32];  // of counter 0, the hash's key; of counter 1, what hides the hash
    aes128_ctr(key, 0, blocks, 32);
    powers_[0] = reversed(_mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks)));
    hidden_ = _mm_loadu_si128(reinterpret_cast<const __m128i*>(blocks + 16));
    for (int i = 1; i < kLanes; ++i) {
      Product product{};
      add_product(product, powers_[i - 1], powers_[0]);
      powers_[i] = reduced(product);
    }
    sum_ = _mm_setzero_si128();
    bytes_ = 0;
  }

  // All pieces but the last are whole blocks of 16 bytes.
  MPK_CLMUL void add(const std::uint8_t* data, Index nbytes) {
    bytes_ += nbytes;
    const __m128i* blocks = reinterpret_cast<const __m128i*>(data);
    if (const Index steps = nbytes / (16 * kLanes); steps > 0 && aes_level() > 1) {
      sum_ = add_wide<kLanes>(sum_, powers_, blocks, steps);
      nbytes -= 16 * kLanes * steps;
      blocks += kLanes * steps;
    }
    for (; nbytes >= 16 * kLanes; nbytes -= 16 * kLanes, blocks += kLanes) {
      Product product{};
      add_product(product, _mm_xor_si128(sum_, reversed(_mm_loadu_si128(blocks))), powers_[kLanes - 1]);
      for (int i = 1; i < kLanes; ++i) add_product(product, reversed(_mm_loadu_si128(blocks + i)), powers_[kLanes - 1 - i]);
      sum_ = reduced(product);
    }
    for (; nbytes > 0; nbytes -= 16, ++blocks) {
      alignas(16) std::uint8_t block[16] = {};
      std::memcpy(block, blocks, static_cast<std::size_t>(nbytes < 16 ? nbytes : 16));
      one(_mm_load_si128(reinterpret_cast<const __m128i*>(block)));
    }
  }

  MPK_CLMUL void finish(std::uint8_t tag[16]) {
    const std::uint64_t bits = 8 * static_cast<std::uint64_t>(bytes_);
    one(_mm_set_epi64x(0, static_cast<long long>(__builtin_bswap64(bits))));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(tag), _mm_xor_si128(reversed(sum_), hidden_));
  }

 private:
  static constexpr int kLanes = 16;

  MPK_CLMUL void one(__m128i block) {
    Product product{};
    add_product(product, _mm_xor_si128(sum_, reversed(block)), powers_[0]);
    sum_ = reduced(product);
  }

  __m128i powers_[kLanes], sum_, hidden_;
  Index bytes_ = 0;
};

#else

class Gmac {  // where there is no AES, nobody gets here
 public:
  void start(const std::uint8_t*) {}
  void add(const std::uint8_t*, Index) {}
  void finish(std::uint8_t*) {}
};

#endif

}  // namespace mpk
