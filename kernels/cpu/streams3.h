// The masks of a pass of three parties: streams of a pair of roles, made block by block where they are used.
#pragma once

#include <cstdint>
#include <cstring>

#include "aes.h"
#include "sha256.h"
#include "steps_common.h"

namespace mpk {

constexpr Index kPassBlock = 512;  // elements, or words of planes, that a pass works on at a time

// The stream of HMAC-SHA256(key, label + suffix), `total` bytes of it. A short one is made at once.
class Stream {
 public:
  enum Holder { kNext, kPrev };

  Stream(const mpk_pass& pass, Holder holder, const char* suffix, Index total) : whole_(total <= kPiece) {
    const bool next = holder == kNext;
    hmac_sha256(next ? pass.next_key : pass.prev_key, next ? pass.next_bytes : pass.prev_bytes, pass.label,
                pass.label_bytes, reinterpret_cast<const std::uint8_t*>(suffix),
                static_cast<Index>(std::strlen(suffix)), key_);
    if (whole_) aes128_ctr(key_, 0, buffer_, total);
  }

  // Bytes from `offset` on; they are there until the next call. At most a block of 8-byte words.
  const std::uint8_t* at(Index offset, Index nbytes) {
    if (whole_) return buffer_ + offset;
    const Index skip = offset % 16;
    aes128_ctr(key_, static_cast<std::uint64_t>(offset / 16), buffer_, nbytes + skip);
    return buffer_ + skip;
  }

  // Elements or words from number `start` on.
  template <class T>
  const T* from(Index start, Index count) {
    constexpr Index kWidth = static_cast<Index>(sizeof(T));
    return reinterpret_cast<const T*>(at(start * kWidth, count * kWidth));
  }

 private:
  static constexpr Index kPiece = 8 * kPassBlock;
  alignas(64) std::uint8_t buffer_[kPiece + 16];
  std::uint8_t key_[kShaDigest];
  bool whole_;
};

// Calls body(start, count) for the blocks of n.
template <class Body>
MPK_INLINE void in_blocks(Index n, Body&& body) {
  for (Index start = 0; start < n; start += kPassBlock) body(start, n - start < kPassBlock ? n - start : kPassBlock);
}

// Calls body(word, start, count) for the words of a block that begins at element `start`.
template <class Body>
MPK_INLINE void in_words(Index start, Index here, Body&& body) {
  for (Index i = start; i < start + here; i += 64) body(i / 64, i, start + here - i < 64 ? start + here - i : 64);
}

// A step is a struct with a `body` that the compiler may put into vector instructions.
template <class Step>
void run_portable(const Step& step) {
  step.body(false);
}
#ifdef MPK_X86
template <class Step>
MPK_TARGET("avx2") void run_wide(const Step& step) {
  step.body(true);
}
#endif
template <class Step>
void run_step(const Step& step) {
#ifdef MPK_X86
  if (has_avx2()) return run_wide(step);
#endif
  run_portable(step);
}

// For which elements a party plays role 0, 1 and 2, and for which words of packed bits.
inline void require_chunks(const mpk_chunks* chunks, int element_bytes) {
  require(element_bytes == 4 || element_bytes == 8);
  for (int role = 0; role < 3; ++role) {
    require(chunks->n[role] >= 0 && chunks->start[role] >= 0 && chunks->word_start[role] >= 0);
    require(chunks->words[role] == ceil_div(static_cast<Index>(chunks->n[role]), 64));
    require(chunks->start[role] <= chunks->total - chunks->n[role]);
    require(chunks->word_start[role] <= chunks->total_words - chunks->words[role]);
  }
  product(static_cast<Index>(chunks->total), 64);
}

}  // namespace mpk
