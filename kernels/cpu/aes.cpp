// AES-128 in counter mode with the processor's AES instructions, two blocks an instruction where there is VAES;
// and draws: such a stream under a key that HMAC-SHA256 makes of a label.
#include <cstring>
#include <type_traits>

#include "aes.h"
#include "common.h"
#include "isa.h"
#include "sha256.h"

namespace mpk {
namespace {

#ifdef MPK_X86

constexpr int kRounds = 10;

struct Schedule {
  __m128i round[kRounds + 1];
};

// Key expansion, FIPS 197 section 5.2: each word is the one before it xor the one four back.
template <int Constant>
MPK_TARGET("aes,ssse3") inline __m128i next_round_key(__m128i key) {
  const __m128i core = _mm_shuffle_epi32(_mm_aeskeygenassist_si128(key, Constant), 0xFF);
  key = _mm_xor_si128(key, _mm_slli_si128(key, 4));
  key = _mm_xor_si128(key, _mm_slli_si128(key, 8));
  return _mm_xor_si128(key, core);
}

MPK_TARGET("aes,ssse3") Schedule expand(const std::uint8_t* key) {
  Schedule s;
  s.round[0] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(key));
  s.round[1] = next_round_key<0x01>(s.round[0]);
  s.round[2] = next_round_key<0x02>(s.round[1]);
  s.round[3] = next_round_key<0x04>(s.round[2]);
  s.round[4] = next_round_key<0x08>(s.round[3]);
  s.round[5] = next_round_key<0x10>(s.round[4]);
  s.round[6] = next_round_key<0x20>(s.round[5]);
  s.round[7] = next_round_key<0x40>(s.round[6]);
  s.round[8] = next_round_key<0x80>(s.round[7]);
  s.round[9] = next_round_key<0x1B>(s.round[8]);
  s.round[10] = next_round_key<0x36>(s.round[9]);
  return s;
}

// The counter block: 8 zero bytes, then the block number, big-endian.
MPK_TARGET("aes,ssse3") inline __m128i counter_block(std::uint64_t number) {
  return _mm_set_epi64x(static_cast<long long>(__builtin_bswap64(number)), 0);
}

// `Lanes` blocks at once hide the latency of each round.
template <int Lanes>
MPK_TARGET("aes,ssse3") inline void encrypt_run(const Schedule& s, std::uint64_t number, std::uint8_t* out) {
  __m128i block[Lanes];
  for (int i = 0; i < Lanes; ++i) block[i] = _mm_xor_si128(counter_block(number + i), s.round[0]);
  for (int r = 1; r < kRounds; ++r)
    for (int i = 0; i < Lanes; ++i) block[i] = _mm_aesenc_si128(block[i], s.round[r]);
  for (int i = 0; i < Lanes; ++i)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out) + i, _mm_aesenclast_si128(block[i], s.round[kRounds]));
}

MPK_TARGET("aes,ssse3")
void stream(const Schedule& s, std::uint64_t number, std::uint8_t* out, Index nbytes) {
  for (; nbytes >= 128; nbytes -= 128, out += 128, number += 8) encrypt_run<8>(s, number, out);
  for (; nbytes >= 16; nbytes -= 16, out += 16, ++number) encrypt_run<1>(s, number, out);
  if (nbytes > 0) {
    std::uint8_t last[16];
    encrypt_run<1>(s, number, last);
    std::memcpy(out, last, static_cast<std::size_t>(nbytes));
  }
}

// As `stream` for whole runs of 16 blocks; returns the bytes written.
MPK_TARGET("vaes,avx2,aes")
Index stream_wide(const Schedule& s, std::uint64_t number, std::uint8_t* out, Index nbytes) {
  constexpr int kLanes = 8;
  __m256i key[kRounds + 1];
  for (int r = 0; r <= kRounds; ++r) key[r] = _mm256_broadcastsi128_si256(s.round[r]);
  const __m256i swap = _mm256_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, 15, 14, 13, 12, 11, 10, 9, 8,  //
                                        -1, -1, -1, -1, -1, -1, -1, -1, 15, 14, 13, 12, 11, 10, 9, 8);
  __m256i counter = _mm256_set_epi64x(static_cast<long long>(number + 1), 0, static_cast<long long>(number), 0);
  const __m256i step = _mm256_set_epi64x(2, 0, 2, 0);
  Index done = 0;
  for (; nbytes - done >= 32 * kLanes; done += 32 * kLanes) {
    __m256i block[kLanes];
    for (int i = 0; i < kLanes; ++i) {
      block[i] = _mm256_xor_si256(_mm256_shuffle_epi8(counter, swap), key[0]);
      counter = _mm256_add_epi64(counter, step);
    }
    for (int r = 1; r < kRounds; ++r)
      for (int i = 0; i < kLanes; ++i) block[i] = _mm256_aesenc_epi128(block[i], key[r]);
    for (int i = 0; i < kLanes; ++i)
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + done) + i, _mm256_aesenclast_epi128(block[i], key[kRounds]));
  }
  return done;
}

#endif

}  // namespace

void AesStream::start(const std::uint8_t* key) {
  require(aes_level() > 0, MPK_UNSUPPORTED);
#ifdef MPK_X86
  static_assert(kRoundKeys == kRounds + 1);
  const Schedule schedule = expand(key);
  std::memcpy(rounds_, &schedule, sizeof rounds_);
#else
  (void)key;
#endif
}

void AesStream::at(std::uint64_t first_block, std::uint8_t* out, Index nbytes) const {
  require(nbytes >= 0);
  require(nbytes <= std::numeric_limits<Index>::max() / 16, MPK_TOO_LARGE);
  const std::uint64_t blocks = static_cast<std::uint64_t>(ceil_div(nbytes, 16));
  std::uint64_t end;
  require(!__builtin_add_overflow(first_block, blocks, &end), MPK_TOO_LARGE);  // a block number never repeats
#ifdef MPK_X86
  Schedule schedule;
  std::memcpy(&schedule, rounds_, sizeof rounds_);
  const Index done = aes_level() > 1 ? stream_wide(schedule, first_block, out, nbytes) : 0;
  stream(schedule, first_block + static_cast<std::uint64_t>(done / 16), out + done, nbytes - done);
#else
  (void)out;
#endif
}

void aes128_ctr(const std::uint8_t* key, std::uint64_t first_block, std::uint8_t* out, Index nbytes) {
  AesStream key_stream;
  key_stream.start(key);
  key_stream.at(first_block, out, nbytes);
}

namespace {

// Brings n words into the range of `bits` bits, as signed representatives.
template <class T>
void narrow(std::uint8_t* out, Index n, int bits) {
  const int spare = 8 * static_cast<int>(sizeof(T)) - bits;
  T* words = reinterpret_cast<T*>(out);
  for (Index i = 0; i < n; ++i)
    words[i] = static_cast<T>(static_cast<T>(static_cast<std::make_unsigned_t<T>>(words[i]) << spare) >> spare);
}

void draw(const std::uint8_t* key, Index key_bytes, const std::uint8_t* label, Index label_bytes, std::uint8_t* out,
          Index n, int element_bytes, int bits) {
  require((element_bytes == 4 || element_bytes == 8) && bits >= 1 && bits <= 8 * element_bytes);
  std::uint8_t stream_key[kShaDigest];
  hmac_sha256(key, key_bytes, label, label_bytes, stream_key);
  aes128_ctr(stream_key, 0, out, product(n, static_cast<Index>(element_bytes)));
  if (bits == 8 * element_bytes) return;
  if (element_bytes == 4)
    narrow<std::int32_t>(out, n, bits);
  else
    narrow<std::int64_t>(out, n, bits);
}

}  // namespace
}  // namespace mpk

int mpk_draw(const uint8_t* key, int64_t key_bytes, const uint8_t* label, int64_t label_bytes, void* out, int64_t n,
             int element_bytes, int bits) {
  return mpk::guarded([&] {
    mpk::draw(key, static_cast<mpk::Index>(key_bytes), label, static_cast<mpk::Index>(label_bytes),
              static_cast<std::uint8_t*>(out), static_cast<mpk::Index>(n), element_bytes, bits);
  });
}

int mpk_aes128_ctr(const uint8_t key[16], uint64_t first_block, uint8_t* out, int64_t nbytes) {
  return mpk::guarded([&] { mpk::aes128_ctr(key, first_block, out, static_cast<mpk::Index>(nbytes)); });
}
