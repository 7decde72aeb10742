// Packed bits of four parties: what is known of products of planes, before they are shared.
#include "steps_common.h"

namespace mpk {
namespace {

constexpr Index kBlock = 256;  // words of a plane that are worked on at a time

// Planes of replicated bits: component 0 and the distances to the next component and to the next plane, in words.
struct Planes {
  const std::uint64_t* first;
  Index component, plane;
};

struct AndSummands {
  Planes p, g, q;
  Index planes, q_planes, words;
  std::uint64_t* z;

  MPK_INLINE void body() const {
    const Index total = (planes + q_planes) * words;
    for (Index j = 0; j < planes + q_planes; ++j) {
      const bool later = j >= planes;
      const std::uint64_t* x = p.first + (later ? j - q_planes : j) * p.plane;
      const Planes& other = later ? q : g;
      const std::uint64_t* y = other.first + (later ? j - planes : j) * other.plane;
      std::uint64_t* to = z + j * words;
      for (Index i = 0; i < words; ++i) {
        const std::uint64_t x0 = x[i], x1 = x[i + p.component], x2 = x[i + 2 * p.component];
        const std::uint64_t y0 = y[i], y1 = y[i + other.component], y2 = y[i + 2 * other.component];
        to[i] = (x1 ^ x2) & (y1 ^ y2);
        to[i + total] = (x0 ^ x2) & (y0 ^ y2);
        to[i + 2 * total] = (x0 ^ x1) & (y0 ^ y1);
      }
    }
  }

  void portable() const { body(); }
#ifdef MPK_X86
  MPK_TARGET("avx2") void wide() const { body(); }
#endif
};

// The blocks of a sum's bits: `width` planes each, the lowest the rest. A block of w planes has 2^w - 1 monomials, the
// products of its non-empty sets of planes, by the set's number.
struct BitBlocks {
  Index count, width, words;

  Index blocks() const { return ceil_div(count, width); }
  Index planes(Index block) const { return block == 0 ? count - (blocks() - 1) * width : width; }
  static Index monomials(Index planes) { return (Index{1} << planes) - 1; }
  Index rows() const { return blocks() == 0 ? 0 : monomials(planes(0)) + (blocks() - 1) * monomials(width); }
};

struct Monomials {
  BitBlocks shape;
  const std::uint64_t* planes;
  std::uint64_t* out;

  MPK_INLINE void body() const {
    const Index words = shape.words;
    const std::uint64_t* plane = planes;
    std::uint64_t* to = out;
    for (Index block = 0; block < shape.blocks(); ++block) {
      const Index w = shape.planes(block);
      for (Index start = 0; start < words; start += kBlock) {
        const Index here = words - start < kBlock ? words - start : kBlock;
        for (Index bit = 0; bit < w; ++bit) {
          const std::uint64_t* x = plane + bit * words + start;
          std::uint64_t* row = to + BitBlocks::monomials(bit) * words + start;
          std::memcpy(row, x, static_cast<std::size_t>(here) * 8);
          for (Index below = 0; below < BitBlocks::monomials(bit); ++below) {
            const std::uint64_t* __restrict y = to + below * words + start;
            std::uint64_t* __restrict z = row + (below + 1) * words;
            for (Index i = 0; i < here; ++i) z[i] = x[i] & y[i];
          }
        }
      }
      plane += w * words;
      to += BitBlocks::monomials(w) * words;
    }
  }

  void portable() const { body(); }
#ifdef MPK_X86
  MPK_TARGET("avx2") void wide() const { body(); }
#endif
};

// Of a block the carry out, g = sum over i of a_i b_i times all of (a_j ^ b_j) above, and p = all of (a_j ^ b_j) without
// the two products that are one side's: sums of products of a monomial of a and one of b.
struct BlockProducts {
  BitBlocks shape;
  const std::uint64_t *a, *b;
  std::uint64_t* z;

  MPK_INLINE void add(std::uint64_t* __restrict to, Index row, Index set_a, Index set_b, Index start, Index here) const {
    const std::uint64_t* __restrict x = a + (row + set_a - 1) * shape.words + start;
    const std::uint64_t* __restrict y = b + (row + set_b - 1) * shape.words + start;
    for (Index i = 0; i < here; ++i) to[i] ^= x[i] & y[i];
  }

  MPK_INLINE void body() const {
    const Index words = shape.words, blocks = shape.blocks();
    Index row = 0;
    for (Index block = 0; block < blocks; ++block) {
      const Index w = shape.planes(block), all = BitBlocks::monomials(w);
      for (Index start = 0; start < words; start += kBlock) {
        const Index here = words - start < kBlock ? words - start : kBlock;
        alignas(64) std::uint64_t sum[kBlock];
        const std::size_t bytes = static_cast<std::size_t>(here) * 8;
        std::memset(sum, 0, bytes);
        for (Index bit = 0; bit < w; ++bit) {
          const Index own = Index{1} << bit, above = all & ~(2 * own - 1);
          for (Index set = 0; set <= all; set += 2 * own) add(sum, row, own | set, own | (above & ~set), start, here);
        }
        std::memcpy(z + block * words + start, sum, bytes);
        if (block == 0) continue;
        std::memset(sum, 0, bytes);
        for (Index set = 1; set < all; ++set) add(sum, row, set, all & ~set, start, here);
        std::memcpy(z + (blocks + block - 1) * words + start, sum, bytes);
      }
      row += all;
    }
  }

  void portable() const { body(); }
#ifdef MPK_X86
  MPK_TARGET("avx2") void wide() const { body(); }
#endif
};

template <class Step>
void run_step(const Step& step) {
#ifdef MPK_X86
  if (has_avx2()) return step.wide();
#endif
  step.portable();
}

BitBlocks bit_blocks(std::int64_t count, std::int64_t width, std::int64_t words) {
  require(count >= 0 && count <= 64 && width >= 1 && width <= 8 && words >= 0);
  const BitBlocks shape{static_cast<Index>(count), static_cast<Index>(width), static_cast<Index>(words)};
  product(shape.rows(), shape.words, 8);
  return shape;
}

}  // namespace
}  // namespace mpk

int mpk_monomials(const uint64_t* planes, int64_t count, int64_t width, int64_t words, uint64_t* out) {
  return mpk::guarded([&] { mpk::run_step(mpk::Monomials{mpk::bit_blocks(count, width, words), planes, out}); });
}

int mpk_block_products(const uint64_t* a, const uint64_t* b, int64_t count, int64_t width, int64_t words, uint64_t* z) {
  return mpk::guarded([&] { mpk::run_step(mpk::BlockProducts{mpk::bit_blocks(count, width, words), a, b, z}); });
}

int mpk_and_summands(const uint64_t* p, int64_t p_component, int64_t p_plane, const uint64_t* g, int64_t g_component,
                     int64_t g_plane, const uint64_t* q, int64_t q_component, int64_t q_plane, int64_t planes,
                     int64_t q_planes, int64_t words, uint64_t* z) {
  using namespace mpk;
  const auto at = [](const uint64_t* first, int64_t component, int64_t plane) {
    return Planes{first, static_cast<Index>(component), static_cast<Index>(plane)};
  };
  return guarded([&] {
    require(planes >= 0 && q_planes >= 0 && q_planes <= planes && words >= 0);
    product(3, static_cast<Index>(planes) + static_cast<Index>(q_planes), static_cast<Index>(words));
    run_step(AndSummands{at(p, p_component, p_plane), at(g, g_component, g_plane), at(q, q_component, q_plane),
                static_cast<Index>(planes),  static_cast<Index>(q_planes), static_cast<Index>(words), z});
  });
}
