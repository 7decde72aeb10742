// Matrix products c = a b by tiles of registers, LDS and blocks: pointwise convolutions in all three directions.
//
// An element of each matrix lies at *row part + column part* of a tensor (Axis), so a (batch, channels, pixels) tensor
// is a matrix of channels by all pixels of all images without a copy, and a gradient differs only in its axes:
//
//     forward           y (out, pixels)  = w (out, in)     x  (in, pixels)
//     input gradient    dx (in, pixels)  = w^T (in, out)   dy (out, pixels)
//     weight gradient   dw (out, in)     = dy (out, pixels) x^T (pixels, in)
//
// A block computes BM rows by BN columns and stages DEPTH terms of the sums at a time, in two LDS buffers by turns. A
// lane keeps TM by TN sums. *Channel distribution*: CG neighbouring lanes share the same sums and take every CG-th
// term each; at the end recursive halving adds them up and leaves each lane a share to write. So few results still
// fill a machine. CG = 1 is the ordinary register tile, for many results. *Parts*: blocks may also share the terms
// among them; their sums are added by a second kernel in a fixed order.
#pragma once

#include "device.h"

namespace mpg {

// Where row or column i lies: (i / period) * leap + (i % period) * step, or, of a plain axis, i * step.
struct Axis {
  int64_t step, leap;
  Divider period;
  int plain;
  DEVICE int64_t offset(int i) const {
    if (plain) return i * step;
    const int turns = period.quotient(i);
    return turns * leap + (i - turns * static_cast<int64_t>(period.divisor)) * step;
  }
};

template <class T>
struct Product {
  const T* a;
  const T* b;
  T* c;
  int m, n, k;
  Axis a_row, a_column, b_row, b_column, c_row, c_column;
  int tiles_n;
  Divider by_tiles, by_tiles_n;
  int terms;  // of k, each part's
  int a_along_k, b_along_k;  // neighbouring threads stage neighbours of k, not of the other axis
  int64_t part_size;
  int accumulate;
};

// Numbers of a tile: TN x TM sums a lane; CG lanes share the terms, PG lanes lie side by side along n, the others of
// the wave along m; ACROSS waves along n, the others of the block along m. The block's tile is the same for all waves.
template <int TN_, int TM_, int CG_, int PG_, int ACROSS_, int DEPTH_>
struct Tile {
  static constexpr int TN = TN_, TM = TM_, CG = CG_, PG = PG_, ACROSS = ACROSS_, DEPTH = DEPTH_;
  static constexpr int OG = WAVE / (CG * PG), DOWN = WAVES / ACROSS;
  static constexpr int BN = ACROSS * PG * TN, BM = DOWN * OG * TM;
  // A row more, so that lanes that read different terms, or write them, meet different banks.
  static constexpr int A_PITCH = BM + 1, B_PITCH = BN + 1;
  static constexpr int BUFFER = DEPTH * (A_PITCH + B_PITCH);
  static_assert(CG * PG * OG == WAVE && ACROSS * DOWN == WAVES, "lanes and waves are used up");
  static_assert(DEPTH % CG == 0 && (TN * TM) % CG == 0, "lanes share terms, and then sums, equally");
};

// One operand's way into LDS: which elements this thread stages, and where they lie.
template <class T, int SIDE, int DEPTH, int PITCH>
struct Stager {
  static constexpr int EACH = ceil_div(SIDE * DEPTH, THREADS);
  int64_t place[EACH];
  T held[EACH];
  bool inside[EACH];

  static DEVICE int side_of(int e, bool along_k) { return along_k ? e / DEPTH : e % SIDE; }
  static DEVICE int term_of(int e, bool along_k) { return along_k ? e % DEPTH : e / SIDE; }

  DEVICE void begin(const Axis& side, int first, int count, bool along_k) {
    UNROLL
    for (int i = 0; i < EACH; ++i) {
      const int e = thread() + i * THREADS, s = first + side_of(e, along_k);
      inside[i] = e < SIDE * DEPTH && s < count;
      place[i] = inside[i] ? side.offset(s) : 0;
    }
  }

  DEVICE void fetch(const T* from, const Axis& depth, int first, int end, bool along_k) {
    UNROLL
    for (int i = 0; i < EACH; ++i) {
      const int k = first + term_of(thread() + i * THREADS, along_k);
      held[i] = inside[i] && k < end ? from[place[i] + depth.offset(k)] : T(0);
    }
  }

  DEVICE void put(T* to, bool along_k) const {
    UNROLL
    for (int i = 0; i < EACH; ++i) {
      const int e = thread() + i * THREADS;
      if (e < SIDE * DEPTH) to[term_of(e, along_k) * PITCH + side_of(e, along_k)] = held[i];
    }
  }
};

// Left alone, nvcc spills the small tiles to make room for three blocks a unit.
template <class T, class Shape>
constexpr bool TWO_BLOCKS = Shape::TM * Shape::TN * sizeof(T) / 4 <= 24;

template <class T, class Shape>
KERNEL_FOR(TWO_BLOCKS<T, Shape> ? 2 : 1) product(const Product<T> p) {
  constexpr int TN = Shape::TN, TM = Shape::TM, CG = Shape::CG, PG = Shape::PG, OG = Shape::OG, DEPTH = Shape::DEPTH;
  T* const buffers = lds<T>();
  const int tiles = static_cast<int>(p.by_tiles.divisor);
  const int part = p.by_tiles.quotient(block()), tile = block() - part * tiles;
  const int tile_m = p.by_tiles_n.quotient(tile), tile_n = tile - tile_m * p.tiles_n;
  const int first_m = tile_m * Shape::BM, first_n = tile_n * Shape::BN;
  const int begin = part * p.terms, end = p.k - begin < p.terms ? p.k : begin + p.terms;

  const int wave = thread() / WAVE, lane = thread() % WAVE;
  const int sub = lane % CG, along = lane / CG % PG, down = lane / (CG * PG);
  const int own_m = wave / Shape::ACROSS * (OG * TM) + down, own_n = wave % Shape::ACROSS * (PG * TN) + along;

  Stager<T, Shape::BM, DEPTH, Shape::A_PITCH> a;
  Stager<T, Shape::BN, DEPTH, Shape::B_PITCH> b;
  a.begin(p.a_row, first_m, p.m, p.a_along_k);
  b.begin(p.b_column, first_n, p.n, p.b_along_k);

  T sums[TM * TN] = {};
  int turn = 0;
  if (begin < end) {
    a.fetch(p.a, p.a_column, begin, end, p.a_along_k);
    b.fetch(p.b, p.b_row, begin, end, p.b_along_k);
    a.put(buffers, p.a_along_k);
    b.put(buffers + DEPTH * Shape::A_PITCH, p.b_along_k);
  }
  sync();
  for (int k = begin; k < end; k += DEPTH, turn ^= 1) {
    const bool more = k + DEPTH < end;
    if (more) {  // on their way while this slab is used
      a.fetch(p.a, p.a_column, k + DEPTH, end, p.a_along_k);
      b.fetch(p.b, p.b_row, k + DEPTH, end, p.b_along_k);
    }
    const T* const slab_a = buffers + turn * Shape::BUFFER + own_m;
    const T* const slab_b = buffers + turn * Shape::BUFFER + DEPTH * Shape::A_PITCH + own_n;
    NO_UNROLL  // or operands of many steps would be in registers at a time
    for (int step = 0; step < DEPTH / CG; ++step) {
      const int term = step * CG + sub;
      T u[TM], v[TN];
      UNROLL
      for (int j = 0; j < TM; ++j) u[j] = slab_a[term * Shape::A_PITCH + j * OG];
      UNROLL
      for (int i = 0; i < TN; ++i) v[i] = slab_b[term * Shape::B_PITCH + i * PG];
      UNROLL
      for (int j = 0; j < TM; ++j) {
        UNROLL
        for (int i = 0; i < TN; ++i) sums[j * TN + i] += u[j] * v[i];
      }
    }
    if (more) {
      T* const next = buffers + (turn ^ 1) * Shape::BUFFER;
      a.put(next, p.a_along_k);
      b.put(next + DEPTH * Shape::A_PITCH, p.b_along_k);
    }
    sync();
  }

  sum_over_lanes<CG, TM * TN>(sums);
  constexpr int KEPT = TM * TN / CG;
  T* const c = p.c + part * p.part_size;
  UNROLL
  for (int i = 0; i < KEPT; ++i) {
    const int index = sub * KEPT + i;
    const int row = first_m + own_m + index / TN * OG, column = first_n + own_n + index % TN * PG;
    if (row < p.m && column < p.n) {
      T* const to = c + p.c_row.offset(row) + p.c_column.offset(column);
      *to = p.accumulate ? *to + sums[i] : sums[i];
    }
  }
}

}  // namespace mpg
