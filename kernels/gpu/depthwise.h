// Depthwise convolution and its input gradient, by sliding sums.
//
// A thread owns one column of one plane of the result and walks down the rows. What it reads, padded, lies in LDS for
// several planes. Every row is read once and meets every filter row that it can: the sums of the NEAR results that are
// not complete yet live in registers. They are renamed by unrolling, not moved.
//
//     rows read    r        r+1      r+2            K = 3, stride 1: NEAR = 3
//     result q     f[0]     f[1]     f[2] done
//     result q+1            f[0]     f[1] ...
//     result q+2                     f[0] ...
//
// The input gradient with stride S walks down the rows of dy the same way, with S * S results a step: of the filter's
// taps, each result meets those of its own phase, so every tap is used once.
#pragma once

#include "patch.h"

namespace mpg {

// A convolution as a kernel sees it. `in` is what is read (x, or dy for the input gradient), `out` what is written.
template <class T>
struct Depthwise {
  const T* in;
  const T* filter;  // (filters, K, K)
  T* out;
  int planes;        // of the result: batch times channels
  int out_channels;  // of the result, a plane's filter being that of its channel, or of `multiplier` channels
  int in_channels, multiplier, pick;
  int out_height, out_width;
  int pad_h, pad_w;
  int first_row, first_column;  // of the steps: 0, or for a gradient the first that reaches into the result
  int rows, columns;            // of steps, over all tiles
  int tile_rows, tile_columns;  // a block's
  int group;                    // planes a block
  Divider by_channels, by_multiplier, by_row_tiles, by_column_tiles, by_tile_columns;
  Patch patch;
  int accumulate;
};

// Which plane to read and which filter to use for a plane of the result.
struct Source {
  int plane, filter;
};

template <bool GRADIENT, class T>
DEVICE Source source_of(const Depthwise<T>& p, int plane) {
  const int n = p.by_channels.quotient(plane), channel = plane - n * p.out_channels;
  if (GRADIENT) {
    const int filter = channel * p.multiplier + p.pick;
    return {n * p.in_channels + filter, filter};
  }
  return {n * p.in_channels + p.by_multiplier.quotient(channel), channel};
}

// Taps stay in registers as long as they leave room for two blocks a unit; else every use reads them from LDS, where
// all threads of a plane read the same word.
template <class T, int K>
BOTH bool taps_in_registers() {
  return K * K * sizeof(T) / 4 <= 50;
}

// Copies the taps of the group's filters behind the patch.
template <int K, bool GRADIENT, class T>
DEVICE void stage_taps(const Depthwise<T>& p, int first_plane, T* taps) {
  for (int e = thread(); e < p.group * K * K; e += THREADS) {
    const int g = e / (K * K);
    if (first_plane + g < p.planes) {
      const Source source = source_of<GRADIENT>(p, first_plane + g);
      taps[e] = p.filter[static_cast<int64_t>(source.filter) * (K * K) + e - g * (K * K)];
    }
  }
}

template <class T, int K, int S, bool GRADIENT>
KERNEL depthwise(const Depthwise<T> p) {
  constexpr int NEAR = ceil_div(K, S);
  constexpr bool REGISTERS = taps_in_registers<T, K>();
  // A step reads STEP rows of the patch, and completes SIDE by SIDE results.
  constexpr int STEP = GRADIENT ? 1 : S, SIDE = GRADIENT ? S : 1;
  constexpr int WIDTH = GRADIENT ? NEAR : K;  // of a row, what one thread reads
  T* const patch = lds<T>();

  const int column_tile_row = p.by_column_tiles.quotient(block());
  const int column_tile = block() - column_tile_row * static_cast<int>(p.by_column_tiles.divisor);
  const int plane_group = p.by_row_tiles.quotient(column_tile_row);
  const int row_tile = column_tile_row - plane_group * static_cast<int>(p.by_row_tiles.divisor);
  const int first_plane = plane_group * p.group;
  const int row = p.first_row + row_tile * p.tile_rows, column = p.first_column + column_tile * p.tile_columns;

  const int top = GRADIENT ? row - (NEAR - 1) : row * S - p.pad_h;
  const int left = GRADIENT ? column - (NEAR - 1) : column * S - p.pad_w;
  stage<STEP>(p.patch, p.in, top, left, patch, p.group, [&](int g) {
    return first_plane + g < p.planes ? source_of<GRADIENT>(p, first_plane + g).plane : -1;
  });
  T* const staged_taps = patch + p.group * p.patch.plane_size;
  if (!REGISTERS) stage_taps<K, GRADIENT>(p, first_plane, staged_taps);
  sync();

  const int g = p.by_tile_columns.quotient(thread()), x = thread() - g * p.tile_columns;
  const int plane = first_plane + g;
  if (g >= p.group || plane >= p.planes || column + x >= p.first_column + p.columns) return;
  T taps[REGISTERS ? K * K : 1];
  if (REGISTERS) {
    const T* filter = p.filter + static_cast<int64_t>(source_of<GRADIENT>(p, plane).filter) * (K * K);
    UNROLL
    for (int i = 0; i < K * K; ++i) taps[i] = filter[i];
  }
  const int own_taps = g * (K * K);
  const auto tap = [&](int i) { return REGISTERS ? taps[REGISTERS ? i : 0] : staged_taps[own_taps + i]; };
  const T* from = patch + g * p.patch.plane_size + x;
  T* const out = p.out + static_cast<int64_t>(plane) * p.out_height * p.out_width;
  const int steps = (p.rows - row_tile * p.tile_rows < p.tile_rows ? p.rows - row_tile * p.tile_rows : p.tile_rows);

  T sums[NEAR][SIDE * SIDE] = {};
  for (int base = 0; base < steps + NEAR - 1; base += NEAR) {
    UNROLL
    for (int turn = 0; turn < NEAR; ++turn) {
      const int r = base + turn;
      if (r < steps + NEAR - 1) {
        UNROLL
        for (int s = 0; s < STEP; ++s) {
          T v[WIDTH];
          UNROLL
          for (int i = 0; i < WIDTH; ++i) v[i] = from[(i % STEP) * p.patch.phase + i / STEP];
          from += p.patch.pitch;
          UNROLL
          for (int j = 0; j < NEAR; ++j) {  // result r - j
            const int slot = (turn - j + NEAR) % NEAR;
            if (GRADIENT) {
              UNROLL
              for (int phase = 0; phase < S * S; ++phase) {
                const int ky = phase / S + S * (NEAR - 1 - j);
                UNROLL
                for (int i = 0; i < NEAR; ++i) {
                  const int kx = phase % S + S * (NEAR - 1 - i);
                  if (ky < K && kx < K) {
                    sums[slot][phase] += v[i] * tap(ky * K + kx);
                  }
                }
              }
            } else {
              const int ky = s + j * S;
              UNROLL
              for (int kx = 0; kx < K; ++kx) {
                if (ky < K) {
                  sums[slot][0] += v[kx] * tap(ky * K + kx);
                }
              }
            }
          }
        }
        const int q = r - (NEAR - 1), slot = (turn + 1) % NEAR;
        UNROLL
        for (int phase = 0; phase < SIDE * SIDE; ++phase) {
          const int y = GRADIENT ? (row + q) * S + phase / SIDE - p.pad_h : row + q;
          const int z = GRADIENT ? (column + x) * S + phase % SIDE - p.pad_w : column + x;
          if (q >= 0 && y >= 0 && y < p.out_height && z >= 0 && z < p.out_width) {
            T* to = out + static_cast<int64_t>(y) * p.out_width + z;
            *to = p.accumulate ? *to + sums[slot][phase] : sums[slot][phase];
          }
          sums[slot][phase] = T(0);
        }
      }
    }
  }
}

}  // namespace mpg
