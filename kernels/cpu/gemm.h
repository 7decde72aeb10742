// The product C (+)= A B of matrices that are given by offset tables, so that one driver serves every operator.
//
// In a convolution each element of the (never built) matrices lies at `row part + column part` of some tensor: the
// element of the patch matrix for filter tap k and output pixel j is x[k_offset[k] + column_offset[j]], in all three
// directions; a strided dense matrix is the same thing. So B and the columns of C are a base with two tables, as in
// block-scatter matrices (Matthews, "High-performance tensor contraction without transposition", SISC 2018). Panels of
// B whose columns happen to be neighbours in memory are read where they lie; others are packed.
//
// Loops as in Goto and van de Geijn (TOMS 2008): nc columns of B, kc of k, mc rows of A, then micro-kernels.
#pragma once

#include <algorithm>
#include <cstring>

#include "common.h"

namespace mpk {

template <class T>
struct Rows {  // A: element (i, k) is base[i * row_stride + k_offset[k]]
  const T* base;
  Index row_stride;
  const Index* k_offset;
};

template <class T>
struct Columns {  // B: element (k, j) is base[k_offset[k] + column_offset[j]]
  const T* base;
  const Index* k_offset;
  const Index* column_offset;
  bool in_place;  // read panels of neighbouring columns where they lie, without packing
};

template <class T>
struct Target {  // C: element (i, j) is base[i * row_stride + column_offset[j]]
  T* base;
  Index row_stride;
  const Index* column_offset;
  bool accumulate;
};

struct Workspace {
  Scratch a, b, panels, iota;
};

inline Workspace& workspace() {
  static thread_local Workspace space;
  return space;
}

// True if `count` offsets go up by one each.
inline bool neighbours(const Index* offset, Index count) {
  for (Index i = 1; i < count; ++i)
    if (offset[i] != offset[0] + i) return false;
  return true;
}

template <class T, int R>
void pack_tile(Index kc, const T* base, Index row_stride, const Index* k_offset, T* out) {
  for (Index k = 0; k < kc; ++k, out += R) {
    const T* from = base + k_offset[k];
    for (int i = 0; i < R; ++i) out[i] = from[i * row_stride];
  }
}

template <class T>
void pack_tile(int rows, Index kc, const T* base, Index row_stride, const Index* k_offset, T* out) {
  switch (rows) {
    case 1: return pack_tile<T, 1>(kc, base, row_stride, k_offset, out);
    case 2: return pack_tile<T, 2>(kc, base, row_stride, k_offset, out);
    case 3: return pack_tile<T, 3>(kc, base, row_stride, k_offset, out);
    case 4: return pack_tile<T, 4>(kc, base, row_stride, k_offset, out);
    case 5: return pack_tile<T, 5>(kc, base, row_stride, k_offset, out);
    default: return pack_tile<T, 6>(kc, base, row_stride, k_offset, out);
  }
}

// One panel of B, k by k, kNR columns each; columns past `count` are 0.
template <class T, int NR>
void pack_panel(Index kc, const T* base, const Index* k_offset, const Index* column_offset, Index count, T* out) {
  if (count == NR && neighbours(column_offset, NR)) {
    base += column_offset[0];
    for (Index k = 0; k < kc; ++k, out += NR) std::memcpy(out, base + k_offset[k], NR * sizeof(T));
    return;
  }
  if (count == NR) {
    Index column[NR];
    for (int j = 0; j < NR; ++j) column[j] = column_offset[j];
    for (Index k = 0; k < kc; ++k, out += NR) {
      const T* from = base + k_offset[k];
      for (int j = 0; j < NR; ++j) out[j] = from[column[j]];
    }
    return;
  }
  for (Index k = 0; k < kc; ++k, out += NR) {
    const T* from = base + k_offset[k];
    for (Index j = 0; j < NR; ++j) out[j] = j < count ? from[column_offset[j]] : T(0);
  }
}

template <class T>
struct Panel {
  const T* base;
  const Index* offset;  // for each k of the block
};

// C (+)= A B with the micro-kernels of `Micro`, on the calling thread.
template <class Micro>
void gemm(Index m, Index n, Index depth, const Rows<typename Micro::T>& a, const Columns<typename Micro::T>& b,
          const Target<typename Micro::T>& c) {
  using T = typename Micro::T;
  constexpr int MR = Micro::kMR, NR = Micro::kNR;
  if (m == 0 || n == 0) return;
  if (depth == 0) {
    if (c.accumulate) return;
    for (Index i = 0; i < m; ++i)
      for (Index j = 0; j < n; ++j) c.base[i * c.row_stride + c.column_offset[j]] = 0;
    return;
  }

  // Blocks and tiles of nearly equal size: 20 rows are 4 tiles of 5, not 3 of 6 and one of 2.
  const Index tiles = ceil_div(m, MR), tiles_per_block = std::min(tiles, Micro::kMC / MR);
  const Index depth_blocks = ceil_div(depth, Micro::kKC), kc_most = ceil_div(depth, depth_blocks);
  const Index panels_most = std::min(ceil_div(n, NR), Micro::kNC / NR);
  const auto tile_row = [&](Index t) { return m * t / tiles; };

  Workspace& space = workspace();
  T* packed_a = space.a.template get<T>(product(tiles_per_block * MR, kc_most));
  T* packed_b = space.b.template get<T>(product(panels_most * NR, kc_most));
  Panel<T>* panels = space.panels.template get<Panel<T>>(panels_most);
  Index* iota = space.iota.template get<Index>(kc_most);
  for (Index k = 0; k < kc_most; ++k) iota[k] = k * NR;

  for (Index j0 = 0; j0 < n; j0 += panels_most * NR) {
    const Index nc = std::min(panels_most * NR, n - j0), panel_count = ceil_div(nc, NR);
    for (Index block = 0; block < depth_blocks; ++block) {
      const Index k0 = depth * block / depth_blocks, kc = depth * (block + 1) / depth_blocks - k0;
      const bool accumulate = c.accumulate || block > 0;
      for (Index p = 0; p < panel_count; ++p) {
        const Index* column = b.column_offset + j0 + p * NR;
        const Index count = std::min<Index>(NR, nc - p * NR);
        if (b.in_place && count == NR && neighbours(column, NR)) {
          panels[p] = {b.base + column[0], b.k_offset + k0};
        } else {
          T* to = packed_b + p * NR * kc;
          pack_panel<T, NR>(kc, b.base, b.k_offset + k0, column, count, to);
          panels[p] = {to, iota};
        }
      }
      for (Index t0 = 0; t0 < tiles; t0 += tiles_per_block) {
        const Index t1 = std::min(tiles, t0 + tiles_per_block), first_row = tile_row(t0);
        for (Index t = t0; t < t1; ++t)
          pack_tile(static_cast<int>(tile_row(t + 1) - tile_row(t)), kc, a.base + tile_row(t) * a.row_stride,
                    a.row_stride, a.k_offset + k0, packed_a + (tile_row(t) - first_row) * kc);
        for (Index p = 0; p < panel_count; ++p) {
          const Index* column = c.column_offset + j0 + p * NR;
          const Index count = std::min<Index>(NR, nc - p * NR);
          const bool straight = count == NR && neighbours(column, NR);
          for (Index t = t0; t < t1; ++t) {
            const Index row = tile_row(t), rows = tile_row(t + 1) - row;
            const T* tile = packed_a + (row - first_row) * kc;
            T* to = c.base + row * c.row_stride;
            const auto kernel = Micro::kKernels[rows];
            if (straight) {
              kernel(kc, tile, panels[p].base, panels[p].offset, to + column[0], c.row_stride, accumulate);
              continue;
            }
            alignas(64) T edge[MR * NR];
            kernel(kc, tile, panels[p].base, panels[p].offset, edge, NR, false);
            for (Index i = 0; i < rows; ++i)
              for (Index j = 0; j < count; ++j) {
                T& element = to[i * c.row_stride + column[j]];
                element = edge[i * NR + j] + (accumulate ? element : T(0));
              }
          }
        }
      }
    }
  }
}

}  // namespace mpk
