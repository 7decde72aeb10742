// Matrix products of strided matrices.
#include <algorithm>
#include <utility>

#include "dispatch.h"
#include "gemm.h"
#include "threads.h"

namespace mpk {
namespace {

constexpr Index kFewRows = 12;  // so few rows do not pay for packing B
constexpr Index kLongest = Index(1) << 20;

template <class T>
struct Strided {
  const T* base;
  Index row, col;
};

struct Tables {
  Scratch rows_of_a, k_of_a, k_of_b, columns_of_b, rows_of_c, columns_of_c;
};

template <class Micro, class T>
void product_part(Index m, Index n, Index k, Strided<T> a, Strided<T> b, T* c, Index c_row, Index c_col,
                  bool accumulate) {
  static thread_local Tables t;
  // Rows of B a multiple of 1 KiB apart compete for the same few sets of the cache: those are packed.
  const bool in_place = m <= kFewRows && b.row * static_cast<Index>(sizeof(T)) % 1024 != 0;
  // Tables of offsets are as long as a side of a matrix: long sides are cut, so that tables stay small beside them.
  for (Index k0 = 0; k0 < std::max<Index>(k, 1); k0 += kLongest)
    for (Index i0 = 0; i0 < m; i0 += kLongest)
      for (Index j0 = 0; j0 < n; j0 += kLongest) {
        const Index rows = std::min(kLongest, m - i0), columns = std::min(kLongest, n - j0);
        const Index depth = std::min(kLongest, k - k0);
        const Rows<T> of_a{a.base + i0 * a.row + k0 * a.col, ramp(t.rows_of_a, rows, a.row), ramp(t.k_of_a, depth, a.col)};
        const Columns<T> of_b{b.base + k0 * b.row + j0 * b.col, ramp(t.k_of_b, depth, b.row),
                              ramp(t.columns_of_b, columns, b.col), in_place};
        gemm<Micro>(rows, columns, depth, of_a, of_b,
                    {c + i0 * c_row + j0 * c_col, ramp(t.rows_of_c, rows, c_row), ramp(t.columns_of_c, columns, c_col),
                     accumulate || k0 > 0});
      }
}

// The grid of tiles of C, one a thread, whose largest tile is the smallest.
template <class Micro>
std::pair<int, int> grid(Index m, Index n, int threads) {
  const Index row_tiles = ceil_div(m, Micro::kMR), column_tiles = ceil_div(n, Micro::kNR);
  std::pair<int, int> best{1, 1};
  double best_cost = 1e300;
  for (int down = 1; down <= threads; ++down) {
    const int across = threads / down;
    const Index tile_rows = ceil_div(row_tiles, down), tile_columns = ceil_div(column_tiles, across);
    const double cost = double(tile_rows) * double(tile_columns) + 0.05 * double(tile_rows + tile_columns);
    if (cost < best_cost) best_cost = cost, best = {down, across};
  }
  return best;
}

template <class T>
void matmul(Index m, Index n, Index k, Strided<T> a, Strided<T> b, T* c, Index c_row, Index c_col, bool accumulate,
            int threads) {
  require(m >= 0 && n >= 0 && k >= 0 && threads >= 1);
  product(m, k), product(k, n), product(m, n);
  const Span out = span_of(c, {{m, c_row}, {n, c_col}});
  require(!out.overlaps(span_of(a.base, {{m, a.row}, {k, a.col}})), MPK_OVERLAP);
  require(!out.overlaps(span_of(b.base, {{k, b.row}, {n, b.col}})), MPK_OVERLAP);
  with_micro<T>([&](auto micro) {
    using Micro = decltype(micro);
    // C^T = B^T A^T: turned where that leaves fewer lanes of the vectors empty.
    const auto lanes = [](Index rows, Index columns) { return double(rows) * double(round_up(columns, Micro::kNR)); };
    Index rows = m, columns = n;
    if (lanes(n, m) < 0.95 * lanes(m, n)) {
      std::swap(rows, columns);
      std::swap(a, b);
      std::swap(a.row, a.col), std::swap(b.row, b.col), std::swap(c_row, c_col);
    }
    const auto [down, across] =
        grid<Micro>(rows, columns, worthwhile_threads(threads, double(m) * double(n) * double(k)));
    const Index row_tiles = ceil_div(rows, Micro::kMR), column_tiles = ceil_div(columns, Micro::kNR);
    in_parallel(down * across, [&, down = down, across = across](int part) {
      const Index i = part / across, j = part % across;
      const Index i0 = row_tiles * i / down * Micro::kMR, i1 = std::min(rows, row_tiles * (i + 1) / down * Micro::kMR);
      const Index j0 = column_tiles * j / across * Micro::kNR;
      const Index j1 = std::min(columns, column_tiles * (j + 1) / across * Micro::kNR);
      product_part<Micro, T>(i1 - i0, j1 - j0, k, {a.base + i0 * a.row, a.row, a.col}, {b.base + j0 * b.col, b.row, b.col},
                             c + i0 * c_row + j0 * c_col, c_row, c_col, accumulate);
    });
  });
}

}  // namespace
}  // namespace mpk

int mpk_matmul_u64(int64_t m, int64_t n, int64_t k, const uint64_t* a, int64_t a_row, int64_t a_col, const uint64_t* b,
                   int64_t b_row, int64_t b_col, uint64_t* c, int64_t c_row, int64_t c_col, int accumulate,
                   int threads) {
  return mpk::guarded([&] {
    mpk::matmul<std::uint64_t>(m, n, k, {a, a_row, a_col}, {b, b_row, b_col}, c, c_row, c_col, accumulate != 0, threads);
  });
}

int mpk_matmul_u32(int64_t m, int64_t n, int64_t k, const uint32_t* a, int64_t a_row, int64_t a_col, const uint32_t* b,
                   int64_t b_row, int64_t b_col, uint32_t* c, int64_t c_row, int64_t c_col, int accumulate,
                   int threads) {
  return mpk::guarded([&] {
    mpk::matmul<std::uint32_t>(m, n, k, {a, a_row, a_col}, {b, b_row, b_col}, c, c_row, c_col, accumulate != 0, threads);
  });
}

int mpk_matmul_f32(int64_t m, int64_t n, int64_t k, const float* a, int64_t a_row, int64_t a_col, const float* b,
                   int64_t b_row, int64_t b_col, float* c, int64_t c_row, int64_t c_col, int accumulate, int threads) {
  return mpk::guarded([&] {
    mpk::matmul<float>(m, n, k, {a, a_row, a_col}, {b, b_row, b_col}, c, c_row, c_col, accumulate != 0, threads);
  });
}
