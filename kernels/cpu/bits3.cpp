// Signs and selections of three parties: what a party computes between two rounds, in all of its roles, in one pass.
#include "bits.h"
#include "streams3.h"

namespace mpk {
namespace {

using Word = std::uint64_t;

// Planes of both components, (2, rows, total_words): a row of a component.
struct Rows {
  Word* first;
  Index component, words;

  MPK_INLINE Word* at(int c, Index row) const { return first + c * component + row * words; }
};

// The first product A & B and the sum A ^ B, up to the first messages. Role 0 shares A, role 1 sends t1 & B ^ s1.
template <class T>
struct SignBegin {
  const mpk_pass& pass;
  const mpk_chunks& c;
  const T *x0, *x1;
  int m;
  Word *t0, *g1;
  Rows generate, propagate;

  MPK_INLINE void body(bool) const {
    const Index low = m - 1, w0 = c.words[0], w1 = c.words[1];
    bit_planes<T>(x0 + c.start[0], x1 + c.start[0], c.n[0], m, t0, w0);
    bit_planes<T>(x1 + c.start[1], nullptr, c.n[1], m, propagate.at(1, 0) + c.word_start[1], c.total_words);
    bit_planes<T>(x0 + c.start[2], nullptr, c.n[2], m, propagate.at(0, 0) + c.word_start[2], c.total_words);
    Word *top1 = propagate.at(1, low) + c.word_start[1], *top2 = propagate.at(0, low) + c.word_start[2];
    for (Index i = 0; i < w1; ++i) top1[i] = ~top1[i];  // the sign bit flipped: 1 means x >= 0
    for (Index i = 0; i < c.words[2]; ++i) top2[i] = ~top2[i];
    {
      Stream t(pass, Stream::kNext, "/t/01", m * w0 * 8);
      Stream s1(pass, Stream::kNext, "/s/01", low * w0 * 8), s0(pass, Stream::kPrev, "/s/02", low * w0 * 8);
      for (Index j = 0; j < m; ++j)
        in_blocks(w0, [&](Index start, Index here) __attribute__((always_inline)) {
          const auto bytes = static_cast<std::size_t>(here * 8);
          const Index at = j * w0 + start, to = c.word_start[0] + start;
          const Word* mask = t.from<Word>(at, here);
          for (Index i = 0; i < here; ++i) t0[at + i] ^= mask[i];
          std::memcpy(propagate.at(0, j) + to, t0 + at, bytes);
          std::memcpy(propagate.at(1, j) + to, mask, bytes);
          if (j == low) return;
          std::memcpy(generate.at(0, j) + to, s0.from<Word>(at, here), bytes);
          std::memcpy(generate.at(1, j) + to, s1.from<Word>(at, here), bytes);
        });
    }
    Stream t(pass, Stream::kPrev, "/t/01", m * w1 * 8), s1(pass, Stream::kPrev, "/s/01", low * w1 * 8);
    for (Index j = 0; j < m; ++j)
      in_blocks(w1, [&](Index start, Index here) __attribute__((always_inline)) {
        const auto bytes = static_cast<std::size_t>(here * 8);
        const Index at = j * w1 + start, to = c.word_start[1] + start;
        const Word* mask = t.from<Word>(at, here);
        std::memcpy(propagate.at(0, j) + to, mask, bytes);
        if (j == low) return;
        const Word *s = s1.from<Word>(at, here), *b = propagate.at(1, j) + to;
        std::memcpy(generate.at(0, j) + to, s, bytes);
        for (Index i = 0; i < here; ++i) g1[at + i] = (mask[i] & b[i]) ^ s[i];
      });
  }
};

// As role 2, with t0 and role 1's part: its own part, and the two components.
struct SignSecond {
  const mpk_pass& pass;
  const mpk_chunks& c;
  int m;
  const Word *t0, *g1;
  Word* g2;
  Rows generate, propagate;

  MPK_INLINE void body(bool) const {
    const Index low = m - 1, words = c.words[2];
    Stream s0(pass, Stream::kNext, "/s/02", low * words * 8);
    for (Index j = 0; j < m; ++j)
      in_blocks(words, [&](Index start, Index here) __attribute__((always_inline)) {
        const Index at = j * words + start, to = c.word_start[2] + start;
        const auto bytes = static_cast<std::size_t>(here * 8);
        std::memcpy(propagate.at(1, j) + to, t0 + at, bytes);
        if (j == low) return;
        const Word *s = s0.from<Word>(at, here), *b = propagate.at(0, j) + to;
        Word* first = generate.at(0, j) + to;
        std::memcpy(generate.at(1, j) + to, s, bytes);
        for (Index i = 0; i < here; ++i) {
          g2[at + i] = (t0[at + i] & b[i]) ^ s[i];
          first[i] = g2[at + i] ^ g1[at + i];
        }
      });
  }
};

// A level of the carry tree (protocol/carry.py). Where z is given, what the level before sent and received becomes the
// generate and propagate bits of half as many positions; then this level's ANDs.
struct TreeLevel {
  const mpk_pass& pass;
  Index positions;  // of `generate` and `propagate`
  Rows generate, propagate;
  const Word *own, *seen;       // of the level before; null at the first
  Rows new_generate, new_propagate;
  Word* z;  // null after the last

  MPK_INLINE void body(bool) const {
    Rows g = generate, p = propagate;
    Index count = positions;
    const Index words = generate.words;
    if (own != nullptr) {
      const Index odd = count % 2, pairs = count / 2, kept = pairs - 1 + odd;
      for (int component = 0; component < 2; ++component) {
        const Word* from = component == 0 ? own : seen;
        if (odd != 0) std::memcpy(new_generate.at(component, 0), g.at(component, 0), static_cast<std::size_t>(words * 8));
        for (Index j = 0; j < pairs; ++j) {
          Word* __restrict to = new_generate.at(component, j + odd);
          const Word *upper = g.at(component, 2 * j + 1 + odd), *product = from + j * words;
          for (Index i = 0; i < words; ++i) to[i] = product[i] ^ upper[i];
        }
        // Position 0 has no propagate bit: nothing is written there, and nothing read.
        std::memcpy(new_propagate.at(component, 1), from + pairs * words, static_cast<std::size_t>(kept * words * 8));
      }
      g = new_generate, p = new_propagate;
      count = pairs + odd;
    }
    if (z == nullptr) return;
    const Index odd = count % 2, pairs = count / 2, kept = pairs - 1 + odd;
    const Index total = (pairs + kept) * words * 8;
    Stream first(pass, Stream::kNext, "", total), second(pass, Stream::kPrev, "", total);
    for (Index j = 0; j < pairs + kept; ++j) {
      const Index pair = j < pairs ? j : j - kept;
      const Rows& other = j < pairs ? g : p;
      const Word *x0 = p.at(0, 2 * pair + 1 + odd), *x1 = p.at(1, 2 * pair + 1 + odd);
      const Word *y0 = other.at(0, 2 * pair + odd), *y1 = other.at(1, 2 * pair + odd);
      Word* to = z + j * words;
      in_blocks(words, [&](Index start, Index here) __attribute__((always_inline)) {
        const Word *a = first.from<Word>(j * words + start, here), *b = second.from<Word>(j * words + start, here);
        for (Index i = 0; i < here; ++i) {
          const Index at = start + i;
          to[at] = (x0[at] & (y0[at] ^ y1[at])) ^ (x1[at] & y0[at]) ^ a[i] ^ b[i];
        }
      });
    }
  }
};

// The bits of a block that begins at a multiple of 64, as 0 and 1.
template <class T>
MPK_INLINE void unpacked(const Word* plane, Index start, Index here, T* to) {
  in_words(start, here, [&](Index word, Index at, Index count) __attribute__((always_inline)) {
    const Word bits = plane[word];
    for (Index j = 0; j < count; ++j) to[at - start + j] = static_cast<T>(bits >> j & 1);
  });
}

// bit * x, up to the first messages; the bit itself where x is null. `first`: the bit's half is shared, too (t0, t1).
template <class T>
struct SelectBegin {
  const mpk_pass& pass;
  const mpk_chunks& c;
  const Word* bits;  // (2, total_words)
  const T *x0, *x1;
  bool first;
  T *t1, *t0, *u0, *half1, *out;

  MPK_INLINE void body(bool) const {
    constexpr Index kWidth = static_cast<Index>(sizeof(T));
    const bool selects = x0 != nullptr;
    alignas(64) T bit[kPassBlock];
    {
      const Index n = c.n[0], bytes = n * kWidth;
      const Word *d0 = bits + c.word_start[0], *d1 = d0 + c.total_words;
      Stream t(pass, Stream::kNext, "/t/01", first ? bytes : 0), u(pass, Stream::kNext, "/u/01", selects ? bytes : 0);
      Stream s1(pass, Stream::kNext, "/s/01", bytes), s0(pass, Stream::kPrev, "/s/02", bytes);
      in_blocks(n, [&](Index start, Index here) __attribute__((always_inline)) {
        Word a[kPassBlock / 64];
        for (Index w = 0; w < ceil_div(here, 64); ++w) a[w] = d0[start / 64 + w] ^ d1[start / 64 + w];
        unpacked(a - start / 64, start, here, bit);
        if (first) {
          const T* mask = t.from<T>(start, here);
          for (Index i = 0; i < here; ++i) t0[start + i] = static_cast<T>(bit[i] - mask[i]);
        }
        if (selects) {
          const T *mask = u.from<T>(start, here), *p = x0 + c.start[0] + start, *q = x1 + c.start[0] + start;
          for (Index i = 0; i < here; ++i)
            u0[start + i] = static_cast<T>((static_cast<T>(p[i] + q[i]) & static_cast<T>(-bit[i])) - mask[i]);
        }
        const auto size = static_cast<std::size_t>(here * kWidth);
        std::memcpy(out + c.start[0] + start, s0.from<T>(start, here), size);
        std::memcpy(out + c.total + c.start[0] + start, s1.from<T>(start, here), size);
      });
    }
    const Index n = c.n[1], bytes = n * kWidth;
    const Word* plane = bits + c.total_words + c.word_start[1];
    Stream t(pass, Stream::kPrev, "/t/01", first ? bytes : 0), u(pass, Stream::kPrev, "/u/01", selects ? bytes : 0);
    Stream s1(pass, Stream::kPrev, "/s/01", bytes);
    in_blocks(n, [&](Index start, Index here) __attribute__((always_inline)) {
      unpacked(plane, start, here, bit);
      T* to = half1 + start;
      const auto size = static_cast<std::size_t>(here * kWidth);
      const T* kept = nullptr;
      if (first) {
        kept = t.from<T>(start, here);
        if (selects) std::memcpy(t1 + start, kept, size), kept = t1 + start;
      } else {
        kept = t1 + start;
      }
      const T* s = s1.from<T>(start, here);
      std::memcpy(out + c.start[1] + start, s, size);
      if (selects) {
        const T *mask = u.from<T>(start, here), *p = x0 + c.start[1] + start, *q = x1 + c.start[1] + start;
        for (Index i = 0; i < here; ++i) {
          const T minus = static_cast<T>(-bit[i]), value = static_cast<T>(mask[i] + kept[i] * q[i]);
          to[i] = static_cast<T>((value ^ minus) + bit[i] + (static_cast<T>(p[i] + q[i]) & minus) - s[i]);
        }
      } else {
        for (Index i = 0; i < here; ++i)
          to[i] = static_cast<T>((kept[i] ^ static_cast<T>(-bit[i])) + bit[i] + bit[i] - s[i]);
      }
    });
  }
};

// As role 2: its half from what role 0 shared, and the two components.
template <class T>
struct SelectSecond {
  const mpk_pass& pass;
  const mpk_chunks& c;
  const Word* bits;
  const T *x0, *x1, *t0, *u0, *seen1;
  T *half2, *out;

  MPK_INLINE void body(bool) const {
    constexpr Index kWidth = static_cast<Index>(sizeof(T));
    const bool selects = x0 != nullptr;
    const Index n = c.n[2];
    const Word* plane = bits + c.word_start[2];
    alignas(64) T bit[kPassBlock];
    Stream s0(pass, Stream::kNext, "/s/02", n * kWidth);
    in_blocks(n, [&](Index start, Index here) __attribute__((always_inline)) {
      unpacked(plane, start, here, bit);
      const T *s = s0.from<T>(start, here), *t = t0 + start, *seen = seen1 + start;
      T *to = half2 + start, *first = out + c.start[2] + start;
      if (selects) {
        const T *x2 = x0 + c.start[2] + start, *own = x1 + c.start[2] + start, *u = u0 + start;
        for (Index i = 0; i < here; ++i) {
          const T minus = static_cast<T>(-bit[i]), value = static_cast<T>(u[i] + t[i] * x2[i]);
          to[i] = static_cast<T>((value ^ minus) + bit[i] + (own[i] & minus) - s[i]);
        }
      } else {
        for (Index i = 0; i < here; ++i)
          to[i] = static_cast<T>((t[i] ^ static_cast<T>(-bit[i])) + bit[i] - s[i]);
      }
      for (Index i = 0; i < here; ++i) first[i] = static_cast<T>(to[i] + seen[i]);
      std::memcpy(out + c.total + c.start[2] + start, s, static_cast<std::size_t>(here * kWidth));
    });
  }
};

}  // namespace
}  // namespace mpk

int mpk_pass_sign_begin(const mpk_pass* pass, const mpk_chunks* c, const void* x0, const void* x1, int element_bytes,
                        int m, uint64_t* t0, uint64_t* g1, uint64_t* generate, uint64_t* propagate) {
  using namespace mpk;
  return guarded([&] {
    require_chunks(c, element_bytes);
    require(m >= 2 && m <= 8 * element_bytes);
    const Index words = static_cast<Index>(c->total_words);
    with_width(element_bytes, [&](auto zero) {
      using T = decltype(zero);
      run_step(SignBegin<T>{*pass, *c, static_cast<const T*>(x0), static_cast<const T*>(x1), m, t0, g1,
                            Rows{generate, (m - 1) * words, words}, Rows{propagate, m * words, words}});
    });
  });
}

int mpk_pass_sign_second(const mpk_pass* pass, const mpk_chunks* c, int m, const uint64_t* t0, const uint64_t* g1,
                         uint64_t* g2, uint64_t* generate, uint64_t* propagate) {
  using namespace mpk;
  return guarded([&] {
    require_chunks(c, 8);
    require(m >= 2 && m <= 64);
    const Index words = static_cast<Index>(c->total_words);
    run_step(SignSecond{*pass, *c, m, t0, g1, g2, Rows{generate, (m - 1) * words, words},
                        Rows{propagate, m * words, words}});
  });
}

int mpk_pass_tree_level(const mpk_pass* pass, int64_t words, int64_t positions, uint64_t* generate,
                        int64_t generate_rows, uint64_t* propagate, int64_t propagate_rows, const uint64_t* own,
                        const uint64_t* seen, uint64_t* new_generate, uint64_t* new_propagate, uint64_t* z) {
  using namespace mpk;
  return guarded([&] {
    require(words >= 0 && positions >= 2 && generate_rows >= positions && propagate_rows >= positions);
    product(static_cast<Index>(generate_rows) + static_cast<Index>(propagate_rows), 32, static_cast<Index>(words));
    const Index count = static_cast<Index>(positions), half = count - count / 2, w = static_cast<Index>(words);
    run_step(TreeLevel{*pass, count, Rows{generate, static_cast<Index>(generate_rows) * w, w},
                       Rows{propagate, static_cast<Index>(propagate_rows) * w, w}, own, seen,
                       Rows{new_generate, half * w, w}, Rows{new_propagate, half * w, w}, z});
  });
}

int mpk_pass_select_begin(const mpk_pass* pass, const mpk_chunks* c, const uint64_t* bits, const void* x0,
                          const void* x1, int element_bytes, int first, void* t1, void* t0, void* u0, void* half1,
                          void* out) {
  using namespace mpk;
  return guarded([&] {
    require_chunks(c, element_bytes);
    with_width(element_bytes, [&](auto zero) {
      using T = decltype(zero);
      run_step(SelectBegin<T>{*pass, *c, bits, static_cast<const T*>(x0), static_cast<const T*>(x1), first != 0,
                              static_cast<T*>(t1), static_cast<T*>(t0), static_cast<T*>(u0), static_cast<T*>(half1),
                              static_cast<T*>(out)});
    });
  });
}

int mpk_pass_select_second(const mpk_pass* pass, const mpk_chunks* c, const uint64_t* bits, const void* x0,
                           const void* x1, int element_bytes, const void* t0, const void* u0, const void* seen1,
                           void* half2, void* out) {
  using namespace mpk;
  return guarded([&] {
    require_chunks(c, element_bytes);
    with_width(element_bytes, [&](auto zero) {
      using T = decltype(zero);
      run_step(SelectSecond<T>{*pass, *c, bits, static_cast<const T*>(x0), static_cast<const T*>(x1),
                               static_cast<const T*>(t0), static_cast<const T*>(u0), static_cast<const T*>(seen1),
                               static_cast<T*>(half2), static_cast<T*>(out)});
    });
  });
}
