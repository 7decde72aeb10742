// Copies tiles of A and panels of B into the order in which the micro-kernels read them.
#pragma once

#include <cstring>

#include "common.h"

namespace mpk {

// True if `count` offsets go up by one each.
inline bool neighbours(const Index* offset, Index count) {
  for (Index i = 1; i < count; ++i)
    if (offset[i] != offset[0] + i) return false;
  return true;
}

// R rows of A, k by k, for plain kernels.
template <class T, int R>
void pack_plain(Index kc, const T* base, const Index* row_offset, const Index* k_offset, T* out) {
  const T* row[R];
  for (int i = 0; i < R; ++i) row[i] = base + row_offset[i];
  for (Index k = 0; k < kc; ++k, out += R)
    for (int i = 0; i < R; ++i) out[i] = row[i][k_offset[k]];
}

// R rows of A, two k at a time, for paired kernels; `excess` gets the sum of a0 a1 of each row. An odd last k is paired
// with a 0.
template <class T, int R>
void pack_paired(Index kc, const T* base, const Index* row_offset, const Index* k_offset, T* out, T* excess) {
  const T* row[R];
  T sum[R] = {};
  for (int i = 0; i < R; ++i) row[i] = base + row_offset[i];
  Index k = 0;
  for (; k + 2 <= kc; k += 2, out += 2 * R) {
    const Index first = k_offset[k], second = k_offset[k + 1];
    for (int i = 0; i < R; ++i) {
      const T a0 = row[i][first], a1 = row[i][second];
      out[2 * i] = a0;
      out[2 * i + 1] = a1;
      sum[i] += a0 * a1;
    }
  }
  if (k < kc)
    for (int i = 0; i < R; ++i) {
      out[2 * i] = row[i][k_offset[k]];
      out[2 * i + 1] = 0;
    }
  for (int i = 0; i < R; ++i) excess[i] = sum[i];
}

template <class T, int R>
void pack_tile(bool paired, Index kc, const T* base, const Index* row_offset, const Index* k_offset, T* out,
               T* excess) {
  if (paired)
    pack_paired<T, R>(kc, base, row_offset, k_offset, out, excess);
  else
    pack_plain<T, R>(kc, base, row_offset, k_offset, out);
}

template <class T>
void pack_tile(Index rows, bool paired, Index kc, const T* base, const Index* row_offset, const Index* k_offset, T* out,
               T* excess) {
  switch (rows) {
    case 1: return pack_tile<T, 1>(paired, kc, base, row_offset, k_offset, out, excess);
    case 2: return pack_tile<T, 2>(paired, kc, base, row_offset, k_offset, out, excess);
    case 3: return pack_tile<T, 3>(paired, kc, base, row_offset, k_offset, out, excess);
    case 4: return pack_tile<T, 4>(paired, kc, base, row_offset, k_offset, out, excess);
    case 5: return pack_tile<T, 5>(paired, kc, base, row_offset, k_offset, out, excess);
    default: return pack_tile<T, 6>(paired, kc, base, row_offset, k_offset, out, excess);
  }
}

// One panel of B, k by k, kNR columns each; columns past `count` are 0.
template <class Micro, class T>
void pack_panel(Index kc, const T* base, const Index* k_offset, const Index* column_offset, Index count, T* out) {
  constexpr int NR = Micro::kNR;
  if (count == NR && neighbours(column_offset, NR)) {
    base += column_offset[0];
    for (Index k = 0; k < kc; ++k, out += NR) std::memcpy(out, base + k_offset[k], NR * sizeof(T));
    return;
  }
  // Missing columns repeat the last one, whose products nobody takes.
  Index column[NR];
  for (int j = 0; j < NR; ++j) column[j] = column_offset[j < count ? j : count - 1];
  for (Index k = 0; k < kc;) {
    if constexpr (Micro::kTransposed > 0) {
      if (k + Micro::kTransposed <= kc && neighbours(k_offset + k, Micro::kTransposed)) {
        Micro::transpose(base + k_offset[k], column, out);
        k += Micro::kTransposed, out += Micro::kTransposed * NR;
        continue;
      }
    }
    const T* from = base + k_offset[k];
    for (int j = 0; j < NR; ++j) out[j] = from[column[j]];
    ++k, out += NR;
  }
}

}  // namespace mpk
