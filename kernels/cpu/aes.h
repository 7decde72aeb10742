// The AES-128-CTR key stream, for kernels that mask what they make while it is in the cache.
#pragma once

#include <cstdint>

#include "common.h"

namespace mpk {

// As mpk_aes128_ctr; throws Failure.
void aes128_ctr(const std::uint8_t* key, std::uint64_t first_block, std::uint8_t* out, Index nbytes);

// A key, expanded once for many pieces of its stream. `start` and `at` throw Failure.
class AesStream {
 public:
  void start(const std::uint8_t* key);
  // As aes128_ctr.
  void at(std::uint64_t first_block, std::uint8_t* out, Index nbytes) const;

 private:
  static constexpr int kRoundKeys = 11;
  alignas(16) std::uint8_t rounds_[16 * kRoundKeys];
};

}  // namespace mpk
