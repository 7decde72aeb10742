// Weight gradient of a depthwise convolution: the same walk, with one sum a tap.
//
// A block has one filter and a share of the images. A thread owns one column of dy: it keeps the NEAR rows of it that
// are alive and reads every row of x once. At the end the sums of all threads become one: over the wave by shuffles,
// over the waves through LDS, over the blocks of a filter in a second kernel, in a fixed order. So float32 is the same
// every time.
#pragma once

#include "patch.h"

namespace mpg {

template <class T>
struct DepthwiseWeight {
  const T* x;
  const T* dy;
  T* out;  // (parts, filters, K, K)
  int batch, filters, channels;
  int out_height, out_width;
  int pad_h, pad_w;
  int tile_rows, tile_columns, row_tiles, column_tiles;
  int group;  // images a block looks at together
  int parts;
  Divider by_filters, by_multiplier, by_tile_columns;
  Patch patch;
  int accumulate;  // only where there is one part
};

// Left alone (0), nvcc spills for sm_80 to make room for five blocks a unit.
template <class T, int K, int S>
KERNEL_FOR(K == 3 && S == 2 && sizeof(T) == 8 ? 3 : 0) depthwise_weight(const DepthwiseWeight<T> p) {
  constexpr int NEAR = ceil_div(K, S);
  T* const patch = lds<T>();
  const int part = p.by_filters.quotient(block()), filter = block() - part * p.filters;
  const int channel = p.by_multiplier.quotient(filter);
  const int g = p.by_tile_columns.quotient(thread()), x = thread() - g * p.tile_columns;

  T sums[K * K] = {};
  for (int first = part * p.group; first < p.batch; first += p.parts * p.group) {
    for (int row_tile = 0; row_tile < p.row_tiles; ++row_tile) {
      for (int column_tile = 0; column_tile < p.column_tiles; ++column_tile) {
        const int row = row_tile * p.tile_rows, column = column_tile * p.tile_columns;
        sync();  // everybody is done with the patch before
        stage<S>(p.patch, p.x, row * S - p.pad_h, column * S - p.pad_w, patch, p.group, [&](int image) {
          return first + image < p.batch ? (first + image) * p.channels + channel : -1;
        });
        sync();
        const int image = first + g;
        if (g >= p.group || image >= p.batch || column + x >= p.out_width) continue;
        const int steps = p.out_height - row < p.tile_rows ? p.out_height - row : p.tile_rows;
        const T* from = patch + g * p.patch.plane_size + x;
        const T* dy = p.dy + (static_cast<int64_t>(image) * p.filters + filter) * p.out_height * p.out_width +
                      static_cast<int64_t>(row) * p.out_width + column + x;
        T near[NEAR] = {};
        for (int base = 0; base < steps + NEAR - 1; base += NEAR) {
          UNROLL
          for (int turn = 0; turn < NEAR; ++turn) {
            const int r = base + turn;
            if (r < steps + NEAR - 1) {
              near[turn] = r < steps ? dy[static_cast<int64_t>(r) * p.out_width] : T(0);
              UNROLL
              for (int s = 0; s < S; ++s) {
                T v[K];
                UNROLL
                for (int i = 0; i < K; ++i) v[i] = from[(i % S) * p.patch.phase + i / S];
                from += p.patch.pitch;
                UNROLL
                for (int j = 0; j < NEAR; ++j) {
                  const int ky = s + j * S;
                  UNROLL
                  for (int kx = 0; kx < K; ++kx) {
                    if (ky < K) sums[ky < K ? ky * K + kx : 0] += v[kx] * near[(turn - j + NEAR) % NEAR];
                  }
                }
              }
            }
          }
        }
      }
    }
  }

  sync();
  const int wave = thread() / WAVE;
  UNROLL
  for (int i = 0; i < K * K; ++i) {
    const T sum = wave_sum(sums[i]);
    if (thread() % WAVE == 0) patch[wave * K * K + i] = sum;
  }
  sync();
  if (thread() < K * K) {
    T sum = T(0);
    for (int w = 0; w < WAVES; ++w) sum += patch[w * K * K + thread()];
    T* to = p.out + (static_cast<int64_t>(part) * p.filters + filter) * (K * K) + thread();
    *to = p.accumulate ? *to + sum : sum;
  }
}

}  // namespace mpg
