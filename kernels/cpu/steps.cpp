// Local steps of protocols, each as one pass over its tensors instead of one for every operation in it.
#include "steps_common.h"

namespace mpk {
namespace {

template <class T>
struct SumAndSign {
  const T *x, *y;
  T constant;
  const std::uint64_t* mask;
  Index n;
  int spare;
  T* sum;
  std::uint64_t* plane;

  MPK_INLINE void add(Index start, Index here) const {
    if (y == nullptr)
      for (Index i = start; i < start + here; ++i) sum[i] = wrapped<T>(static_cast<T>(x[i] + constant), spare);
    else
      for (Index i = start; i < start + here; ++i) sum[i] = wrapped<T>(static_cast<T>(x[i] + y[i] + constant), spare);
  }

  void portable(Index start) const {
    for (; start < n; start += 64) {
      const Index here = n - start < 64 ? n - start : 64;
      add(start, here);
      plane[start / 64] = nonnegative_bits(sum + start, here) ^ mask[start / 64];
    }
  }

#ifdef MPK_X86
  MPK_TARGET("avx2") void wide() const {
    Index start = 0;
    for (; start + 64 <= n; start += 64) {
      add(start, 64);
      plane[start / 64] = nonnegative_bits64_avx2(sum + start) ^ mask[start / 64];
    }
    portable(start);
  }
#endif

  void run() const {
#ifdef MPK_X86
    if (has_avx2()) return wide();
#endif
    portable(0);
  }
};

template <int Bytes, class T>
void deal(const std::uint64_t* r_a, const std::uint64_t* r_b, const T* c0, Index n, int t, std::uint8_t* out) {
  for (Index start = 0; start < n; start += 64) {
    const std::uint64_t both = r_a[start / 64] & r_b[start / 64];
    const Index here = n - start < 64 ? n - start : 64;
    for (Index j = 0; j < here; ++j) {
      const std::uint64_t c1 = (both >> j & 1) - static_cast<std::uint64_t>(c0[start + j]);
      const std::uint64_t reduced = wrapped<std::uint64_t>(c1, 64 - t);
      std::memcpy(out + (start + j) * Bytes, &reduced, Bytes);
    }
  }
}

template <class T>
struct QuotientHalf {
  const T* s;
  const std::uint64_t *own, *alpha, *beta;
  const std::uint8_t* c;
  bool first;
  T constant;
  const T* mask;
  Index n;
  int k, t;
  T* out;

  // Bytes is how many bytes an element of c has.
  template <int Bytes>
  MPK_INLINE void run64(Index start, Index here) const {
    constexpr int kWidth = 8 * static_cast<int>(sizeof(T));
    const std::uint64_t a = alpha[start / 64], b = beta[start / 64];
    const std::uint64_t sign = a ^ b, plus = own[start / 64] & (first ? b : a), minus = first ? a & b : 0;
    const T keep = static_cast<T>(~T{0} >> (kWidth - k + t));
    const int spare = kWidth - k, up = k - t;
    for (Index j = 0; j < here; ++j) {
      const Index i = start + j;
      T known = 0;
      std::memcpy(&known, c + i * Bytes, Bytes < static_cast<int>(sizeof(T)) ? Bytes : sizeof(T));
      const T negative = static_cast<T>(sign >> j & 1);
      const T bit = static_cast<T>(static_cast<T>(plus >> j & 1) - static_cast<T>(minus >> j & 1));
      const T product = static_cast<T>((known ^ static_cast<T>(-negative)) + negative + bit);
      T y = static_cast<T>(((s[i] >> t) & keep) + (product << up) - constant);
      if (mask != nullptr) y -= mask[i];
      out[i] = wrapped<T>(y, spare);
    }
  }

  template <int Bytes>
  void portable() const {
    Index start = 0;
    for (; start + 64 <= n; start += 64) run64<Bytes>(start, 64);
    if (start < n) run64<Bytes>(start, n - start);
  }

#ifdef MPK_X86
  template <int Bytes>
  MPK_TARGET("avx2") void wide() const {
    Index start = 0;
    for (; start + 64 <= n; start += 64) run64<Bytes>(start, 64);
    if (start < n) run64<Bytes>(start, n - start);
  }
#endif

  template <int Bytes>
  void run() const {
#ifdef MPK_X86
    if (has_avx2()) return wide<Bytes>();
#endif
    portable<Bytes>();
  }
};

// Planes of replicated bits: component 0 and the distances to component 1 and to the next plane, in words.
struct Planes {
  const std::uint64_t* first;
  Index component, plane;
};

struct AndLevel {
  Planes p, g, q;
  Index planes, q_planes, words;
  const std::uint64_t *mask_0, *mask_1;
  std::uint64_t* z;

  MPK_INLINE void body() const {
    for (Index j = 0; j < planes + q_planes; ++j) {
      const bool later = j >= planes;
      const std::uint64_t* x0 = p.first + (later ? j - q_planes : j) * p.plane;
      const Planes& other = later ? q : g;
      const std::uint64_t* y0 = other.first + (later ? j - planes : j) * other.plane;
      const std::uint64_t *x1 = x0 + p.component, *y1 = y0 + other.component;
      const std::uint64_t *m0 = mask_0 + j * words, *m1 = mask_1 + j * words;
      std::uint64_t* to = z + j * words;
      for (Index i = 0; i < words; ++i) to[i] = (x0[i] & (y0[i] ^ y1[i])) ^ (x1[i] & y0[i]) ^ m0[i] ^ m1[i];
    }
  }

  void portable() const { body(); }
#ifdef MPK_X86
  MPK_TARGET("avx2") void wide() const { body(); }
#endif

  void run() const {
#ifdef MPK_X86
    if (has_avx2()) return wide();
#endif
    portable();
  }
};

}  // namespace
}  // namespace mpk

int mpk_sum_and_sign(const void* x, const void* y, int64_t constant, const uint64_t* mask, int64_t n,
                     int element_bytes, int k, void* sum, uint64_t* plane) {
  using namespace mpk;
  return guarded([&] {
    require_elements(n, element_bytes, k);
    with_width(element_bytes, [&](auto zero) {
      using T = decltype(zero);
      SumAndSign<T>{static_cast<const T*>(x), static_cast<const T*>(y), static_cast<T>(constant), mask,
                    static_cast<Index>(n), 8 * element_bytes - k, static_cast<T*>(sum), plane}
          .run();
    });
  });
}

int mpk_deal(const uint64_t* r_a, const uint64_t* r_b, const void* c0, int64_t n, int element_bytes, int t,
             int out_bytes, uint8_t* out) {
  using namespace mpk;
  return guarded([&] {
    require_elements(n, element_bytes, t);
    require(out_bytes >= 1 && out_bytes <= 8);
    with_width(element_bytes, [&](auto zero) {
      using T = decltype(zero);
      with_bytes(out_bytes, [&](auto bytes) {
        deal<bytes.value>(r_a, r_b, static_cast<const T*>(c0), static_cast<Index>(n), t, out);
      });
    });
  });
}

int mpk_quotient_half(const void* s, const uint64_t* own, const uint64_t* alpha, const uint64_t* beta, const uint8_t* c,
                      int c_bytes, int first, int64_t constant, const void* mask, int64_t n, int element_bytes, int k,
                      int t, void* out) {
  using namespace mpk;
  return guarded([&] {
    require_elements(n, element_bytes, k);
    require(c_bytes >= 1 && c_bytes <= 8 && t >= 1 && t < k);
    with_width(element_bytes, [&](auto zero) {
      using T = decltype(zero);
      const QuotientHalf<T> half{static_cast<const T*>(s),    own, alpha, beta, c, first != 0, static_cast<T>(constant),
                                 static_cast<const T*>(mask), static_cast<Index>(n), k, t, static_cast<T*>(out)};
      with_bytes(c_bytes, [&](auto bytes) { half.template run<bytes.value>(); });
    });
  });
}

int mpk_and_level(const uint64_t* p, int64_t p_component, int64_t p_plane, const uint64_t* g, int64_t g_component,
                  int64_t g_plane, const uint64_t* q, int64_t q_component, int64_t q_plane, int64_t planes,
                  int64_t q_planes, int64_t words, const uint64_t* mask_0, const uint64_t* mask_1, uint64_t* z) {
  using namespace mpk;
  const auto at = [](const uint64_t* first, int64_t component, int64_t plane) {
    return Planes{first, static_cast<Index>(component), static_cast<Index>(plane)};
  };
  return guarded([&] {
    require(planes >= 0 && q_planes >= 0 && q_planes <= planes && words >= 0);
    product(static_cast<Index>(planes) + static_cast<Index>(q_planes), static_cast<Index>(words));
    AndLevel{at(p, p_component, p_plane), at(g, g_component, g_plane), at(q, q_component, q_plane),
             static_cast<Index>(planes), static_cast<Index>(q_planes), static_cast<Index>(words), mask_0, mask_1, z}
        .run();
  });
}
