// SHA-256 (FIPS 180-4) and HMAC (RFC 2104) over it, for messages of some hundred bytes. No step depends on secret data.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "common.h"

namespace mpk {

constexpr Index kShaBlock = 64, kShaDigest = 32;

class Sha256 {
 public:
  void update(const std::uint8_t* data, Index nbytes) {
    total_ += static_cast<std::uint64_t>(nbytes);
    while (nbytes > 0) {
      const Index room = kShaBlock - held_, here = nbytes < room ? nbytes : room;
      std::memcpy(buffer_ + held_, data, static_cast<std::size_t>(here));
      held_ += here, data += here, nbytes -= here;
      if (held_ == kShaBlock) compress(), held_ = 0;
    }
  }

  void finish(std::uint8_t digest[kShaDigest]) {
    const std::uint64_t bits = __builtin_bswap64(8 * total_);
    static constexpr std::uint8_t kPadding[kShaBlock] = {0x80};
    update(kPadding, held_ < 56 ? 56 - held_ : 56 + kShaBlock - held_);
    update(reinterpret_cast<const std::uint8_t*>(&bits), 8);
    for (int i = 0; i < 8; ++i) {
      const std::uint32_t word = __builtin_bswap32(state_[i]);
      std::memcpy(digest + 4 * i, &word, 4);
    }
  }

 private:
  static std::uint32_t rotate(std::uint32_t x, int by) { return (x >> by) | (x << (32 - by)); }

  void compress() {
    static constexpr std::uint32_t kConstants[64] = {
        0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
        0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
        0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
        0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
        0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
        0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
        0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
        0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};
    std::uint32_t w[64];
    for (int i = 0; i < 16; ++i) {
      std::memcpy(w + i, buffer_ + 4 * i, 4);
      w[i] = __builtin_bswap32(w[i]);
    }
    for (int i = 16; i < 64; ++i) {
      const std::uint32_t s0 = rotate(w[i - 15], 7) ^ rotate(w[i - 15], 18) ^ (w[i - 15] >> 3);
      const std::uint32_t s1 = rotate(w[i - 2], 17) ^ rotate(w[i - 2], 19) ^ (w[i - 2] >> 10);
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = state_;
    for (int i = 0; i < 64; ++i) {
      const std::uint32_t s1 = rotate(e, 6) ^ rotate(e, 11) ^ rotate(e, 25);
      const std::uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + kConstants[i] + w[i];
      const std::uint32_t s0 = rotate(a, 2) ^ rotate(a, 13) ^ rotate(a, 22);
      const std::uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const std::uint32_t made[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; ++i) state_[i] += made[i];
  }

  std::array<std::uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                         0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::uint8_t buffer_[kShaBlock];
  Index held_ = 0;
  std::uint64_t total_ = 0;
};

// HMAC-SHA256 with a key of at most 64 bytes, of a message in two pieces.
inline void hmac_sha256(const std::uint8_t* key, Index key_bytes, const std::uint8_t* message, Index message_bytes,
                        const std::uint8_t* rest, Index rest_bytes, std::uint8_t digest[kShaDigest]) {
  require(key_bytes >= 0 && key_bytes <= kShaBlock && message_bytes >= 0 && rest_bytes >= 0);
  std::uint8_t inner[kShaBlock], outer[kShaBlock];
  for (Index i = 0; i < kShaBlock; ++i) {
    const std::uint8_t byte = i < key_bytes ? key[i] : 0;
    inner[i] = byte ^ 0x36;
    outer[i] = byte ^ 0x5c;
  }
  Sha256 first, second;
  first.update(inner, kShaBlock);
  first.update(message, message_bytes);
  first.update(rest, rest_bytes);
  first.finish(digest);
  second.update(outer, kShaBlock);
  second.update(digest, kShaDigest);
  second.finish(digest);
}

inline void hmac_sha256(const std::uint8_t* key, Index key_bytes, const std::uint8_t* message, Index message_bytes,
                        std::uint8_t digest[kShaDigest]) {
  hmac_sha256(key, key_bytes, message, message_bytes, nullptr, 0, digest);
}

}  // namespace mpk
