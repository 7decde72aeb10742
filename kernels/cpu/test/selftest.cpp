// Every kernel beside plain loops, on random shapes, with every instruction set that the processor has. Each tensor
// ends where a page begins that nobody may touch, so a read or write past it ends the program.
//
//     selftest [rounds] [seed]         prints a line for each instruction set; exit code 1 if anything differs
//
// It needs nothing but the library's sources, so it runs under an emulator for other processors, and with sanitizers.
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <random>
#include <string>
#include <type_traits>
#include <vector>

#include "mpcpipe_kernels.h"

namespace {

std::mt19937_64 generator;
long failures = 0, cases = 0;

std::int64_t any(std::int64_t low, std::int64_t high) {
  return low + static_cast<std::int64_t>(generator() % static_cast<std::uint64_t>(high - low + 1));
}

std::int64_t one_of(std::initializer_list<std::int64_t> values) {
  return values.begin()[generator() % values.size()];
}

// n elements that end at a page which may not be touched; with an element's alignment only.
template <class T>
class Guarded {
 public:
  explicit Guarded(std::int64_t n) : n_(n) {
    const std::size_t page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
    const std::size_t bytes = static_cast<std::size_t>(n) * sizeof(T);
    size_ = (bytes + page - 1) / page * page + 2 * page;
    memory_ = static_cast<char*>(mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (memory_ == MAP_FAILED) std::abort();
    mprotect(memory_, page, PROT_NONE);
    mprotect(memory_ + size_ - page, page, PROT_NONE);
    data_ = reinterpret_cast<T*>(memory_ + size_ - page - bytes);
    for (std::int64_t i = 0; i < n; ++i) data_[i] = value();
  }
  Guarded(const Guarded&) = delete;
  Guarded& operator=(const Guarded&) = delete;
  ~Guarded() { munmap(memory_, size_); }

  T* data() { return data_; }
  T& operator[](std::int64_t i) { return data_[i]; }
  std::vector<T> copy() const { return std::vector<T>(data_, data_ + n_); }

 private:
  static T value() {
    // Whole numbers of float32 whose sums are exact: then it must be equal, too.
    if constexpr (std::is_same_v<T, float>)
      return static_cast<float>(any(-8, 8));
    else
      return static_cast<T>(generator());
  }

  std::int64_t n_;
  std::size_t size_;
  char* memory_;
  T* data_;
};

template <class T>
void check(const char* what, const std::vector<T>& expected, Guarded<T>& found, int status) {
  ++cases;
  const std::size_t bytes = expected.size() * sizeof(T);
  if (status == MPK_OK && (bytes == 0 || std::memcmp(expected.data(), found.data(), bytes) == 0)) return;
  ++failures;
  std::printf("%s of %zu-byte elements differs (status %d)\n", what, sizeof(T), status);
}

template <class T>
struct Calls;
#define CALLS(T, width)                                                   \
  template <>                                                             \
  struct Calls<T> {                                                       \
    static constexpr auto matmul = mpk_matmul_##width;                    \
    static constexpr auto conv2d = mpk_conv2d_##width;                    \
    static constexpr auto input_grad = mpk_conv2d_input_grad_##width;     \
    static constexpr auto weight_grad = mpk_conv2d_weight_grad_##width;   \
  };
CALLS(std::uint64_t, u64)
CALLS(std::uint32_t, u32)
CALLS(float, f32)

template <class T>
void matmul() {
  const auto size = [] { return one_of({0, 1, 2, 3, 5, 6, 7, 8, 9, 13, 16, 17, 24, 33, 40, 65, 97, any(1, 300)}); };
  const std::int64_t m = size(), n = size(), k = size();
  const bool turn_a = any(0, 1), turn_b = any(0, 1), turn_c = any(0, 1), accumulate = any(0, 1);
  Guarded<T> a(m * k), b(k * n), c(m * n);
  const std::int64_t a_row = turn_a ? 1 : k, a_col = turn_a ? m : 1, b_row = turn_b ? 1 : n, b_col = turn_b ? k : 1;
  const std::int64_t c_row = turn_c ? 1 : n, c_col = turn_c ? m : 1;
  std::vector<T> expected = c.copy();
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      T sum = 0;
      for (std::int64_t p = 0; p < k; ++p) sum += a[i * a_row + p * a_col] * b[p * b_row + j * b_col];
      T& to = expected[static_cast<std::size_t>(i * c_row + j * c_col)];
      to = accumulate ? to + sum : sum;
    }
  const int status = Calls<T>::matmul(m, n, k, a.data(), a_row, a_col, b.data(), b_row, b_col, c.data(), c_row, c_col,
                                      accumulate, static_cast<int>(any(1, 3)));
  check("matmul", expected, c, status);
}

// Calls body(x, w, y) with the three indices of every product of the convolution.
template <class Body>
void products(const mpk_conv& s, std::int64_t out_h, std::int64_t out_w, Body&& body) {
  const std::int64_t in = s.in_channels / s.groups, out = s.out_channels / s.groups;
  for (std::int64_t n = 0; n < s.batch; ++n)
    for (std::int64_t o = 0; o < s.out_channels; ++o)
      for (std::int64_t oy = 0; oy < out_h; ++oy)
        for (std::int64_t ox = 0; ox < out_w; ++ox)
          for (std::int64_t c = 0; c < in; ++c)
            for (std::int64_t ky = 0; ky < s.kernel_h; ++ky)
              for (std::int64_t kx = 0; kx < s.kernel_w; ++kx) {
                const std::int64_t iy = oy * s.stride_h + ky * s.dilation_h - s.pad_h;
                const std::int64_t ix = ox * s.stride_w + kx * s.dilation_w - s.pad_w;
                if (iy < 0 || iy >= s.height || ix < 0 || ix >= s.width) continue;
                const std::int64_t channel = o / out * in + c;
                body(((n * s.in_channels + channel) * s.height + iy) * s.width + ix,
                     ((o * in + c) * s.kernel_h + ky) * s.kernel_w + kx,
                     ((n * s.out_channels + o) * out_h + oy) * out_w + ox);
              }
}

template <class T>
void convolution() {
  mpk_conv s{};
  const bool depthwise = any(0, 1);
  s.groups = depthwise ? one_of({1, 2, 5, 8}) : one_of({1, 1, 2, 3});
  s.in_channels = s.groups * (depthwise ? 1 : one_of({1, 2, 3, 7}));
  s.out_channels = s.groups * (depthwise ? one_of({1, 1, 1, 2}) : one_of({1, 2, 6, 9}));
  s.batch = one_of({0, 1, 2, 3}), s.height = any(1, 14), s.width = one_of({1, 2, 4, 7, 8, 13, 24, 31, 33});
  s.kernel_h = one_of({1, 2, 3, 5}), s.kernel_w = one_of({1, 2, 3, 5});
  s.stride_h = one_of({1, 1, 2, 3}), s.stride_w = one_of({1, 1, 2, 3});
  s.pad_h = one_of({0, 1, 2}), s.pad_w = one_of({0, 1, 2, 5});
  s.dilation_h = one_of({1, 1, 2}), s.dilation_w = one_of({1, 1, 2});
  s.algorithm = one_of({MPK_BEST, MPK_BEST, MPK_AS_PRODUCTS});
  const std::int64_t room_h = s.height + 2 * s.pad_h - s.dilation_h * (s.kernel_h - 1) - 1;
  const std::int64_t room_w = s.width + 2 * s.pad_w - s.dilation_w * (s.kernel_w - 1) - 1;
  if (room_h < 0 || room_w < 0) return;
  const std::int64_t out_h = room_h / s.stride_h + 1, out_w = room_w / s.stride_w + 1;
  Guarded<T> x(s.batch * s.in_channels * s.height * s.width), y(s.batch * s.out_channels * out_h * out_w);
  Guarded<T> w(s.out_channels * (s.in_channels / s.groups) * s.kernel_h * s.kernel_w);
  const int accumulate = static_cast<int>(any(0, 1)), threads = static_cast<int>(any(1, 3));
  const auto begin = [&](Guarded<T>& to) {
    std::vector<T> expected = to.copy();
    if (!accumulate) expected.assign(expected.size(), T(0));
    return expected;
  };
  std::vector<T> expected = begin(x);
  products(s, out_h, out_w, [&](auto i, auto j, auto k) { expected[static_cast<std::size_t>(i)] += w[j] * y[k]; });
  int status = Calls<T>::input_grad(&s, y.data(), w.data(), x.data(), accumulate, threads);
  check("input gradient", expected, x, status);
  if constexpr (std::is_same_v<T, float>)  // the sums are too large for exact products of them
    for (std::size_t i = 0; i < expected.size(); ++i) x[static_cast<std::int64_t>(i)] = static_cast<float>(any(-8, 8));
  expected = begin(w);
  products(s, out_h, out_w, [&](auto i, auto j, auto k) { expected[static_cast<std::size_t>(j)] += x[i] * y[k]; });
  status = Calls<T>::weight_grad(&s, x.data(), y.data(), w.data(), accumulate, threads);
  check("weight gradient", expected, w, status);
  if constexpr (std::is_same_v<T, float>)
    for (std::size_t i = 0; i < expected.size(); ++i) w[static_cast<std::int64_t>(i)] = static_cast<float>(any(-8, 8));
  expected = begin(y);
  products(s, out_h, out_w, [&](auto i, auto j, auto k) { expected[static_cast<std::size_t>(k)] += x[i] * w[j]; });
  status = Calls<T>::conv2d(&s, x.data(), w.data(), y.data(), accumulate, threads);
  check("conv2d", expected, y, status);
}

template <class T>
void bits() {
  const std::int64_t n = one_of({0, 1, 63, 64, 65, 511, 512, 513, any(1, 1500)}), words = (n + 63) / 64;
  const int count = static_cast<int>(any(0, 64)), bytes = static_cast<int>(sizeof(T));
  Guarded<T> x(n);
  Guarded<std::uint64_t> planes(count * words);
  std::vector<std::uint64_t> expected(static_cast<std::size_t>(count * words));
  using Signed = std::make_signed_t<T>;
  for (int j = 0; j < count; ++j)
    for (std::int64_t i = 0; i < n; ++i) {
      const std::uint64_t wide = static_cast<std::uint64_t>(static_cast<std::int64_t>(static_cast<Signed>(x[i])));
      expected[static_cast<std::size_t>(j * words + i / 64)] |= (wide >> j & 1) << (i % 64);
    }
  check("bit planes", expected, planes, mpk_bit_planes(x.data(), n, bytes, count, planes.data()));
  if (count == 0) return;
  std::vector<T> back(static_cast<std::size_t>(n));
  for (std::int64_t i = 0; i < n; ++i) back[static_cast<std::size_t>(i)] = x[i] & 1;
  check("unpacked bits", back, x, mpk_unpack_bits(planes.data(), n, bytes, x.data()));
}

template <class T>
void sums_and_signs() {
  const std::int64_t n = one_of({0, 1, 63, 64, 65, 130, any(1, 700)}), words = (n + 63) / 64;
  const int bytes = static_cast<int>(sizeof(T)), k = static_cast<int>(any(1, 8 * bytes));
  Guarded<T> x(n), y(n), sum(n);
  Guarded<std::uint64_t> mask(words), plane(words);
  const std::int64_t constant = static_cast<std::int64_t>(generator());
  std::vector<T> expected(static_cast<std::size_t>(n));
  std::vector<std::uint64_t> signs = mask.copy();
  for (std::int64_t i = 0; i < n; ++i) {
    const T total = static_cast<T>(x[i] + y[i] + static_cast<T>(constant)), top = static_cast<T>(T(1) << (k - 1));
    const T low = k == 8 * bytes ? total : static_cast<T>(total & static_cast<T>((T(1) << k) - 1));
    expected[static_cast<std::size_t>(i)] = static_cast<T>((low ^ top) - top);
    signs[static_cast<std::size_t>(i / 64)] ^= static_cast<std::uint64_t>(!(low & top)) << (i % 64);
  }
  const int status = mpk_sum_and_sign(x.data(), y.data(), constant, mask.data(), n, bytes, k, sum.data(), plane.data());
  check("sum", expected, sum, status);
  check("sign", signs, plane, status);
}

// NIST SP 800-38A has no counter from 0; FIPS 197, appendix C.1 has block 00112233..., which no counter reaches. So the
// stream is checked against itself: blocks one by one, and in runs that end anywhere.
void streams() {
  std::uint8_t key[16];
  for (std::uint8_t& byte : key) byte = static_cast<std::uint8_t>(generator());
  const std::int64_t nbytes = any(0, 2000), skipped = any(0, 20);
  Guarded<std::uint8_t> whole(nbytes);
  std::vector<std::uint8_t> expected;
  for (std::int64_t b = 0; b * 16 < nbytes; ++b) {
    std::uint8_t block[16];
    if (mpk_aes128_ctr(key, static_cast<std::uint64_t>(skipped + b), block, 16) == MPK_UNSUPPORTED) return;
    for (std::int64_t i = 0; i < 16 && b * 16 + i < nbytes; ++i) expected.push_back(block[i]);
  }
  const int status = mpk_aes128_ctr(key, static_cast<std::uint64_t>(skipped), whole.data(), nbytes);
  if (status != MPK_UNSUPPORTED) check("key stream", expected, whole, status);
}

// What one of four parties does with values that two know: masks by mpk_draw, tags by mpk_tag, the rest by loops.
template <class T, class Out>
void joint_values(bool xored) {
  const int bytes = static_cast<int>(sizeof(T)), bits = xored ? 64 : static_cast<int>(any(1, 8 * bytes));
  const bool narrow = !xored && any(0, 1);
  const int wire_bytes = narrow ? (bits + 7) / 8 : bytes, up = xored ? 0 : static_cast<int>(any(0, 1) * any(0, 20));
  const std::int64_t sizes[] = {0, 1, 15, 255, 256, 257, any(1, 1300)};
  const std::int64_t n[2] = {sizes[any(0, 6)], sizes[any(0, 6)]}, total = n[0] + n[1];
  const std::uint8_t key[32] = {7, static_cast<std::uint8_t>(generator())}, tag_key[16] = {9};
  const std::string label = "label", suffixes[] = {"/0", "/1", "/2", "/3"}, tag_suffix = "/tag";
  Guarded<T> first(3 * total), second(total);
  Guarded<Out> out(3 * total), base(3 * total);
  const int begun = static_cast<int>(any(0, 2));  // from zero, from base, in place
  const mpk_rows sources[] = {{first.data(), total, 3}, {second.data(), 0, 1}};
  Guarded<std::uint8_t> wire_0(n[0] * wire_bytes), wire_1(n[1] * wire_bytes), tags(32);
  Guarded<std::uint8_t>* const wires[] = {&wire_0, &wire_1};
  void* const to[] = {wire_0.data(), wire_1.data()};
  std::vector<Out> expected = begun == 0 ? std::vector<Out>(static_cast<std::size_t>(3 * total)) : begun == 1 ? base.copy() : out.copy();
  std::vector<std::uint8_t> expected_tags = tags.copy(), expected_wires[2];
  std::vector<mpk_term> terms;
  for (int half = 0; half < 2; ++half)
    for (int t = 0; t < 4; ++t) {  // sent, vouched for, known as a mask only, sent nowhere
      mpk_term term{};
      term.half = half, term.op = t == 2 ? 0 : any(1, xored ? 2 : 5);
      for (int i = 0; i < MPK_MOST_OPERANDS; ++i) {
        term.source[i] = any(0, 1);
        term.row[i] = term.source[i] == 0 ? any(0, 2) : 0;
      }
      term.key = key, term.key_bytes = 32;
      const std::string& suffix = suffixes[t];
      term.suffix = reinterpret_cast<const std::uint8_t*>(suffix.data()), term.suffix_bytes = 2;
      term.mask_at = any(-1, 2), term.rest_at = any(-1, 2);
      term.wire = t == 0 ? half : -1, term.tag = t == 1 ? half : -1;
      term.tag_key = tag_key, term.tag_key_bytes = 16;
      term.tag_suffix = reinterpret_cast<const std::uint8_t*>(tag_suffix.data()), term.tag_suffix_bytes = 4;
      terms.push_back(term);
      const std::int64_t start = half == 0 ? 0 : n[0];
      const std::string name = label + suffix;
      std::vector<T> mask(static_cast<std::size_t>(n[half]));
      if (mpk_draw(key, 32, reinterpret_cast<const std::uint8_t*>(name.data()), static_cast<std::int64_t>(name.size()),
                   mask.data(), n[half], bytes, bits) == MPK_UNSUPPORTED)
        return;
      const auto row = [&](int i) { return term.source[i] == 0 ? first.data() + term.row[i] * total : second.data(); };
      std::vector<std::uint8_t> sent;
      for (std::int64_t i = 0; i < n[half]; ++i) {
        const auto at = [&](int operand) { return row(operand)[start + i]; };
        const T m = mask[static_cast<std::size_t>(i)];
        T value = 0;
        switch (term.op) {
          case MPK_TERM_COPY: value = at(0); break;
          case MPK_TERM_MINUS: value = static_cast<T>(T(0) - at(0)); break;
          case MPK_TERM_PRODUCT: value = xored ? at(0) & at(1) : static_cast<T>(at(0) * at(1)); break;
          case MPK_TERM_CHOSEN: value = static_cast<T>((at(0) + at(1)) & (T(0) - at(2))); break;
          default: value = static_cast<T>(at(0) * (at(1) - 2 * at(2)) + at(3) * (at(4) - 2 * at(5)));
        }
        T rest = static_cast<T>(xored ? value ^ m : value - m);
        const T high = static_cast<T>(T(1) << (bits - 1)), low = static_cast<T>(rest & static_cast<T>(high + (high - 1)));
        rest = static_cast<T>((low ^ high) - high);
        const auto add = [&](std::int64_t component, T x) {
          if (component < 0) return;
          Out& sum = expected[static_cast<std::size_t>(component * total + start + i)];
          sum = static_cast<Out>(xored ? sum ^ static_cast<Out>(x) : sum + (static_cast<Out>(x) << up));
        };
        add(term.mask_at, m);
        if (term.op == MPK_TERM_UNKNOWN) continue;
        add(term.rest_at, rest);
        for (int b = 0; b < wire_bytes; ++b) sent.push_back(static_cast<std::uint8_t>(static_cast<std::uint64_t>(rest) >> (8 * b)));
      }
      if (t == 0) expected_wires[half] = sent;
      if (t == 1 && n[half] > 0) {
        mpk_tag(tag_key, 16, reinterpret_cast<const std::uint8_t*>(label.data()), 5, term.tag_suffix, 4, sent.data(),
                static_cast<std::int64_t>(sent.size()), expected_tags.data() + 16 * half);
      }
    }
  const mpk_use use{reinterpret_cast<const std::uint8_t*>(label.data()), 5, sources, 2, to, 2, tags.data(), 2};
  const void* from = begun == 0 ? nullptr : begun == 1 ? base.data() : out.data();
  const int status = mpk_joint(terms.data(), static_cast<std::int64_t>(terms.size()), &use, n, bytes, bits, xored,
                               wire_bytes, from, total, out.data(), total, 3, static_cast<int>(sizeof(Out)), up);
  check("joint values", expected, out, status);
  check("their tags", expected_tags, tags, status);
  for (int half = 0; half < 2; ++half) check("their rests", expected_wires[half], *wires[half], status);
}

// Numbers that came, added; the tag is that of the whole, in pieces of any size or none.
template <class Out>
void taken() {
  const std::int64_t n = one_of({0, 1, 2, 255, 256, 257, any(1, 1500)});
  const int bytes = static_cast<int>(any(1, 8)), xored = static_cast<int>(any(0, 1));
  const int up = xored ? 0 : static_cast<int>(any(0, 31));
  const std::uint8_t key[16] = {static_cast<std::uint8_t>(generator())}, label[] = "labelled";
  Guarded<std::uint8_t> data(n * bytes), tag(16);
  Guarded<Out> out(n);
  std::vector<Out> expected = out.copy();
  for (std::int64_t i = 0; i < n; ++i) {
    std::uint64_t value = 0;
    for (int b = 0; b < bytes; ++b) value |= static_cast<std::uint64_t>(data[i * bytes + b]) << (8 * b);
    Out& sum = expected[static_cast<std::size_t>(i)];
    sum = static_cast<Out>(xored ? sum ^ static_cast<Out>(value) : sum + (static_cast<Out>(value) << up));
  }
  std::vector<std::uint8_t> expected_tag(16);
  if (mpk_tag(key, 16, label, 8, label, 0, data.data(), n * bytes, expected_tag.data()) == MPK_UNSUPPORTED) return;
  const int status = mpk_take(key, 16, label, 5, label + 5, 3, data.data(), bytes, n, xored, up, out.data(),
                              static_cast<int>(sizeof(Out)), tag.data());
  check("what came", expected, out, status);
  check("its tag", expected_tag, tag, status);
}

template <class T>
void pair_sums() {
  const std::int64_t n = any(0, 300), stride = n + any(0, 3);
  Guarded<T> x(n == 0 ? 0 : 2 * stride + n), out(3 * n);
  std::vector<T> expected;
  for (std::int64_t i = 0; i < n; ++i) expected.push_back(static_cast<T>(x[stride + i] + x[2 * stride + i]));
  for (std::int64_t i = 0; i < n; ++i) expected.push_back(static_cast<T>(x[i] - x[2 * stride + i]));
  for (std::int64_t i = 0; i < n; ++i) expected.push_back(static_cast<T>(x[i] + x[stride + i]));
  const int status = mpk_pair_sums(x.data(), stride, n, static_cast<int>(sizeof(T)), out.data());
  check("sums of pairs", expected, out, status);
}

#include "three_parties.h"
#include "told.h"

}  // namespace

int main(int count, char** arguments) {
  const long rounds = count > 1 ? std::atol(arguments[1]) : 100;
  const unsigned long seed = count > 2 ? std::strtoul(arguments[2], nullptr, 10) : 1;
  const char* names[] = {"portable", "avx2", "avx512", "neon"};
  for (const int isa : {MPK_ISA_PORTABLE, MPK_ISA_AVX2, MPK_ISA_AVX512, MPK_ISA_NEON}) {
    if (mpk_set_isa(isa) != MPK_OK) {
      std::printf("%s: not on this processor\n", names[isa]);
      continue;
    }
    generator.seed(seed);
    cases = 0;
    const long before = failures;
    for (long round = 0; round < rounds; ++round) {
      matmul<std::uint64_t>(), matmul<std::uint32_t>(), matmul<float>();
      convolution<std::uint64_t>(), convolution<std::uint32_t>(), convolution<float>();
      bits<std::uint64_t>(), bits<std::uint32_t>();
      sums_and_signs<std::uint64_t>(), sums_and_signs<std::uint32_t>();
      streams();
      joint_values<std::uint64_t, std::uint64_t>(true), joint_values<std::uint64_t, std::uint64_t>(false);
      joint_values<std::uint32_t, std::uint64_t>(false), joint_values<std::uint32_t, std::uint32_t>(false);
      taken<std::uint64_t>(), taken<std::uint32_t>();
      told<std::uint64_t>(), told<std::uint32_t>();
      pair_sums<std::uint64_t>(), pair_sums<std::uint32_t>();
      three_parties<std::uint64_t>(), three_parties<std::uint32_t>();
    }
    std::printf("%s: %ld cases, %ld differ\n", names[isa], cases, failures - before);
  }
  return failures == 0 ? 0 : 1;
}
