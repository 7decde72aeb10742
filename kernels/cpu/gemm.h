// The product C (+)= A B of matrices that are given by offset tables, so that one driver serves every operator.
//
// In a convolution each element of the (never built) matrices lies at `row part + column part` of some tensor: the
// element of the patch matrix for filter tap k and output pixel j is x[k_offset[k] + column_offset[j]], in all three
// directions; a strided dense matrix is the same thing. So each matrix is a base with two tables, as in block-scatter
// matrices (Matthews, "High-performance tensor contraction without transposition", SISC 2018). Panels of B whose
// columns happen to be neighbours in memory can be read where they lie; others are packed.
//
// Loops as in Goto and van de Geijn (TOMS 2008): nc columns of B, kc of k, mc rows of A, then micro-kernels.
#pragma once

#include <algorithm>

#include "common.h"
#include "micro_portable.h"
#include "pack.h"

namespace mpk {

template <class T>
struct Rows {  // A: element (i, k) is base[row_offset[i] + k_offset[k]]
  const T* base;
  const Index* row_offset;
  const Index* k_offset;
};

template <class T>
struct Columns {  // B: element (k, j) is base[k_offset[k] + column_offset[j]]
  const T* base;
  const Index* k_offset;  // closed by `close_k_table`
  const Index* column_offset;
  bool in_place;  // read panels of neighbouring columns where they lie, without packing
};

template <class T>
struct Target {  // C: element (i, j) is base[row_offset[i] + column_offset[j]]
  T* base;
  const Index* row_offset;
  const Index* column_offset;
  bool accumulate;
};

// A table for k has one entry more than there are k, a copy of the last: what an odd last k is paired with, times 0.
inline Index* open_k_table(Scratch& scratch, Index count) { return scratch.get<Index>(product(count, 1) + 1); }

inline const Index* close_k_table(Index* table, Index count) {
  table[count] = count > 0 ? table[count - 1] : 0;
  return table;
}

// The table 0, step, 2 step, ...
inline const Index* ramp(Scratch& scratch, Index count, Index step) {
  Index* table = open_k_table(scratch, count);
  for (Index i = 0; i < count; ++i) table[i] = i * step;
  return close_k_table(table, count);
}

struct Workspace {
  Scratch a, b, panels, iota, row_excess, column_excess;
};

inline Workspace& workspace() {
  static thread_local Workspace space;
  return space;
}

template <class T>
struct Panel {
  const T* base;
  const Index* offset;  // for each k of the block
};

// One block of the loops: all there is to know of it.
template <class Micro>
class Gemm {
  using T = typename Micro::T;
  static constexpr int MR = Micro::kMR, NR = Micro::kNR;

 public:
  Gemm(Index m, Index n, Index depth, const Rows<T>& a, const Columns<T>& b, const Target<T>& c)
      : m_(m), n_(n), depth_(depth), a_(a), b_(b), c_(c) {
    // Pairs pay once a few rows and columns share each sum of excesses.
    paired_ = Micro::kHasPairs && m >= 8 && n >= 8 && depth >= 8;
    // Blocks and tiles of nearly equal size: 20 rows are 4 tiles of 5, not 3 of 6 and one of 2.
    Index most_rows = MR;
    if constexpr (Micro::kHasPairs)
      if (paired_) most_rows = Micro::kPairedMR;
    tiles_ = ceil_div(m, most_rows);
    kc_most_ = round_up(ceil_div(depth, ceil_div(depth, Micro::kKC)), 2);  // even: only the last k can lack a partner
    tiles_per_block_ = std::min(tiles_, Micro::kMC / MR);
    panels_per_block_ = std::min(ceil_div(n, NR), Micro::kNC / NR);
    Workspace& space = workspace();
    packed_a_ = space.a.template get<T>(product(tiles_per_block_ * MR, kc_most_));
    packed_b_ = space.b.template get<T>(product(panels_per_block_ * NR, kc_most_));
    panels_ = space.panels.template get<Panel<T>>(panels_per_block_);
    row_excess_ = space.row_excess.template get<T>(tiles_per_block_ * MR);
    column_excess_ = space.column_excess.template get<T>(panels_per_block_ * NR);
    iota_ = space.iota.template get<Index>(kc_most_);
    for (Index k = 0; k < kc_most_; ++k) iota_[k] = k * NR;
  }

  void run() {
    for (Index j0 = 0; j0 < n_; j0 += panels_per_block_ * NR) {
      const Index nc = std::min(panels_per_block_ * NR, n_ - j0);
      for (Index k0 = 0; k0 < depth_; k0 += kc_most_) {
        const Index kc = std::min(kc_most_, depth_ - k0);
        take_panels(j0, nc, k0, kc);
        for (Index t0 = 0; t0 < tiles_; t0 += tiles_per_block_)
          multiply(t0, std::min(tiles_, t0 + tiles_per_block_), j0, nc, k0, kc);
      }
    }
  }

 private:
  Index tile_row(Index tile) const { return m_ * tile / tiles_; }
  Index steps(Index kc) const { return paired_ ? round_up(kc, 2) : kc; }

  void take_panels(Index j0, Index nc, Index k0, Index kc) {
    for (Index p = 0; p * NR < nc; ++p) {
      const Index* column = b_.column_offset + j0 + p * NR;
      const Index count = std::min<Index>(NR, nc - p * NR);
      const Index* offset = b_.k_offset + k0;
      if (b_.in_place && count == NR && neighbours(column, NR)) {
        panels_[p] = {b_.base + column[0], offset};
      } else {
        T* to = packed_b_ + p * NR * kc_most_;
        pack_panel<Micro>(steps(kc), b_.base, offset, column, count, to);
        panels_[p] = {to, iota_};
      }
      if constexpr (Micro::kHasPairs)
        if (paired_) Micro::column_excess(steps(kc), panels_[p].base, panels_[p].offset, column_excess_ + p * NR);
    }
  }

  void multiply(Index t0, Index t1, Index j0, Index nc, Index k0, Index kc) {
    const Index first_row = tile_row(t0);
    for (Index t = t0; t < t1; ++t) {
      const Index row = tile_row(t), local = row - first_row;
      pack_tile(tile_row(t + 1) - row, paired_, kc, a_.base, a_.row_offset + row, a_.k_offset + k0,
                packed_a_ + local * kc_most_, row_excess_ + local);
    }
    const auto* kernels = Micro::kPlain;
    if constexpr (Micro::kHasPairs)
      if (paired_) kernels = Micro::kPaired;

    Tile<T> tile{};
    tile.kc = steps(kc);
    for (Index p = 0; p * NR < nc; ++p) {
      const Index* column = c_.column_offset + j0 + p * NR;
      const Index count = std::min<Index>(NR, nc - p * NR);
      const bool straight = count == NR && neighbours(column, NR);
      tile.b = panels_[p].base;
      tile.offset = panels_[p].offset;
      tile.column_excess = column_excess_ + p * NR;
      for (Index t = t0; t < t1; ++t) {
        const Index row = tile_row(t), rows = tile_row(t + 1) - row, local = row - first_row;
        tile.a = packed_a_ + local * kc_most_;
        tile.row_excess = row_excess_ + local;
        if (straight) {
          tile.c = c_.base + column[0];
          tile.row = c_.row_offset + row;
          tile.accumulate = c_.accumulate || k0 > 0;
          kernels[rows](tile);
        } else {
          through_edge(kernels[rows], tile, row, rows, column, count, c_.accumulate || k0 > 0);
        }
      }
    }
  }

  // For tiles whose columns are not neighbours in C: computed beside it, then moved one by one.
  void through_edge(typename Micro::Kernel kernel, Tile<T> tile, Index row, Index rows, const Index* column,
                    Index count, bool accumulate) {
    static constexpr Index kEdgeRows[] = {0, NR, 2 * NR, 3 * NR, 4 * NR, 5 * NR};
    alignas(64) T edge[MR * NR];
    tile.c = edge;
    tile.row = kEdgeRows;
    tile.accumulate = false;
    kernel(tile);
    for (Index i = 0; i < rows; ++i) {
      T* to = c_.base + c_.row_offset[row + i];
      for (Index j = 0; j < count; ++j) to[column[j]] = edge[i * NR + j] + (accumulate ? to[column[j]] : T(0));
    }
  }

  const Index m_, n_, depth_;
  const Rows<T> a_;
  const Columns<T> b_;
  const Target<T> c_;
  bool paired_;
  Index tiles_, kc_most_, tiles_per_block_, panels_per_block_;
  T *packed_a_, *packed_b_, *row_excess_, *column_excess_;
  Panel<T>* panels_;
  Index* iota_;
};

// C (+)= A B with the micro-kernels of `Micro`, on the calling thread.
template <class Micro>
void gemm(Index m, Index n, Index depth, const Rows<typename Micro::T>& a, const Columns<typename Micro::T>& b,
          const Target<typename Micro::T>& c) {
  if (m == 0 || n == 0) return;
  if (depth > 0) return Gemm<Micro>(m, n, depth, a, b, c).run();
  if (c.accumulate) return;
  for (Index i = 0; i < m; ++i)
    for (Index j = 0; j < n; ++j) c.base[c.row_offset[i] + c.column_offset[j]] = 0;
}

}  // namespace mpk
