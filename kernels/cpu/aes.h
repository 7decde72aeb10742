// The AES-128-CTR key stream, for kernels that mask what they make while it is in the cache.
#pragma once

#include <cstdint>

#include "common.h"

namespace mpk {

// As mpk_aes128_ctr; throws Failure.
void aes128_ctr(const std::uint8_t* key, std::uint64_t first_block, std::uint8_t* out, Index nbytes);

}  // namespace mpk
