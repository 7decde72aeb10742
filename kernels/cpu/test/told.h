// One of four parties tells another a sum of two masked values, two witnesses vouch for one each: all three beside plain
// loops. A part of selftest.cpp.
#pragma once

// The n elements of a stream, of `bits` bits each.
template <class T>
std::vector<T> drawn(const mpk_stream& stream, std::int64_t n, int bits) {
  std::vector<T> values(static_cast<std::size_t>(n));
  mpk_draw(stream.key, stream.key_bytes, stream.label, stream.label_bytes, values.data(), n, sizeof(T), bits);
  return values;
}

template <class T>
void told() {
  __extension__ typedef unsigned __int128 Wide;
  const int bytes = static_cast<int>(sizeof(T)), bits = static_cast<int>(one_of({8 * bytes, any(1, 8 * bytes)}));
  const std::int64_t n = one_of({0, 1, 63, 64, 65, 255, 256, 257, any(1, 1300)}), words = (n + 63) / 64;
  const int minus = static_cast<int>(any(0, 3));
  const std::uint8_t key[32] = {5, static_cast<std::uint8_t>(generator())}, labels[] = "012345";
  const auto stream = [&](int i) { return mpk_stream{key, 32, labels + i, 1}; };
  const mpk_stream masks[] = {stream(0), stream(1), stream(2), stream(3)}, coefficients[] = {stream(4), stream(5)};
  std::uint8_t block[16];
  if (mpk_aes128_ctr(key, 0, block, 16) == MPK_UNSUPPORTED) return;

  Guarded<T> first(n), second(n), base(n), told(n), vouched(n), own(n), wire(n);
  Guarded<std::uint64_t> carries(words);
  Guarded<std::uint8_t> tags(32), tag(16);
  std::vector<T> mask[4], expected_told, expected_vouched, expected_own, expected_wire;
  for (int i = 0; i < 4; ++i) mask[i] = drawn<T>(masks[i], n, bits);
  const std::vector<std::uint64_t> r[] = {drawn<std::uint64_t>(coefficients[0], n, 64),
                                          drawn<std::uint64_t>(coefficients[1], n, 64)};
  std::vector<std::uint64_t> expected_carries(static_cast<std::size_t>(words));
  std::vector<std::uint8_t> expected_tags, expected_tag;
  const T keep = static_cast<T>(static_cast<T>(~T(0)) >> (8 * bytes - bits));
  const T high = static_cast<T>(T(1) << (bits - 1));
  Wide sums[3] = {};
  for (std::int64_t i = 0; i < n; ++i) {
    const std::size_t at = static_cast<std::size_t>(i);
    const auto part = [&](T value, int which) {
      return static_cast<T>((minus >> which & 1 ? T(0) - value : value) - mask[which][at]) & keep;
    };
    const T x = part(first[i], 0), y = part(second[i], 1), low = static_cast<T>(x + y) & keep;
    const bool carried = low < x;
    expected_wire.push_back(static_cast<T>((low ^ high) - high));
    expected_told.push_back(static_cast<T>(base[i] + expected_wire.back()));
    expected_own.push_back(static_cast<T>(own[i] + expected_wire.back()));
    if (carried) expected_carries[at / 64] |= std::uint64_t(1) << (i % 64);
    T sum = base[i];
    for (int m = 0; m < 4; ++m) sum = static_cast<T>(sum + mask[m][at]);
    expected_vouched.push_back(sum);
    sums[0] += static_cast<Wide>(r[0][at]) * x;
    sums[1] += static_cast<Wide>(r[1][at]) * y;
    sums[2] += static_cast<Wide>(r[0][at]) * low + (carried ? static_cast<Wide>(r[0][at]) << bits : 0);
  }
  for (int i = 0; i < 48; ++i)
    (i < 32 ? expected_tags : expected_tag).push_back(static_cast<std::uint8_t>(sums[i / 16] >> (120 - 8 * (i % 16))));

  int status = mpk_tell(first.data(), second.data(), minus, masks, n, bytes, bits, base.data(), told.data(), wire.data(),
                        carries.data());
  check("what is told", expected_wire, wire, status);
  check("what carries", expected_carries, carries, status);
  check("who told it", expected_told, told, status);
  status = mpk_vouch(first.data(), second.data(), minus, masks, coefficients, n, bytes, bits, base.data(),
                     vouched.data(), tags.data());
  check("who vouched", expected_vouched, vouched, status);
  check("tags of parts", expected_tags, tags, status);
  status = mpk_told(wire.data(), carries.data(), coefficients, n, bytes, bits, own.data(), tag.data());
  check("who was told", expected_own, own, status);
  check("the tag of both parts", expected_tag, tag, status);
}
