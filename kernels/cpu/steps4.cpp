// Local steps of four parties: values that two of them know become masks, messages and shares, in one pass over blocks
// that stay in the cache.
#include <cstring>
#include <type_traits>

#include "aes.h"
#include "ghash.h"
#include "sha256.h"
#include "steps_common.h"

namespace mpk {
namespace {

// Elements that are worked on at a time, with all rows of it in the first-level cache. Streams are drawn from multiples
// of it, which are whole cipher blocks.
constexpr Index kBlock = 256;
constexpr int kMostTerms = 16, kMostOut = 4;

// As signed numbers of fewer bits than T has, which is unsigned. Apart from the loops of whole words: there is no
// vector instruction for it.
template <class T>
MPK_INLINE void wrap(T* x, Index n, int spare) {
  using Signed = std::make_signed_t<T>;
  if (spare == 0) return;
  for (Index i = 0; i < n; ++i) x[i] = static_cast<T>(static_cast<Signed>(x[i] << spare) >> spare);
}

// What stays the same for all blocks.
struct Joint {
  const mpk_term* terms;
  Index count, n;
  int spare, wire_bytes, up;
  bool xored;
  const void* base;
  Index base_stride;
  void* out;
  Index out_stride, outs;
};

// Of each term: its mask's stream, and what its tag is made with.
struct Streams {
  AesStream mask[kMostTerms];
  Gmac tag[kMostTerms];
};

// The key of a message's tag: the first block of a stream of its own.
void start_tag(Gmac& tag, const std::uint8_t* key, Index key_bytes, const std::uint8_t* label, Index label_bytes) {
  std::uint8_t stream[kShaDigest], own[16];
  hmac_sha256(key, key_bytes, label, label_bytes, stream);
  aes128_ctr(stream, 0, own, 16);
  tag.start(own);
}

template <class T, bool Xored>
struct Blocks {
  static MPK_INLINE T plus(T x, T y) { return Xored ? static_cast<T>(x ^ y) : static_cast<T>(x + y); }
  static MPK_INLINE T minus(T x, T y) { return Xored ? static_cast<T>(x ^ y) : static_cast<T>(x - y); }
  static MPK_INLINE T times(T x, T y) { return Xored ? static_cast<T>(x & y) : static_cast<T>(x * y); }

  // Calls body(function of an index that gives the term's value there).
  template <class Body>
  static MPK_INLINE void with_value(const mpk_term& term, Index start, Body&& body) {
    const auto from = [start](const void* first) {
      return first == nullptr ? nullptr : static_cast<const T*>(first) + start;
    };
    const T *a = from(term.a), *b = from(term.b), *c = from(term.c), *d = from(term.d);
    switch (term.op) {
      case MPK_TERM_COPY: return body([=](Index i) { return a[i]; });
      case MPK_TERM_PRODUCT: return body([=](Index i) { return times(a[i], b[i]); });
      case MPK_TERM_CROSS: return body([=](Index i) { return plus(times(a[i], b[i]), times(c[i], d[i])); });
      default:  // MPK_TERM_CHOSEN
        return body([=](Index i) { return static_cast<T>((a[i] + b[i]) & (T{0} - c[i])); });
    }
  }

  template <class Out>
  static MPK_INLINE Out raised(T x, int up) {
    return static_cast<Out>(static_cast<Out>(x) << up);
  }

  // The common case, all in one loop: the rest, and both into rows that have been begun.
  template <class Out, bool Up>
  static MPK_INLINE void settle(const mpk_term& term, Index start, Index here, const T* __restrict mask,
                                Out* __restrict masks, Out* __restrict rests, int up, T* __restrict rest) {
    with_value(term, start, [&](auto value) {
      for (Index i = 0; i < here; ++i) {
        const T m = mask[i], r = minus(value(i), m);
        rest[i] = r;
        if constexpr (Xored) {
          masks[i] ^= m;
          rests[i] ^= r;
        } else {
          masks[i] += raised<Out>(m, Up ? up : 0);
          rests[i] += raised<Out>(r, Up ? up : 0);
        }
      }
    });
  }

  template <class Out>
  static MPK_INLINE void add(Out* __restrict out, const T* __restrict x, Index here, int up) {
    if constexpr (Xored)
      for (Index i = 0; i < here; ++i) out[i] ^= static_cast<Out>(x[i]);
    else if (up == 0)
      for (Index i = 0; i < here; ++i) out[i] += static_cast<Out>(x[i]);
    else
      for (Index i = 0; i < here; ++i) out[i] += raised<Out>(x[i], up);
  }

  // As bytes of the wire.
  static MPK_INLINE void narrowed(const T* __restrict v, Index here, int bytes, std::uint8_t* __restrict to) {
    if (bytes == 2)
      for (Index i = 0; i < here; ++i) std::memcpy(to + 2 * i, v + i, 2);
    else
      for (Index i = 0; i < here; ++i) std::memcpy(to + i * bytes, v + i, static_cast<std::size_t>(bytes));
  }

  template <class Out>
  static MPK_INLINE void run(const Joint& j, Streams& streams) {
    constexpr Index kWidth = static_cast<Index>(sizeof(T));
    alignas(64) T mask[kBlock], v[kBlock];
    alignas(64) std::uint8_t small[kBlock * sizeof(T)];
    for (Index start = 0; start < j.n; start += kBlock) {
      const Index here = j.n - start < kBlock ? j.n - start : kBlock;
      Out* out[kMostOut];
      for (Index o = 0; o < j.outs; ++o) {
        out[o] = static_cast<Out*>(j.out) + o * j.out_stride + start;
        if (j.base == nullptr)
          std::memset(out[o], 0, static_cast<std::size_t>(here) * sizeof(Out));
        else if (j.base != j.out)
          std::memcpy(out[o], static_cast<const Out*>(j.base) + o * j.base_stride + start,
                      static_cast<std::size_t>(here) * sizeof(Out));
      }
      for (Index t = 0; t < j.count; ++t) {
        const mpk_term& term = j.terms[t];
        if (term.key == nullptr) continue;
        streams.mask[t].at(static_cast<std::uint64_t>(start * kWidth / 16), reinterpret_cast<std::uint8_t*>(mask),
                           here * kWidth);
        wrap(mask, here, j.spare);
        Out* const masks = term.mask_at < 0 ? nullptr : out[term.mask_at];
        Out* const rests = term.rest_at < 0 ? nullptr : out[term.rest_at];
        if (term.op == MPK_TERM_UNKNOWN) {
          if (masks != nullptr) add<Out>(masks, mask, here, j.up);
          continue;
        }
        const bool whole = j.wire_bytes == kWidth;
        std::uint8_t* const wire =
            term.wire == nullptr ? nullptr : static_cast<std::uint8_t*>(term.wire) + start * j.wire_bytes;
        T* const rest = whole && wire != nullptr ? reinterpret_cast<T*>(wire) : v;
        if (masks != nullptr && rests != nullptr && masks != rests && j.spare == 0) {
          if (j.up == 0)
            settle<Out, false>(term, start, here, mask, masks, rests, 0, rest);
          else
            settle<Out, true>(term, start, here, mask, masks, rests, j.up, rest);
        } else {
          with_value(term, start, [&](auto value) {
            for (Index i = 0; i < here; ++i) rest[i] = minus(value(i), mask[i]);
          });
          wrap(rest, here, j.spare);
          if (masks != nullptr) add<Out>(masks, mask, here, j.up);
          if (rests != nullptr) add<Out>(rests, rest, here, j.up);
        }
        const std::uint8_t* sent = reinterpret_cast<const std::uint8_t*>(rest);
        if (!whole) {
          std::uint8_t* const to = wire != nullptr ? wire : small;
          narrowed(rest, here, j.wire_bytes, to);
          sent = to;
        }
        if (term.tag != nullptr) streams.tag[t].add(sent, here * j.wire_bytes);
      }
    }
  }
};

template <class T, class Out, bool Xored>
void portable(const Joint& j, Streams& streams) {
  Blocks<T, Xored>::template run<Out>(j, streams);
}

#ifdef MPK_X86
template <class T, class Out, bool Xored>
MPK_TARGET("avx2") void wide(const Joint& j, Streams& streams) {
  Blocks<T, Xored>::template run<Out>(j, streams);
}
#endif

template <class T, class Out, bool Xored>
void chosen(const Joint& j, Streams& streams) {
#ifdef MPK_X86
  if (has_avx2()) return wide<T, Out, Xored>(j, streams);
#endif
  portable<T, Out, Xored>(j, streams);
}

void joint(const Joint& j, int element_bytes, int out_bytes) {
  Streams streams;
  for (Index t = 0; t < j.count; ++t) {
    const mpk_term& term = j.terms[t];
    require(term.op >= MPK_TERM_UNKNOWN && term.op <= MPK_TERM_CHOSEN);
    require(term.mask_at < j.outs && term.rest_at < j.outs);
    require(term.op == MPK_TERM_UNKNOWN || term.key != nullptr);
    if (term.key != nullptr) {
      std::uint8_t key[kShaDigest];
      hmac_sha256(term.key, static_cast<Index>(term.key_bytes), term.label, static_cast<Index>(term.label_bytes), key);
      streams.mask[t].start(key);
    }
    if (term.tag != nullptr)
      start_tag(streams.tag[t], term.tag_key, static_cast<Index>(term.tag_key_bytes), term.tag_label,
                static_cast<Index>(term.tag_label_bytes));
  }
  if (j.xored)
    chosen<std::uint64_t, std::uint64_t, true>(j, streams);
  else if (element_bytes == 4 && out_bytes == 4)
    chosen<std::uint32_t, std::uint32_t, false>(j, streams);
  else if (element_bytes == 4)
    chosen<std::uint32_t, std::uint64_t, false>(j, streams);
  else
    chosen<std::uint64_t, std::uint64_t, false>(j, streams);
  for (Index t = 0; t < j.count; ++t)
    if (j.terms[t].tag != nullptr) streams.tag[t].finish(static_cast<std::uint8_t*>(j.terms[t].tag));
}

// Adds numbers of Bytes bytes each.
template <class Out>
MPK_INLINE void add_bytes_body(const std::uint8_t* x, int bytes, Index n, int up, Out* out) {
  const auto from = [&](Index i, auto count) {
    Out value = 0;
    std::memcpy(&value, x + i * count.value, count.value < sizeof(Out) ? count.value : sizeof(Out));
    return static_cast<Out>(value << up);
  };
  if (bytes == 2)
    for (Index i = 0; i < n; ++i) out[i] += from(i, std::integral_constant<std::size_t, 2>{});
  else
    for (Index i = 0; i < n; ++i) {
      Out value = 0;
      const std::size_t most = static_cast<std::size_t>(bytes);
      std::memcpy(&value, x + i * bytes, most < sizeof(Out) ? most : sizeof(Out));
      out[i] += static_cast<Out>(value << up);
    }
}

template <class Out>
void add_bytes_portable(const std::uint8_t* x, int bytes, Index n, int up, Out* out) {
  add_bytes_body(x, bytes, n, up, out);
}

#ifdef MPK_X86
template <class Out>
MPK_TARGET("avx2") void add_bytes_wide(const std::uint8_t* x, int bytes, Index n, int up, Out* out) {
  add_bytes_body(x, bytes, n, up, out);
}
#endif

template <class Out>
void add_bytes(const std::uint8_t* x, int bytes, Index n, int up, Out* out) {
#ifdef MPK_X86
  if (has_avx2()) return add_bytes_wide(x, bytes, n, up, out);
#endif
  add_bytes_portable(x, bytes, n, up, out);
}

template <class T, class Small>
MPK_INLINE void shifted_body(const T* __restrict x, const T* __restrict y, T lift, T constant, Index n, int k, int t,
                             T* __restrict out, Small* __restrict bit) {
  const int spare = 8 * static_cast<int>(sizeof(T)) - k;
  const T keep = static_cast<T>(~T{0} >> (spare + t));
  alignas(64) T total[kBlock];
  for (Index start = 0; start < n; start += kBlock) {
    const Index here = n - start < kBlock ? n - start : kBlock;
    if (y == nullptr)
      for (Index i = 0; i < here; ++i) total[i] = static_cast<T>(x[start + i] + lift);
    else
      for (Index i = 0; i < here; ++i) total[i] = static_cast<T>(x[start + i] + y[start + i] + lift);
    for (Index i = 0; i < here; ++i) {
      bit[start + i] = static_cast<Small>(~total[i] >> (k - 1) & 1);
      out[start + i] = static_cast<T>((total[i] >> t & keep) - constant);
    }
    wrap(out + start, here, spare);
  }
}

template <class T, class Small>
void shifted_portable(const T* x, const T* y, T lift, T constant, Index n, int k, int t, T* out, Small* bit) {
  shifted_body(x, y, lift, constant, n, k, t, out, bit);
}

#ifdef MPK_X86
template <class T, class Small>
MPK_TARGET("avx2")
void shifted_wide(const T* x, const T* y, T lift, T constant, Index n, int k, int t, T* out, Small* bit) {
  shifted_body(x, y, lift, constant, n, k, t, out, bit);
}
#endif

template <class T, class Small>
void shifted(const void* x, const void* y, std::int64_t lift, std::int64_t constant, Index n, int k, int t, void* out,
             void* bit) {
  const T *first = static_cast<const T*>(x), *second = static_cast<const T*>(y);
  T* to = static_cast<T*>(out);
  Small* top = static_cast<Small*>(bit);
#ifdef MPK_X86
  if (has_avx2())
    return shifted_wide(first, second, static_cast<T>(lift), static_cast<T>(constant), n, k, t, to, top);
#endif
  shifted_portable(first, second, static_cast<T>(lift), static_cast<T>(constant), n, k, t, to, top);
}

}  // namespace
}  // namespace mpk

int mpk_joint(const mpk_term* terms, int64_t count, int64_t n, int element_bytes, int bits, int xored, int wire_bytes,
              const void* base, int64_t base_stride, void* out, int64_t out_stride, int64_t outs, int out_bytes,
              int up) {
  using namespace mpk;
  return guarded([&] {
    require(count >= 0 && count <= kMostTerms && n >= 0 && outs >= 0 && outs <= kMostOut);
    require((element_bytes == 4 || element_bytes == 8) && bits >= 1 && bits <= 8 * element_bytes);
    require((out_bytes == 4 || out_bytes == 8) && out_bytes >= element_bytes && up >= 0 && up < 8 * out_bytes);
    require(wire_bytes >= 1 && wire_bytes <= element_bytes && (xored == 0 || (element_bytes == 8 && up == 0)));
    product(static_cast<Index>(n), 8);
    require(aes_level() > 0, MPK_UNSUPPORTED);
    joint(Joint{terms, static_cast<Index>(count), static_cast<Index>(n), 8 * element_bytes - bits, wire_bytes, up,
                xored != 0, base, static_cast<Index>(base_stride), out, static_cast<Index>(out_stride),
                static_cast<Index>(outs)},
          element_bytes, out_bytes);
  });
}

int mpk_tag(const uint8_t* key, int64_t key_bytes, const uint8_t* label, int64_t label_bytes, const uint8_t* data,
            int64_t nbytes, uint8_t tag[16]) {
  using namespace mpk;
  return guarded([&] {
    require(nbytes >= 0);
    require(aes_level() > 0, MPK_UNSUPPORTED);
    Gmac gmac;
    start_tag(gmac, key, static_cast<Index>(key_bytes), label, static_cast<Index>(label_bytes));
    gmac.add(data, static_cast<Index>(nbytes));
    gmac.finish(tag);
  });
}

int mpk_add_bytes(const uint8_t* x, int x_bytes, int64_t n, int up, void* out, int out_bytes) {
  using namespace mpk;
  return guarded([&] {
    require(x_bytes >= 1 && x_bytes <= 8 && n >= 0 && (out_bytes == 4 || out_bytes == 8));
    require(up >= 0 && up < 8 * out_bytes);
    product(static_cast<Index>(n), 8);
    if (out_bytes == 4)
      add_bytes(x, x_bytes, static_cast<Index>(n), up, static_cast<std::uint32_t*>(out));
    else
      add_bytes(x, x_bytes, static_cast<Index>(n), up, static_cast<std::uint64_t*>(out));
  });
}

int mpk_shifted(const void* x, const void* y, int64_t lift, int64_t constant, int64_t n, int element_bytes, int k,
                int t, void* out, void* bit, int bit_bytes) {
  using namespace mpk;
  return guarded([&] {
    require(n >= 0 && (element_bytes == 4 || element_bytes == 8) && k >= 1 && k <= 8 * element_bytes);
    require(t >= 1 && t < k && (bit_bytes == 4 || bit_bytes == 8));
    product(static_cast<Index>(n), 8);
    const Index count = static_cast<Index>(n);
    if (element_bytes == 4 && bit_bytes == 4)
      shifted<std::uint32_t, std::uint32_t>(x, y, lift, constant, count, k, t, out, bit);
    else if (element_bytes == 4)
      shifted<std::uint32_t, std::uint64_t>(x, y, lift, constant, count, k, t, out, bit);
    else if (bit_bytes == 4)
      shifted<std::uint64_t, std::uint32_t>(x, y, lift, constant, count, k, t, out, bit);
    else
      shifted<std::uint64_t, std::uint64_t>(x, y, lift, constant, count, k, t, out, bit);
  });
}
