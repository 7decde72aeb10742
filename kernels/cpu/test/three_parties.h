// The passes of three parties, all three at once: what they hold in the end must be shares of the right result, the same
// at both who hold them. Included by selftest.cpp, whose `Guarded`, `any` and `check` it uses.
#pragma once

// Elements in thirds, of which role r of third t is party t + r; and the parties' keys and labels.
struct Three {
  std::int64_t size[3], start[3], words[3], word_start[3], total = 0, total_words = 0;
  std::uint8_t keys[3][32];
  std::uint8_t label[8] = {'p', 'a', 's', 's'};
  mpk_chunks chunks[3];
  mpk_pass passes[3];

  Three() {
    for (int t = 0; t < 3; ++t) {
      size[t] = one_of({0, 1, 63, 64, 65, 511, 512, 513, any(1, 1300)});
      start[t] = total, words[t] = (size[t] + 63) / 64, word_start[t] = total_words;
      total += size[t], total_words += words[t];
      for (std::uint8_t& byte : keys[t]) byte = static_cast<std::uint8_t>(generator());
    }
    for (int p = 0; p < 3; ++p) {
      for (int r = 0; r < 3; ++r) {
        const int t = (p - r + 3) % 3;
        chunks[p].n[r] = size[t], chunks[p].start[r] = start[t];
        chunks[p].words[r] = words[t], chunks[p].word_start[r] = word_start[t];
      }
      chunks[p].total = total, chunks[p].total_words = total_words;
      passes[p] = {keys[p], 32, keys[(p + 2) % 3], 32, label, 4};
    }
  }

  std::int64_t n(int p, int role) const { return chunks[p].n[role]; }
  std::int64_t w(int p, int role) const { return chunks[p].words[role]; }
  const mpk_pass* pass(int p) const { return passes + p; }
  const mpk_chunks* of(int p) const { return chunks + p; }

  // The bit of element i of all, in a plane.
  int bit(const std::uint64_t* plane, std::int64_t i) const {
    const int t = i >= start[2] ? 2 : i >= start[1] ? 1 : 0;
    const std::int64_t at = i - start[t];
    return static_cast<int>(plane[word_start[t] + at / 64] >> (at % 64) & 1);
  }
};

template <class T>
using Each = std::deque<Guarded<T>>;  // one for each party

template <class T, class Size>
Each<T> each(Size&& size) {
  Each<T> made;
  for (int p = 0; p < 3; ++p) made.emplace_back(size(p));
  return made;
}

inline int following(int p) { return (p + 1) % 3; }
inline int preceding(int p) { return (p + 2) % 3; }

// Both rows of every party, from the three components.
template <class T>
Each<T> replicated(const std::vector<T> (&component)[3]) {
  const std::int64_t n = static_cast<std::int64_t>(component[0].size());
  Each<T> rows = each<T>([&](int) { return 2 * n; });
  for (int p = 0; p < 3; ++p)
    for (std::int64_t i = 0; i < n; ++i) {
      rows[p][i] = component[p][static_cast<std::size_t>(i)];
      rows[p][n + i] = component[following(p)][static_cast<std::size_t>(i)];
    }
  return rows;
}

// Components that add up to x, element by element.
template <class T>
void split(const std::vector<T>& x, std::vector<T> (&component)[3]) {
  for (auto& part : component) part.resize(x.size());
  for (std::size_t i = 0; i < x.size(); ++i) {
    component[0][i] = static_cast<T>(generator()), component[1][i] = static_cast<T>(generator());
    component[2][i] = static_cast<T>(x[i] - component[0][i] - component[1][i]);
  }
}

// Shares (2, total) must be the same at both holders of a component; right(i, sum) says if a sum is.
template <class T, class Right>
void check_shares(const char* what, const Three& s, Each<T>& out, int status, Right&& right) {
  Guarded<T> sums(s.total), ones(s.total);
  std::vector<T> expected(static_cast<std::size_t>(s.total), 1);
  for (std::int64_t i = 0; i < s.total; ++i) {
    const T sum = static_cast<T>(out[0][i] + out[1][i] + out[2][i]);
    bool same = right(i, sum);
    for (int p = 0; p < 3; ++p) same = same && out[p][s.total + i] == out[following(p)][i];
    ones[i] = same;
  }
  check(what, expected, ones, status);
}

template <class T>
void three_truncations() {
  const Three s;
  const int bytes = static_cast<int>(sizeof(T)), k = 8 * bytes, t = static_cast<int>(any(1, k - 2)), width = (t + 7) / 8;
  using Signed = std::make_signed_t<T>;
  std::vector<T> x(static_cast<std::size_t>(s.total)), part[3];
  for (T& value : x) value = static_cast<T>(static_cast<Signed>(generator()) >> 2);
  split(x, part);
  const bool opened = any(0, 1), shared = !opened && any(0, 1);
  Each<T> z = shared ? replicated(part) : each<T>([&](int) { return s.total; });
  for (int p = 0; p < 3 && !shared; ++p)
    for (std::int64_t i = 0; i < s.total; ++i) z[p][i] = part[p][static_cast<std::size_t>(i)];
  const auto elements = [&](int role) { return each<T>([&](int p) { return s.n(p, role); }); };
  const auto numbers = [&](int role) { return each<std::uint8_t>([&](int p) { return s.n(p, role) * width; }); };
  const auto planes = [&](int role) { return each<std::uint64_t>([&](int p) { return s.w(p, role); }); };
  Each<T> out = each<T>([&](int) { return 2 * s.total; }), first = elements(0), second = elements(1);
  Each<std::uint8_t> dealt = numbers(2);
  int status = MPK_OK;
  if (opened) {
    Each<T> quotient = elements(2);
    Each<std::uint8_t> q0 = numbers(0), q1 = numbers(1);
    for (int p = 0; p < 3; ++p)
      status |= mpk_pass_open_begin(s.pass(p), s.of(p), z[p].data(), bytes, t, first[p].data(), second[p].data(),
                                    quotient[p].data(), dealt[p].data(), out[p].data());
    for (int p = 0; p < 3; ++p) {
      const int f = following(p);
      status |= mpk_pass_open_second(s.pass(p), s.of(p), bytes, t, first[p].data(), second[f].data(), second[p].data(),
                                     first[preceding(p)].data(), quotient[f].data(), dealt[f].data(), q0[p].data(),
                                     q1[p].data(), out[p].data());
    }
    for (int p = 0; p < 3; ++p)
      status |= mpk_pass_open_end(s.of(p), bytes, t, q1[following(p)].data(), q0[preceding(p)].data(), out[p].data());
  } else {
    Each<T> u = elements(0), other = elements(shared ? 1 : 2);
    Each<std::uint64_t> alpha = planes(0), own = planes(1);
    for (int p = 0; p < 3; ++p)
      status |= mpk_pass_truncate_begin(s.pass(p), s.of(p), z[p].data(), shared ? z[p].data() + s.total : nullptr, bytes,
                                        t, u[p].data(), alpha[p].data(), dealt[p].data(), other[p].data(),
                                        shared ? own[p].data() : nullptr);
    for (int p = 0; p < 3; ++p) {
      const int f = following(p);
      const T* summand = shared ? other[p].data() : z[p].data() + s.of(p)->start[1];
      status |= mpk_pass_truncate_half(s.pass(p), s.of(p), 1, summand, shared ? nullptr : other[f].data(), own[p].data(),
                                       alpha[preceding(p)].data(), dealt[f].data(), bytes, t, second[p].data(),
                                       out[p].data());
    }
    for (int p = 0; p < 3; ++p)
      status |= mpk_pass_truncate_half(s.pass(p), s.of(p), 0, u[p].data(), nullptr, alpha[p].data(),
                                       own[following(p)].data(), nullptr, bytes, t, first[p].data(), out[p].data());
    for (int p = 0; p < 3; ++p)
      status |= mpk_pass_truncate_end(s.pass(p), s.of(p), first[p].data(), second[following(p)].data(),
                                      second[p].data(), first[preceding(p)].data(), bytes, out[p].data());
  }
  check_shares(opened ? "opened truncation" : shared ? "truncation of shares" : "truncation", s, out, status,
               [&](std::int64_t i, T sum) {
                 const T floor = static_cast<T>(static_cast<Signed>(x[static_cast<std::size_t>(i)]) >> t);
                 return sum == floor || sum == static_cast<T>(floor + 1);
               });
}

template <class T>
void three_selections() {
  const Three s;
  const int bytes = static_cast<int>(sizeof(T));
  std::vector<T> x(static_cast<std::size_t>(s.total)), part[3];
  for (T& value : x) value = static_cast<T>(generator());
  split(x, part);
  std::vector<std::uint64_t> bit[3];
  for (auto& plane : bit)
    for (std::int64_t i = 0; i < s.total_words; ++i) plane.push_back(generator());
  Each<std::uint64_t> bits = replicated(bit);
  Each<T> rows = replicated(part);
  const bool selects = any(0, 1);
  const auto elements = [&](int role) { return each<T>([&](int p) { return s.n(p, role); }); };
  Each<T> out = each<T>([&](int) { return 2 * s.total; });
  Each<T> t0 = elements(0), t1 = elements(1), u0 = elements(0), half1 = elements(1), half2 = elements(2);
  int status = MPK_OK;
  const auto row = [&](int p, int number) { return selects ? rows[p].data() + number * s.total : nullptr; };
  for (int again = 0; again < (selects ? 2 : 1); ++again) {  // then with what was kept of the bits
    for (int p = 0; p < 3; ++p)
      status |= mpk_pass_select_begin(s.pass(p), s.of(p), bits[p].data(), row(p, 0), row(p, 1), bytes, again == 0,
                                      selects ? t1[p].data() : nullptr, again == 0 ? t0[p].data() : nullptr,
                                      selects ? u0[p].data() : nullptr, half1[p].data(), out[p].data());
    for (int p = 0; p < 3; ++p) {
      const int f = following(p);
      status |= mpk_pass_select_second(s.pass(p), s.of(p), bits[p].data(), row(p, 0), row(p, 1), bytes, t0[f].data(),
                                       selects ? u0[f].data() : nullptr, half1[preceding(p)].data(), half2[p].data(),
                                       out[p].data());
    }
    for (int p = 0; p < 3; ++p)
      for (std::int64_t i = 0; i < s.n(p, 1); ++i)
        out[p][s.total + s.of(p)->start[1] + i] = static_cast<T>(half2[following(p)][i] + half1[p][i]);
    check_shares(selects ? "selection" : "bits as elements", s, out, status, [&](std::int64_t i, T sum) {
      const int chosen = s.bit(bit[0].data(), i) ^ s.bit(bit[1].data(), i) ^ s.bit(bit[2].data(), i);
      return sum == (chosen == 0 ? T(0) : selects ? x[static_cast<std::size_t>(i)] : T(1));
    });
  }
}

template <class T>
void three_signs() {
  const Three s;
  const int bytes = static_cast<int>(sizeof(T)), m = static_cast<int>(any(2, 8 * bytes));
  const std::int64_t low = m - 1, words = s.total_words;
  using Signed = std::make_signed_t<T>;
  std::vector<T> x(static_cast<std::size_t>(s.total)), part[3];
  for (T& value : x) value = static_cast<T>(static_cast<Signed>(generator()) >> (8 * bytes - m));
  split(x, part);
  Each<T> rows = replicated(part);
  const auto planes = [&](std::int64_t count, int role) {
    return each<std::uint64_t>([&](int p) { return count * s.w(p, role); });
  };
  const auto both = [&](std::int64_t count) { return each<std::uint64_t>([&](int) { return 2 * count * words; }); };
  Each<std::uint64_t> t0 = planes(m, 0), g1 = planes(low, 1), g2 = planes(low, 2), sign = both(m);
  Each<std::uint64_t> generate = both(low), propagate = both(m), own;
  int status = MPK_OK;
  for (int p = 0; p < 3; ++p)
    status |= mpk_pass_sign_begin(s.pass(p), s.of(p), rows[p].data(), rows[p].data() + s.total, bytes, m, t0[p].data(),
                                  g1[p].data(), generate[p].data(), propagate[p].data());
  for (int p = 0; p < 3; ++p)
    status |= mpk_pass_sign_second(s.pass(p), s.of(p), m, t0[following(p)].data(), g1[preceding(p)].data(), g2[p].data(),
                                   generate[p].data(), propagate[p].data());
  for (int p = 0; p < 3; ++p)
    for (std::int64_t j = 0; j < low; ++j)
      for (std::int64_t i = 0; i < s.w(p, 1); ++i)
        generate[p][(low + j) * words + s.of(p)->word_start[1] + i] =
            g2[following(p)][j * s.w(p, 1) + i] ^ g1[p][j * s.w(p, 1) + i];
  std::uint64_t* top[3];
  for (int p = 0; p < 3; ++p)
    for (std::int64_t i = 0; i < 2 * m * words; ++i) sign[p][i] = propagate[p][i];
  std::int64_t positions = low;
  std::int64_t propagate_rows = m;
  bool begun = false;
  for (bool more = low > 1; more;) {  // a call makes the planes of the level before, and this level's summands
    const std::int64_t count = begun ? positions - positions / 2 : positions;
    more = count > 1;
    Each<std::uint64_t> new_generate = both(count), new_propagate = both(count);
    Each<std::uint64_t> z = each<std::uint64_t>([&](int) { return (count - 1) * words; });
    for (int p = 0; p < 3; ++p)
      status |= mpk_pass_tree_level(
          s.pass(p), words, positions, generate[p].data(), positions, propagate[p].data(), propagate_rows,
          begun ? own[p].data() : nullptr, begun ? own[following(p)].data() : nullptr, new_generate[p].data(),
          new_propagate[p].data(), more ? z[p].data() : nullptr);
    if (begun) generate.swap(new_generate), propagate.swap(new_propagate), propagate_rows = count;
    own.swap(z), positions = count, begun = true;
  }
  for (int p = 0; p < 3; ++p) top[p] = generate[p].data();
  Guarded<std::uint8_t> right(s.total);
  std::vector<std::uint8_t> expected(static_cast<std::size_t>(s.total), 1);
  for (std::int64_t i = 0; i < s.total; ++i) {
    int bit = 0;
    bool same = true;
    for (int p = 0; p < 3; ++p) {
      const auto at = [&](int party, int component) {
        const std::int64_t rest = propagate_rows == m && !begun ? low : positions;
        return s.bit(sign[party].data() + (component * m + low) * words, i) ^
               s.bit(top[party] + component * rest * words, i);
      };
      bit ^= at(p, 0);
      same = same && at(p, 1) == at(following(p), 0);
    }
    right[i] = same && bit == (static_cast<Signed>(x[static_cast<std::size_t>(i)]) >= 0);
  }
  check("signs", expected, right, status);
}

// x + one stream - the other: adds up to what it was.
template <class T>
void three_masks() {
  const Three s;
  std::vector<T> x(static_cast<std::size_t>(s.total)), part[3];
  for (T& value : x) value = static_cast<T>(generator());
  split(x, part);
  Each<T> rows = replicated(part), out = each<T>([&](int) { return 2 * s.total; });
  int status = MPK_OK;
  for (int p = 0; p < 3; ++p)
    status |= mpk_pass_masked(s.pass(p), rows[p].data(), s.total, static_cast<int>(sizeof(T)), out[p].data());
  for (int p = 0; p < 3; ++p)
    for (std::int64_t i = 0; i < s.total; ++i) out[p][s.total + i] = out[following(p)][i];
  check_shares("masked", s, out, status, [&](std::int64_t i, T sum) { return sum == x[static_cast<std::size_t>(i)]; });
}

template <class T>
void three_parties() {
  const std::uint8_t key[16] = {};
  std::uint8_t block[16];
  if (mpk_aes128_ctr(key, 0, block, 16) == MPK_UNSUPPORTED) return;
  three_masks<T>(), three_truncations<T>(), three_selections<T>(), three_signs<T>();
}
