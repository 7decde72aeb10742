// Truncations of three parties: what a party computes between two rounds, in all of its roles, each in one pass.
#include "streams3.h"

namespace mpk {
namespace {

template <int Bytes, class T>
constexpr int kCopied = Bytes < static_cast<int>(sizeof(T)) ? Bytes : static_cast<int>(sizeof(T));

// An element of Z_2^t as it goes over the wire.
template <int Bytes, class T>
MPK_INLINE T small_at(const std::uint8_t* from, Index i) {
  T value = 0;
  std::memcpy(&value, from + i * Bytes, kCopied<Bytes, T>);
  return value;
}

// The lowest bytes of a signed number of t bits.
template <int Bytes, class T>
MPK_INLINE void put_small(std::uint8_t* to, Index i, T value, int t) {
  const T reduced = wrapped<T>(value, 8 * static_cast<int>(sizeof(T)) - t);
  std::memcpy(to + i * Bytes, &reduced, kCopied<Bytes, T>);
}

// Masks of t bits lie in elements of 4 bytes up to t = 32.
template <class T>
MPK_INLINE T small_mask(const std::uint8_t* from, Index i, int width) {
  if (width == 4) {
    std::uint32_t value;
    std::memcpy(&value, from + 4 * i, 4);
    return static_cast<T>(value);
  }
  T value;
  std::memcpy(&value, from + i * static_cast<Index>(sizeof(T)), sizeof(T));
  return value;
}

MPK_INLINE int mask_width(int t) { return t <= 32 ? 4 : 8; }

// The first step: u and its sign as role 0, what it deals as role 2; and v and its sign as role 1, if it knows v.
template <class T, int Bytes>
struct TruncateBegin {
  const mpk_pass& pass;
  const mpk_chunks& c;
  const T *x0, *x1;  // the partial and null, or both components of a share
  int t;
  T* u;
  std::uint64_t* alpha;
  std::uint8_t* dealt;
  T* other;  // z2, or v
  std::uint64_t* beta;

  MPK_INLINE void body(bool wide) const {
    constexpr Index kWidth = static_cast<Index>(sizeof(T));
    const bool reduce = x1 == nullptr;
    const T lift = T{1} << (8 * sizeof(T) - 2);
    {
      Stream mask(pass, reduce ? Stream::kPrev : Stream::kNext, reduce ? "/mask/02" : "/u/01", c.n[0] * kWidth);
      Stream bit(pass, Stream::kPrev, "/bit/02", c.words[0] * 8);
      in_blocks(c.n[0], [&](Index start, Index here) __attribute__((always_inline)) {
        const T *m = mask.from<T>(start, here), *a = x0 + c.start[0] + start, *b = x1 + c.start[0] + start;
        T* to = u + start;
        if (reduce)
          for (Index i = 0; i < here; ++i) to[i] = static_cast<T>(a[i] - m[i] + lift);
        else
          for (Index i = 0; i < here; ++i) to[i] = static_cast<T>(a[i] + b[i] + m[i] + lift);
        const std::uint64_t* r = bit.from<std::uint64_t>(start / 64, ceil_div(here, 64));
        in_words(start, here, [&](Index word, Index i, Index count) __attribute__((always_inline)) {
          alpha[word] = signs(wide, u + i, count) ^ r[word - start / 64];
        });
      });
    }
    {
      const int width = mask_width(t);
      Stream a(pass, Stream::kNext, "/bit/02", c.words[2] * 8), b(pass, Stream::kPrev, "/bit/12", c.words[2] * 8);
      Stream c0(pass, Stream::kNext, "/c/02", c.n[2] * width);
      in_blocks(c.n[2], [&](Index start, Index here) __attribute__((always_inline)) {
        const Index words = ceil_div(here, 64);
        const std::uint64_t *r_a = a.from<std::uint64_t>(start / 64, words), *r_b = b.from<std::uint64_t>(start / 64, words);
        const std::uint8_t* known = c0.at(start * width, here * width);
        for (Index i = 0; i < here; ++i) {
          const T both = static_cast<T>((r_a[i / 64] & r_b[i / 64]) >> (i % 64) & 1);
          put_small<Bytes>(dealt, start + i, static_cast<T>(both - small_mask<T>(known, i, width)), t);
        }
      });
    }
    if (reduce) {
      Stream mask(pass, Stream::kNext, "/mask/02", c.n[2] * kWidth);
      in_blocks(c.n[2], [&](Index start, Index here) __attribute__((always_inline)) {
        const T *m = mask.from<T>(start, here), *a = x0 + c.start[2] + start;
        T* to = other + start;
        for (Index i = 0; i < here; ++i) to[i] = static_cast<T>(a[i] + m[i]);
      });
    } else {
      Stream mask(pass, Stream::kPrev, "/u/01", c.n[1] * kWidth), bit(pass, Stream::kNext, "/bit/12", c.words[1] * 8);
      in_blocks(c.n[1], [&](Index start, Index here) __attribute__((always_inline)) {
        const T *m = mask.from<T>(start, here), *b = x1 + c.start[1] + start;
        T* to = other + start;
        for (Index i = 0; i < here; ++i) to[i] = static_cast<T>(b[i] - m[i]);
        const std::uint64_t* r = bit.from<std::uint64_t>(start / 64, ceil_div(here, 64));
        in_words(start, here, [&](Index word, Index i, Index count) __attribute__((always_inline)) {
          beta[word] = signs(wide, other + i, count) ^ r[word - start / 64];
        });
      });
    }
  }
};

// One half of the quotient, masked; the mask is kept as a component of the result.
//   role 0: s = u, own = alpha.   role 1: s = v (plus what role 2 sent), own = beta; where `last` is given, beta is made here.
template <class T, int Bytes>
struct TruncateHalf {
  const mpk_pass& pass;
  const mpk_chunks& c;
  int role;
  const T *s, *last;
  std::uint64_t* own;         // masked, as it is sent
  const std::uint64_t* seen;  // the other's
  const std::uint8_t* dealt;  // role 1's correction, Bytes bytes an element; role 0 draws its own
  int t;
  T* half;
  T* out;  // (2, total)

  MPK_INLINE void body(bool wide) const {
    constexpr Index kWidth = static_cast<Index>(sizeof(T));
    constexpr int kBits = 8 * static_cast<int>(sizeof(T));
    const bool first = role == 0;
    const Index n = c.n[role];
    const int up = kBits - t, width = mask_width(t);
    const T constant = first ? 0 : static_cast<T>((T{1} << up) + (T{1} << (up - 2)) - 1);
    Stream bit(pass, first ? Stream::kPrev : Stream::kNext, first ? "/bit/02" : "/bit/12", c.words[role] * 8);
    Stream mask(pass, first ? Stream::kPrev : Stream::kNext, first ? "/02" : "/12", n * kWidth);
    Stream c0(pass, Stream::kPrev, "/c/02", first ? n * width : 0);
    T* kept = out + (first ? 0 : c.total) + c.start[role];
    alignas(64) T sum[kPassBlock];
    in_blocks(n, [&](Index start, Index here) __attribute__((always_inline)) {
      const T* from = s + start;
      const std::uint64_t* r = bit.from<std::uint64_t>(start / 64, ceil_div(here, 64));
      if (last != nullptr) {
        for (Index i = 0; i < here; ++i) sum[i] = static_cast<T>(from[i] + last[start + i]);
        from = sum;
        for (Index i = 0; i < here; i += 64)
          own[(start + i) / 64] = signs(wide, sum + i, here - i < 64 ? here - i : 64) ^ r[i / 64];
      }
      const T* m = mask.from<T>(start, here);
      const std::uint8_t* known = first ? c0.at(start * width, here * width) : dealt + start * Bytes;
      const auto quotients = [&](auto correction) __attribute__((always_inline)) {
        in_words(start, here, [&](Index word, Index at, Index count) __attribute__((always_inline)) {
          const std::uint64_t shown = own[word], bare = shown ^ r[word - start / 64], other = seen[word];
          const std::uint64_t plus = bare & other, minus = first ? shown & other : 0, sign = shown ^ other;
          for (Index j = 0; j < count; ++j) {
            const Index i = at + j - start;
            const T negative = static_cast<T>(sign >> j & 1);
            const T one = static_cast<T>(static_cast<T>(plus >> j & 1) - static_cast<T>(minus >> j & 1));
            const T product = static_cast<T>((correction(i) ^ static_cast<T>(-negative)) + negative + one);
            half[start + i] = static_cast<T>((from[i] >> t) + (product << up) - constant - m[i]);
          }
        });
      };
      if (!first)
        quotients([&](Index i) __attribute__((always_inline)) { return small_at<Bytes, T>(known, i); });
      else if (width == 4)
        quotients([&](Index i) __attribute__((always_inline)) { return small_mask<T>(known, i, 4); });
      else
        quotients([&](Index i) __attribute__((always_inline)) { return small_mask<T>(known, i, 8); });
      std::memcpy(kept + start, m, static_cast<std::size_t>(here * kWidth));
    });
  }
};

// The result's components: sums of both halves as roles 0 and 1, streams as role 2.
template <class T>
struct TruncateEnd {
  const mpk_pass& pass;
  const mpk_chunks& c;
  const T *half0, *seen1, *half1, *seen0;
  T* out;

  MPK_INLINE void body(bool) const {
    T *second = out + c.total + c.start[0], *first = out + c.start[1];
    for (Index i = 0; i < c.n[0]; ++i) second[i] = static_cast<T>(half0[i] + seen1[i]);
    for (Index i = 0; i < c.n[1]; ++i) first[i] = static_cast<T>(half1[i] + seen0[i]);
    constexpr Index kWidth = static_cast<Index>(sizeof(T));
    Stream s2(pass, Stream::kPrev, "/12", c.n[2] * kWidth), s0(pass, Stream::kNext, "/02", c.n[2] * kWidth);
    in_blocks(c.n[2], [&](Index start, Index here) __attribute__((always_inline)) {
      const auto bytes = static_cast<std::size_t>(here * kWidth);
      std::memcpy(out + c.start[2] + start, s2.from<T>(start, here), bytes);
      std::memcpy(out + c.total + c.start[2] + start, s0.from<T>(start, here), bytes);
    });
  }
};

// A product's truncation in two rounds: x + r is opened to roles 0 and 1, where role 2 knows r = e + f - z2. Role 2 deals
// -(r >> t) and msb(r) modulo 2^t, and is done.
template <class T, int Bytes>
struct OpenBegin {
  const mpk_pass& pass;
  const mpk_chunks& c;
  const T* z;
  int t;
  T *m0, *m1, *quotient;
  std::uint8_t* dealt;
  T* out;

  MPK_INLINE void body(bool) const {
    constexpr Index kWidth = static_cast<Index>(sizeof(T));
    constexpr int kBits = 8 * static_cast<int>(sizeof(T));
    for (const int role : {0, 1}) {
      Stream mask(pass, role == 0 ? Stream::kPrev : Stream::kNext, role == 0 ? "/u/02" : "/u/12", c.n[role] * kWidth);
      const T* from = z + c.start[role];
      T* to = role == 0 ? m0 : m1;
      in_blocks(c.n[role], [&](Index start, Index here) __attribute__((always_inline)) {
        const T* m = mask.from<T>(start, here);
        for (Index i = 0; i < here; ++i) to[start + i] = static_cast<T>(from[start + i] + m[i]);
      });
    }
    const int width = mask_width(t), up = kBits - t;
    const Index n = c.n[2];
    Stream e(pass, Stream::kNext, "/u/02", n * kWidth), f(pass, Stream::kPrev, "/u/12", n * kWidth);
    Stream q(pass, Stream::kNext, "/q/02", n * kWidth), c0(pass, Stream::kNext, "/c/02", n * width);
    Stream w0(pass, Stream::kNext, "/w/02", n * width), w2(pass, Stream::kPrev, "/w/12", n * width);
    T *first = out + c.start[2], *second = out + c.total + c.start[2];
    in_blocks(n, [&](Index start, Index here) __attribute__((always_inline)) {
      const T *a = e.from<T>(start, here), *b = f.from<T>(start, here), *own = q.from<T>(start, here);
      const std::uint8_t* known = c0.at(start * width, here * width);
      const std::uint8_t *x0 = w0.at(start * width, here * width), *x2 = w2.at(start * width, here * width);
      for (Index i = start; i < start + here; ++i) {
        const T r = static_cast<T>(a[i - start] + b[i - start] - z[c.start[2] + i]);
        quotient[i] = static_cast<T>(T{0} - (r >> t) - own[i - start]);
        put_small<Bytes>(dealt, i, static_cast<T>((r >> (kBits - 1)) - small_mask<T>(known, i - start, width)), t);
        first[i] = static_cast<T>(quotient[i] + (small_mask<T>(x2, i - start, width) << up));
        second[i] = static_cast<T>(own[i - start] + (small_mask<T>(x0, i - start, width) << up));
      }
    });
  }
};

// As roles 0 and 1: the opened sum, its quotient, and this role's part of the wrap-around, masked.
template <class T, int Bytes>
struct OpenSecond {
  const mpk_pass& pass;
  const mpk_chunks& c;
  int t;
  const T *m0, *seen1, *m1, *seen0, *quotient;
  const std::uint8_t* dealt;
  std::uint8_t *q0, *q1;
  T* out;

  MPK_INLINE void body(bool) const {
    constexpr Index kWidth = static_cast<Index>(sizeof(T));
    constexpr int kBits = 8 * static_cast<int>(sizeof(T));
    const int width = mask_width(t), up = kBits - t;
    const T lift = T{1} << (kBits - 2), constant = T{1} << (kBits - 2 - t);
    for (const int role : {0, 1}) {
      const Index n = c.n[role];
      const T *own = role == 0 ? m0 : m1, *seen = role == 0 ? seen1 : seen0;
      std::uint8_t* sent = role == 0 ? q0 : q1;
      T *shared = out + (role == 0 ? c.total : 0) + c.start[role], *kept = out + (role == 0 ? 0 : c.total) + c.start[role];
      Stream w(pass, role == 0 ? Stream::kPrev : Stream::kNext, role == 0 ? "/w/02" : "/w/12", n * width);
      Stream c0(pass, Stream::kPrev, "/c/02", role == 0 ? n * width : 0);
      Stream q(pass, Stream::kPrev, "/q/02", role == 0 ? n * kWidth : 0);
      in_blocks(n, [&](Index start, Index here) __attribute__((always_inline)) {
        const std::uint8_t* mask = w.at(start * width, here * width);
        const std::uint8_t* known = role == 0 ? c0.at(start * width, here * width) : nullptr;
        const T* part = role == 0 ? q.from<T>(start, here) : quotient + start;
        for (Index j = 0; j < here; ++j) {
          const Index i = start + j;
          const T sum = static_cast<T>(own[i] + seen[i] + lift), m = small_mask<T>(mask, j, width);
          const T wraps = static_cast<T>((sum >> (kBits - 1)) - 1);  // all ones where the top bit is 0
          const T half = role == 0 ? small_mask<T>(known, j, width) : small_at<Bytes, T>(dealt, i);
          const T masked = static_cast<T>((half & wraps) - m);
          put_small<Bytes>(sent, i, masked, t);
          kept[i] = static_cast<T>(part[j] + (m << up));
          shared[i] = static_cast<T>((sum >> t) - constant + (masked << up));
        }
      });
    }
  }
};

template <class T, int Bytes>
struct OpenEnd {
  const mpk_chunks& c;
  int t;
  const std::uint8_t *seen1, *seen0;
  T* out;

  MPK_INLINE void body(bool) const {
    const int up = 8 * static_cast<int>(sizeof(T)) - t;
    T *second = out + c.total + c.start[0], *first = out + c.start[1];
    for (Index i = 0; i < c.n[0]; ++i) second[i] += static_cast<T>(small_at<Bytes, T>(seen1, i) << up);
    for (Index i = 0; i < c.n[1]; ++i) first[i] += static_cast<T>(small_at<Bytes, T>(seen0, i) << up);
  }
};

template <class T>
struct Masked {
  const mpk_pass& pass;
  const T* x;
  Index n;
  T* out;

  MPK_INLINE void body(bool) const {
    constexpr Index kWidth = static_cast<Index>(sizeof(T));
    Stream plus(pass, Stream::kNext, "", n * kWidth), minus(pass, Stream::kPrev, "", n * kWidth);
    in_blocks(n, [&](Index start, Index here) __attribute__((always_inline)) {
      const T *p = plus.from<T>(start, here), *m = minus.from<T>(start, here);
      for (Index i = 0; i < here; ++i) out[start + i] = static_cast<T>(x[start + i] + p[i] - m[i]);
    });
  }
};

template <class Body>
int with_sizes(const mpk_chunks* c, int element_bytes, int t, Body&& body) {
  return guarded([&] {
    require_chunks(c, element_bytes);
    require(t >= 1 && t <= 8 * element_bytes - 2);
    with_width(element_bytes, [&](auto zero) { with_bytes((t + 7) / 8, [&](auto bytes) { body(zero, bytes); }); });
  });
}

}  // namespace
}  // namespace mpk

int mpk_pass_masked(const mpk_pass* pass, const void* x, int64_t n, int element_bytes, void* out) {
  using namespace mpk;
  return guarded([&] {
    require_elements(n, element_bytes, 1);
    with_width(element_bytes, [&](auto zero) {
      using T = decltype(zero);
      run_step(Masked<T>{*pass, static_cast<const T*>(x), static_cast<Index>(n), static_cast<T*>(out)});
    });
  });
}

int mpk_pass_truncate_begin(const mpk_pass* pass, const mpk_chunks* c, const void* x0, const void* x1,
                            int element_bytes, int t, void* u, uint64_t* alpha, uint8_t* dealt, void* other,
                            uint64_t* beta) {
  using namespace mpk;
  return with_sizes(c, element_bytes, t, [&](auto zero, auto bytes) {
    using T = decltype(zero);
    run_step(TruncateBegin<T, bytes.value>{*pass, *c, static_cast<const T*>(x0), static_cast<const T*>(x1), t,
                                           static_cast<T*>(u), alpha, dealt, static_cast<T*>(other), beta});
  });
}

int mpk_pass_truncate_half(const mpk_pass* pass, const mpk_chunks* c, int role, const void* s, const void* last,
                           uint64_t* own, const uint64_t* seen, const uint8_t* dealt, int element_bytes, int t,
                           void* half, void* out) {
  using namespace mpk;
  return with_sizes(c, element_bytes, t, [&](auto zero, auto bytes) {
    using T = decltype(zero);
    require(role == 0 || role == 1);
    run_step(TruncateHalf<T, bytes.value>{*pass, *c, role, static_cast<const T*>(s), static_cast<const T*>(last), own,
                                          seen, dealt, t, static_cast<T*>(half), static_cast<T*>(out)});
  });
}

int mpk_pass_truncate_end(const mpk_pass* pass, const mpk_chunks* c, const void* half0, const void* seen1,
                          const void* half1, const void* seen0, int element_bytes, void* out) {
  using namespace mpk;
  return guarded([&] {
    require_chunks(c, element_bytes);
    with_width(element_bytes, [&](auto zero) {
      using T = decltype(zero);
      run_step(TruncateEnd<T>{*pass, *c, static_cast<const T*>(half0), static_cast<const T*>(seen1),
                              static_cast<const T*>(half1), static_cast<const T*>(seen0), static_cast<T*>(out)});
    });
  });
}

int mpk_pass_open_begin(const mpk_pass* pass, const mpk_chunks* c, const void* z, int element_bytes, int t, void* m0,
                        void* m1, void* quotient, uint8_t* dealt, void* out) {
  using namespace mpk;
  return with_sizes(c, element_bytes, t, [&](auto zero, auto bytes) {
    using T = decltype(zero);
    run_step(OpenBegin<T, bytes.value>{*pass, *c, static_cast<const T*>(z), t, static_cast<T*>(m0), static_cast<T*>(m1),
                                       static_cast<T*>(quotient), dealt, static_cast<T*>(out)});
  });
}

int mpk_pass_open_second(const mpk_pass* pass, const mpk_chunks* c, int element_bytes, int t, const void* m0,
                         const void* seen1, const void* m1, const void* seen0, const void* quotient,
                         const uint8_t* dealt, uint8_t* q0, uint8_t* q1, void* out) {
  using namespace mpk;
  return with_sizes(c, element_bytes, t, [&](auto zero, auto bytes) {
    using T = decltype(zero);
    run_step(OpenSecond<T, bytes.value>{*pass, *c, t, static_cast<const T*>(m0), static_cast<const T*>(seen1),
                                        static_cast<const T*>(m1), static_cast<const T*>(seen0),
                                        static_cast<const T*>(quotient), dealt, q0, q1, static_cast<T*>(out)});
  });
}

int mpk_pass_open_end(const mpk_chunks* c, int element_bytes, int t, const uint8_t* seen1, const uint8_t* seen0,
                      void* out) {
  using namespace mpk;
  return with_sizes(c, element_bytes, t, [&](auto zero, auto bytes) {
    using T = decltype(zero);
    run_step(OpenEnd<T, bytes.value>{*c, t, seen1, seen0, static_cast<T*>(out)});
  });
}
