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
constexpr int kMostTerms = 16, kMostOut = 4;  // terms of one half

// As signed numbers of fewer bits than T has, which is unsigned. Apart from the loops of whole words: there is no
// vector instruction for it.
template <class T>
MPK_INLINE void wrap(T* x, Index n, int spare) {
  using Signed = std::make_signed_t<T>;
  if (spare == 0) return;
  for (Index i = 0; i < n; ++i) x[i] = static_cast<T>(static_cast<Signed>(x[i] << spare) >> spare);
}

// A term of one half, its operands and wire from the half's first element on.
struct Local {
  int op;
  const void* operand[MPK_MOST_OPERANDS];
  Index mask_at, rest_at;
  std::uint8_t *wire, *tag;
  AesStream mask;
  Gmac gmac;
};

// What stays the same for all blocks of one half.
struct Joint {
  Local* terms;
  Index count, n;
  int spare, wire_bytes, up;
  bool xored;
  const void* base;
  Index base_stride;
  void* out;
  Index out_stride, outs;
};

struct Bytes {
  const std::uint8_t* data;
  Index size;
};

// The key of a message's tag: the first block of a stream of its own.
void start_tag(Gmac& tag, Bytes key, Bytes label, Bytes suffix) {
  std::uint8_t stream[kShaDigest], own[16];
  hmac_sha256(key.data, key.size, label.data, label.size, suffix.data, suffix.size, stream);
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
  static MPK_INLINE void with_value(const Local& term, Index start, Body&& body) {
    const auto from = [&](int i) { return static_cast<const T*>(term.operand[i]) + start; };
    const T* a = from(0);
    if (term.op == MPK_TERM_COPY) return body([=](Index i) { return a[i]; });
    if constexpr (!Xored)
      if (term.op == MPK_TERM_MINUS) return body([=](Index i) { return static_cast<T>(T{0} - a[i]); });
    const T* b = from(1);
    if (term.op == MPK_TERM_PRODUCT) return body([=](Index i) { return times(a[i], b[i]); });
    if constexpr (!Xored) {
      const T* c = from(2);
      if (term.op == MPK_TERM_CHOSEN) return body([=](Index i) { return static_cast<T>((a[i] + b[i]) & (T{0} - c[i])); });
      const T *d = from(3), *e = from(4), *f = from(5);
      body([=](Index i) { return static_cast<T>(a[i] * (b[i] - (c[i] << 1)) + d[i] * (e[i] - (f[i] << 1))); });
    }
  }

  template <class Out>
  static MPK_INLINE Out raised(T x, int up) {
    return static_cast<Out>(static_cast<Out>(x) << up);
  }

  // The common case, all in one loop: the rest, and both into rows that have been begun.
  template <class Out, bool Up>
  static MPK_INLINE void settle(const Local& term, Index start, Index here, const T* __restrict mask,
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
      for (Index i = 0; i < here; ++i) {
        const std::uint16_t low = static_cast<std::uint16_t>(v[i]);
        std::memcpy(to + 2 * i, &low, 2);
      }
    else
      for (Index i = 0; i < here; ++i) std::memcpy(to + i * bytes, v + i, static_cast<std::size_t>(bytes));
  }

  template <class Out>
  static MPK_INLINE void run(const Joint& j) {
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
        Local& term = j.terms[t];
        term.mask.at(static_cast<std::uint64_t>(start * kWidth / 16), reinterpret_cast<std::uint8_t*>(mask),
                     here * kWidth);
        wrap(mask, here, j.spare);
        Out* const masks = term.mask_at < 0 ? nullptr : out[term.mask_at];
        Out* const rests = term.rest_at < 0 ? nullptr : out[term.rest_at];
        if (term.op == MPK_TERM_UNKNOWN) {
          if (masks != nullptr) add<Out>(masks, mask, here, j.up);
          continue;
        }
        const bool whole = j.wire_bytes == kWidth;
        std::uint8_t* const wire = term.wire == nullptr ? nullptr : term.wire + start * j.wire_bytes;
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
        if (term.tag != nullptr) term.gmac.add(sent, here * j.wire_bytes);
      }
    }
  }
};

template <class T, class Out, bool Xored>
void portable(const Joint& j) {
  Blocks<T, Xored>::template run<Out>(j);
}

#ifdef MPK_X86
template <class T, class Out, bool Xored>
MPK_TARGET("avx2") void wide(const Joint& j) {
  Blocks<T, Xored>::template run<Out>(j);
}
#endif

template <class T, class Out, bool Xored>
void chosen(const Joint& j) {
#ifdef MPK_X86
  if (has_avx2()) return wide<T, Out, Xored>(j);
#endif
  portable<T, Out, Xored>(j);
}

constexpr int kOperands[] = {0, 1, 2, 6, 3, 1};  // by mpk_term_op

// A term for this use: of the elements from `start` on.
void localize(Local& local, const mpk_term& term, const mpk_use& use, Index start, int element_bytes, bool xored,
              Index outs) {
  require(term.op >= MPK_TERM_UNKNOWN && term.op <= (xored ? MPK_TERM_PRODUCT : MPK_TERM_MINUS));
  require(term.mask_at < outs && term.rest_at < outs && term.key != nullptr);
  require(term.wire < use.wire_count && term.tag < use.tag_count);
  local.op = static_cast<int>(term.op);
  for (int i = 0; i < kOperands[term.op]; ++i) {
    require(term.source[i] >= 0 && term.source[i] < use.source_count);
    const mpk_rows& rows = use.sources[term.source[i]];
    require(term.row[i] >= 0 && term.row[i] < rows.rows);
    local.operand[i] =
        static_cast<const std::uint8_t*>(rows.first) + (term.row[i] * rows.stride + start) * element_bytes;
  }
  local.mask_at = static_cast<Index>(term.mask_at);
  local.rest_at = static_cast<Index>(term.rest_at);
  local.wire = term.wire < 0 ? nullptr : static_cast<std::uint8_t*>(use.wires[term.wire]);
  local.tag = term.tag < 0 ? nullptr : use.tags + 16 * term.tag;
  const Bytes label{use.label, static_cast<Index>(use.label_bytes)};
  std::uint8_t key[kShaDigest];
  hmac_sha256(term.key, static_cast<Index>(term.key_bytes), label.data, label.size, term.suffix,
              static_cast<Index>(term.suffix_bytes), key);
  local.mask.start(key);
  if (local.tag != nullptr)
    start_tag(local.gmac, {term.tag_key, static_cast<Index>(term.tag_key_bytes)}, label,
              {term.tag_suffix, static_cast<Index>(term.tag_suffix_bytes)});
}

void joint(const Joint& j, int element_bytes, int out_bytes) {
  if (j.xored)
    chosen<std::uint64_t, std::uint64_t, true>(j);
  else if (element_bytes == 4 && out_bytes == 4)
    chosen<std::uint32_t, std::uint32_t, false>(j);
  else if (element_bytes == 4)
    chosen<std::uint32_t, std::uint64_t, false>(j);
  else
    chosen<std::uint64_t, std::uint64_t, false>(j);
  for (Index t = 0; t < j.count; ++t)
    if (j.terms[t].tag != nullptr) j.terms[t].gmac.finish(j.terms[t].tag);
}

// What came, in numbers of Bytes bytes each.
template <class Out, int Bytes>
MPK_INLINE void take_block(const std::uint8_t* x, Index here, int up, bool xored, Out* out) {
  using Small = std::conditional_t<Bytes == 2, std::uint16_t, Out>;  // a type of its size, so that it goes by vectors
  constexpr std::size_t most = Bytes < sizeof(Small) ? Bytes : sizeof(Small);
  const auto value = [=](Index i) {
    Small small = 0;
    std::memcpy(&small, x + i * Bytes, most);
    return static_cast<Out>(static_cast<Out>(small) << up);
  };
  if (xored)
    for (Index i = 0; i < here; ++i) out[i] ^= value(i);
  else
    for (Index i = 0; i < here; ++i) out[i] += value(i);
}

template <class Out>
struct Taken {
  const std::uint8_t* data;
  Index n;
  int up;
  bool xored;
  Out* out;
  Gmac* tag;

  template <int Bytes>
  MPK_INLINE void body() const {
    for (Index start = 0; start < n; start += kBlock) {
      const Index here = n - start < kBlock ? n - start : kBlock;
      tag->add(data + start * Bytes, here * Bytes);
      take_block<Out, Bytes>(data + start * Bytes, here, up, xored, out + start);
    }
  }

  template <int Bytes>
  void portable() const {
    body<Bytes>();
  }
#ifdef MPK_X86
  template <int Bytes>
  MPK_TARGET("avx2") void wide() const {
    body<Bytes>();
  }
#endif

  void run(int bytes) const {
    with_bytes(bytes, [&](auto constant) {
#ifdef MPK_X86
      if (has_avx2()) return wide<decltype(constant)::value>();
#endif
      portable<decltype(constant)::value>();
    });
  }
};

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

template <class T>
MPK_INLINE void pair_sums_body(const T* __restrict a, const T* __restrict b, const T* __restrict c, Index n,
                               T* __restrict bc, T* __restrict ac, T* __restrict ab) {
  for (Index i = 0; i < n; ++i) {
    const T x = a[i], y = b[i], z = c[i];
    bc[i] = static_cast<T>(y + z);
    ac[i] = static_cast<T>(x - z);
    ab[i] = static_cast<T>(x + y);
  }
}

template <class T>
void pair_sums_portable(const T* x, Index stride, Index n, T* out) {
  pair_sums_body(x, x + stride, x + 2 * stride, n, out, out + n, out + 2 * n);
}

#ifdef MPK_X86
template <class T>
MPK_TARGET("avx2") void pair_sums_wide(const T* x, Index stride, Index n, T* out) {
  pair_sums_body(x, x + stride, x + 2 * stride, n, out, out + n, out + 2 * n);
}
#endif

template <class T>
void pair_sums(const T* x, Index stride, Index n, T* out) {
#ifdef MPK_X86
  if (has_avx2()) return pair_sums_wide(x, stride, n, out);
#endif
  pair_sums_portable(x, stride, n, out);
}

}  // namespace
}  // namespace mpk

int mpk_joint(const mpk_term* terms, int64_t count, const mpk_use* use, const int64_t n[2], int element_bytes, int bits,
              int xored, int wire_bytes, const void* base, int64_t base_stride, void* out, int64_t out_stride,
              int64_t outs, int out_bytes, int up) {
  using namespace mpk;
  return guarded([&] {
    require(count >= 0 && n[0] >= 0 && n[1] >= 0 && outs >= 0 && outs <= kMostOut);
    require((element_bytes == 4 || element_bytes == 8) && bits >= 1 && bits <= 8 * element_bytes);
    require((out_bytes == 4 || out_bytes == 8) && out_bytes >= element_bytes && up >= 0 && up < 8 * out_bytes);
    require(wire_bytes >= 1 && wire_bytes <= element_bytes && (xored == 0 || (element_bytes == 8 && up == 0)));
    product(static_cast<Index>(n[0]), 8), product(static_cast<Index>(n[1]), 8);
    require(aes_level() > 0, MPK_UNSUPPORTED);
    for (int half = 0; half < 2; ++half) {
      if (n[half] == 0) continue;
      const Index start = half == 0 ? 0 : static_cast<Index>(n[0]);
      Local local[kMostTerms];
      Index found = 0;
      for (int64_t t = 0; t < count; ++t) {
        require(terms[t].half == 0 || terms[t].half == 1);
        if (terms[t].half != half) continue;
        require(found < kMostTerms);
        localize(local[found++], terms[t], *use, start, element_bytes, xored != 0, static_cast<Index>(outs));
      }
      const auto from = [&](const void* first) { return static_cast<const std::uint8_t*>(first) + start * out_bytes; };
      const void* const of_base = base == nullptr ? nullptr : from(base);
      joint(Joint{local, found, static_cast<Index>(n[half]), 8 * element_bytes - bits, wire_bytes, up, xored != 0,
                  of_base, static_cast<Index>(base_stride), static_cast<std::uint8_t*>(out) + start * out_bytes,
                  static_cast<Index>(out_stride), static_cast<Index>(outs)},
            element_bytes, out_bytes);
    }
  });
}

int mpk_pair_sums(const void* x, int64_t stride, int64_t n, int element_bytes, void* out) {
  using namespace mpk;
  return guarded([&] {
    require(n >= 0 && stride >= 0 && (element_bytes == 4 || element_bytes == 8));
    product(static_cast<Index>(n), 24), product(static_cast<Index>(stride), 24);
    with_width(element_bytes, [&](auto zero) {
      using T = decltype(zero);
      pair_sums(static_cast<const T*>(x), static_cast<Index>(stride), static_cast<Index>(n), static_cast<T*>(out));
    });
  });
}

int mpk_tag(const uint8_t* key, int64_t key_bytes, const uint8_t* label, int64_t label_bytes, const uint8_t* suffix,
            int64_t suffix_bytes, const uint8_t* data, int64_t nbytes, uint8_t tag[16]) {
  using namespace mpk;
  return guarded([&] {
    require(nbytes >= 0);
    require(aes_level() > 0, MPK_UNSUPPORTED);
    Gmac gmac;
    start_tag(gmac, {key, static_cast<Index>(key_bytes)}, {label, static_cast<Index>(label_bytes)},
              {suffix, static_cast<Index>(suffix_bytes)});
    gmac.add(data, static_cast<Index>(nbytes));
    gmac.finish(tag);
  });
}

int mpk_take(const uint8_t* key, int64_t key_bytes, const uint8_t* label, int64_t label_bytes, const uint8_t* suffix,
             int64_t suffix_bytes, const uint8_t* data, int wire_bytes, int64_t n, int xored, int up, void* out,
             int out_bytes, uint8_t tag[16]) {
  using namespace mpk;
  return guarded([&] {
    require(wire_bytes >= 1 && wire_bytes <= 8 && n >= 0 && (out_bytes == 4 || out_bytes == 8));
    require(up >= 0 && up < 8 * out_bytes && (xored == 0 || up == 0));
    product(static_cast<Index>(n), 8);
    require(aes_level() > 0, MPK_UNSUPPORTED);
    Gmac gmac;
    start_tag(gmac, {key, static_cast<Index>(key_bytes)}, {label, static_cast<Index>(label_bytes)},
              {suffix, static_cast<Index>(suffix_bytes)});
    with_width(out_bytes, [&](auto zero) {
      using Out = decltype(zero);
      Taken<Out>{data, static_cast<Index>(n), up, xored != 0, static_cast<Out*>(out), &gmac}.run(wire_bytes);
    });
    gmac.finish(tag);
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
