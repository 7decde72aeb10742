// The innermost product in plain C++, for any processor. What every faster kernel must equal (in float32: up to rounding).
#pragma once

#include "common.h"
#include "strips_portable.h"

namespace mpk {

// The arguments of a micro-kernel, which adds up R x kNR elements of C over `kc` values of k:
//
//     c[row[i] + j] (+)= sum over k of a(k, i) * b[offset[k] + j]        i < R <= kMR,  j < kNR
//
// `a` is packed tile by tile; `b` is either packed (offset[k] = k * kNR) or read where it lies.
//
// A plain kernel has a(k, i) = a[k * R + i]. A paired kernel takes an even kc and a[(k / 2) * 2 R + 2 i + k % 2], and
// halves the multiplications (Winograd, "A new algorithm for inner product", IEEE Trans. Comput. 1968): in any
// commutative ring
//
//     a0 b0 + a1 b1 = (a0 + b1)(a1 + b0) - a0 a1 - b0 b1,
//
// where the sums of a0 a1 over k, one for each row, and of b0 b1, one for each column, are formed once and used by
// all tiles in the same row or column of C: `row_excess` and `column_excess`.
template <class T>
struct Tile {
  Index kc;
  const T* a;
  const T* b;
  const Index* offset;
  T* c;
  const Index* row;
  bool accumulate;
  const T* row_excess;
  const T* column_excess;
};

template <class Element>
struct MicroPortable {
  using T = Element;
  using Strips = StripsPortable<T>;
  using Kernel = void (*)(const Tile<T>& tile);
  static constexpr bool kHasPairs = false;
  static constexpr int kMR = 4, kNR = 8;
  static constexpr int kTransposed = 0;  // columns of how many k are packed at once where they are neighbours
  static constexpr Index kKC = 256, kMC = 96, kNC = 1024;

  template <int R>
  static void plain(const Tile<T>& tile) {
    T sum[R][kNR] = {};
    for (Index k = 0; k < tile.kc; ++k) {
      const T* row = tile.b + tile.offset[k];
      for (int i = 0; i < R; ++i)
        for (int j = 0; j < kNR; ++j) sum[i][j] += tile.a[k * R + i] * row[j];
    }
    for (int i = 0; i < R; ++i) {
      T* c = tile.c + tile.row[i];
      for (int j = 0; j < kNR; ++j) c[j] = sum[i][j] + (tile.accumulate ? c[j] : T(0));
    }
  }

  static constexpr Kernel kPlain[kMR + 1] = {nullptr, plain<1>, plain<2>, plain<3>, plain<4>};
};

}  // namespace mpk
