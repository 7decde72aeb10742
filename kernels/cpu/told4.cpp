// Local steps of four parties: one tells another a sum of two masked values, of which two witnesses know one each.
#include <cstring>

#include "aes.h"
#include "sha256.h"
#include "steps_common.h"

namespace mpk {
namespace {

constexpr Index kBlock = 256;  // elements at a time: whole cipher blocks, whole words of carries
__extension__ typedef unsigned __int128 Wide;

AesStream opened(const mpk_stream& stream) {
  require(stream.key != nullptr && stream.key_bytes >= 0 && stream.label_bytes >= 0);
  std::uint8_t key[kShaDigest];
  hmac_sha256(stream.key, static_cast<Index>(stream.key_bytes), stream.label, static_cast<Index>(stream.label_bytes),
              nullptr, 0, key);
  AesStream made;
  made.start(key);
  return made;
}

template <class T>
MPK_INLINE void draw(const AesStream& stream, Index start, Index here, T* to) {
  constexpr Index kWidth = static_cast<Index>(sizeof(T));
  stream.at(static_cast<std::uint64_t>(start * kWidth / 16), reinterpret_cast<std::uint8_t*>(to), here * kWidth);
}

// value - mask or -value - mask, as unsigned numbers of k bits.
template <class T>
MPK_INLINE void part(const T* __restrict value, bool minus, const T* __restrict mask, T keep, Index here,
                     T* __restrict to) {
  if (minus)
    for (Index i = 0; i < here; ++i) to[i] = static_cast<T>(T{0} - value[i] - mask[i]) & keep;
  else
    for (Index i = 0; i < here; ++i) to[i] = static_cast<T>(value[i] - mask[i]) & keep;
}

// Sums of numbers times coefficients modulo 2^128. Four sums, for an addition with carry has to wait for the one before.
template <class T>
MPK_INLINE void add_products(const std::uint64_t* __restrict r, const T* __restrict x, Index here, Wide sums[4]) {
  Index i = 0;
  for (; i + 4 <= here; i += 4)
    for (Index j = 0; j < 4; ++j) sums[j] += static_cast<Wide>(r[i + j]) * x[i + j];
  for (; i < here; ++i) sums[0] += static_cast<Wide>(r[i]) * x[i];
}

void put(const Wide sums[4], std::uint8_t tag[16]) {
  const Wide sum = sums[0] + sums[1] + sums[2] + sums[3];
  for (int i = 0; i < 16; ++i) tag[i] = static_cast<std::uint8_t>(sum >> (120 - 8 * i));
}

template <class T>
struct Sizes {
  explicit Sizes(int bits) : spare(8 * static_cast<int>(sizeof(T)) - bits), keep(static_cast<T>(~T{0} >> spare)) {}
  const int spare;
  const T keep;
};

template <class T>
struct Tell {
  const T *first, *second, *base;
  bool minus_first, minus_second;
  AesStream masks[2];
  Index n;
  int bits;
  T *out, *wire;
  std::uint64_t* carries;

  MPK_INLINE void body(bool wide) const {
    const Sizes<T> sizes(bits);
    alignas(64) T mask[kBlock], x[kBlock], y[kBlock], none[kBlock];
    for (Index start = 0; start < n; start += kBlock) {
      const Index here = n - start < kBlock ? n - start : kBlock;
      draw(masks[0], start, here, mask);
      part(first + start, minus_first, mask, sizes.keep, here, x);
      draw(masks[1], start, here, mask);
      part(second + start, minus_second, mask, sizes.keep, here, y);
      T *const __restrict to = wire + start, *const __restrict sum = out + start;
      if (sizes.spare == 0) {  // the highest bit of `none` says that nothing is carried
        for (Index i = 0; i < here; ++i) {
          const T s = static_cast<T>(x[i] + y[i]);
          none[i] = static_cast<T>(~((x[i] & y[i]) | ((x[i] | y[i]) & ~s)));
          to[i] = s;
          sum[i] = static_cast<T>(base[start + i] + s);
        }
      } else {
        for (Index i = 0; i < here; ++i) {
          const T s = static_cast<T>(x[i] + y[i]);
          none[i] = static_cast<T>(~static_cast<T>(s << (sizes.spare - 1)));
          to[i] = wrapped<T>(s, sizes.spare);
          sum[i] = static_cast<T>(base[start + i] + to[i]);
        }
      }
      for (Index i = 0; i < here; i += 64) {
        const Index bits_here = here - i < 64 ? here - i : 64;
        carries[(start + i) / 64] = signs(wide, none + i, bits_here);
      }
    }
  }
};

template <class T>
struct Vouch {
  const T *values[2], *base;
  bool minus[2];
  AesStream masks[4], coefficients[2];
  Index n;
  int bits;
  T* out;
  std::uint8_t* tags;

  MPK_INLINE void body(bool) const {
    const Sizes<T> sizes(bits);
    alignas(64) T mask[kBlock], x[kBlock];
    alignas(64) std::uint64_t r[kBlock];
    Wide sums[2][4] = {};
    for (Index start = 0; start < n; start += kBlock) {
      const Index here = n - start < kBlock ? n - start : kBlock;
      T* const __restrict sum = out + start;
      std::memcpy(sum, base + start, static_cast<std::size_t>(here) * sizeof(T));
      for (int m = 0; m < 4; ++m) {
        draw(masks[m], start, here, mask);
        for (Index i = 0; i < here; ++i) sum[i] = static_cast<T>(sum[i] + wrapped<T>(mask[i], sizes.spare));
        if (m >= 2) continue;
        part(values[m] + start, minus[m], mask, sizes.keep, here, x);
        draw(coefficients[m], start, here, r);
        add_products(r, x, here, sums[m]);
      }
    }
    put(sums[0], tags);
    put(sums[1], tags + 16);
  }
};

template <class T>
struct Told {
  const T* wire;
  const std::uint64_t* carries;
  AesStream coefficients;
  Index n;
  int bits;
  T* out;
  std::uint8_t* tag;

  MPK_INLINE void body(bool) const {
    const Sizes<T> sizes(bits);
    alignas(64) T x[kBlock];
    alignas(64) std::uint64_t r[kBlock];
    Wide sums[4] = {};
    for (Index start = 0; start < n; start += kBlock) {
      const Index here = n - start < kBlock ? n - start : kBlock;
      T* const __restrict sum = out + start;
      for (Index i = 0; i < here; ++i) {
        const T came = wire[start + i];
        sum[i] = static_cast<T>(sum[i] + came);
        x[i] = came & sizes.keep;
      }
      draw(coefficients, start, here, r);
      add_products(r, x, here, sums);
      std::uint64_t low = 0, high = 0;  // of the coefficients whose numbers carry
      for (Index first = 0; first < here; first += 64) {
        const std::uint64_t word = carries[(start + first) / 64];
        const Index bits_here = here - first < 64 ? here - first : 64;
        for (Index i = 0; i < bits_here; ++i) {
          const std::uint64_t chosen = r[first + i] & (0 - (word >> i & 1));
          low += chosen & 0xffffffffu;
          high += chosen >> 32;
        }
      }
      sums[0] += (static_cast<Wide>(low) + (static_cast<Wide>(high) << 32)) << bits;
    }
    put(sums, tag);
  }
};

template <class Pass>
void portable(const Pass& pass) {
  pass.body(false);
}

#ifdef MPK_X86
template <class Pass>
MPK_TARGET("avx2") void wide(const Pass& pass) {
  pass.body(true);
}
#endif

template <class Pass>
void run(const Pass& pass) {
#ifdef MPK_X86
  if (has_avx2()) return wide(pass);
#endif
  portable(pass);
}

void require_pass(std::int64_t n, int element_bytes, int bits) {
  require_elements(n, element_bytes, bits);
  require(aes_level() > 0, MPK_UNSUPPORTED);
}

}  // namespace
}  // namespace mpk

int mpk_tell(const void* first, const void* second, int minus, const mpk_stream masks[2], int64_t n, int element_bytes,
             int bits, const void* base, void* out, void* wire, uint64_t* carries) {
  using namespace mpk;
  return guarded([&] {
    require_pass(n, element_bytes, bits);
    with_width(element_bytes, [&](auto zero) {
      using T = decltype(zero);
      run(Tell<T>{static_cast<const T*>(first),
                  static_cast<const T*>(second),
                  static_cast<const T*>(base),
                  (minus & 1) != 0,
                  (minus & 2) != 0,
                  {opened(masks[0]), opened(masks[1])},
                  static_cast<Index>(n),
                  bits,
                  static_cast<T*>(out),
                  static_cast<T*>(wire),
                  carries});
    });
  });
}

int mpk_vouch(const void* first, const void* second, int minus, const mpk_stream masks[4],
              const mpk_stream coefficients[2], int64_t n, int element_bytes, int bits, const void* base, void* out,
              uint8_t tags[32]) {
  using namespace mpk;
  return guarded([&] {
    require_pass(n, element_bytes, bits);
    with_width(element_bytes, [&](auto zero) {
      using T = decltype(zero);
      run(Vouch<T>{{static_cast<const T*>(first), static_cast<const T*>(second)},
                   static_cast<const T*>(base),
                   {(minus & 1) != 0, (minus & 2) != 0},
                   {opened(masks[0]), opened(masks[1]), opened(masks[2]), opened(masks[3])},
                   {opened(coefficients[0]), opened(coefficients[1])},
                   static_cast<Index>(n),
                   bits,
                   static_cast<T*>(out),
                   tags});
    });
  });
}

int mpk_told(const void* wire, const uint64_t* carries, const mpk_stream* coefficients, int64_t n, int element_bytes,
             int bits, void* out, uint8_t tag[16]) {
  using namespace mpk;
  return guarded([&] {
    require_pass(n, element_bytes, bits);
    with_width(element_bytes, [&](auto zero) {
      using T = decltype(zero);
      run(Told<T>{static_cast<const T*>(wire), carries, opened(*coefficients), static_cast<Index>(n), bits,
                  static_cast<T*>(out), tag});
    });
  });
}
