// The innermost loops of a depthwise convolution in plain C++: a row or two of outputs of one channel at a time.
#pragma once

#include "common.h"

namespace mpk {

// out[r out_pitch + j] (+)= sum over taps t of weight t times source[offset[t] + r source_pitch + j], for j < width and
// a few rows r. Whole vectors are read: the source must go on for 16 elements past the last.
template <class T>
struct Correlation {
  Index width, taps;
  const Index* offset;
  const T* weights;  // as prepared by `Strips::prepare`
  const T* source;
  Index source_pitch;
  T* out;
  Index out_pitch;
  bool accumulate;
};

// sums[t] += sum over rows r and j < width of dy[r dy_pitch + j] times source[offset[t] + r source_pitch + j], for
// R <= kMostTaps taps.
template <class T>
struct Projection {
  Index rows, width, dy_pitch, source_pitch;
  const Index* offset;
  const T* dy;
  const T* source;
  T* sums;
};

template <class Element>
struct StripsPortable {
  using T = Element;
  static constexpr Index kLanes = 8;
  static constexpr Index kPrepared = 1;  // elements of a prepared weight
  static constexpr int kMostTaps = 1, kMostRows = 1;

  static void prepare(T weight, T* prepared) { *prepared = weight; }

  static void correlate(int, const Correlation<T>& c) {
    for (Index j0 = 0; j0 < c.width; j0 += kLanes) {
      T sum[kLanes] = {};
      for (Index t = 0; t < c.taps; ++t) {
        const T* from = c.source + c.offset[t] + j0;
        for (Index j = 0; j < kLanes; ++j) sum[j] += c.weights[t] * from[j];
      }
      const Index here = c.width - j0 < kLanes ? c.width - j0 : kLanes;
      for (Index j = 0; j < here; ++j) c.out[j0 + j] = sum[j] + (c.accumulate ? c.out[j0 + j] : T(0));
    }
  }

  static void project(int, const Projection<T>& p) {
    T sum[kLanes] = {};
    for (Index r = 0; r < p.rows; ++r) {
      const T* dy = p.dy + r * p.dy_pitch;
      const T* from = p.source + p.offset[0] + r * p.source_pitch;
      Index j = 0;
      for (; j + kLanes <= p.width; j += kLanes)
        for (Index i = 0; i < kLanes; ++i) sum[i] += dy[j + i] * from[j + i];
      for (; j < p.width; ++j) sum[0] += dy[j] * from[j];
    }
    for (Index j = 0; j < kLanes; ++j) p.sums[0] += sum[j];
  }

  static void unzip(const T* from, Index pairs, T* even, T* odd) {
    for (Index i = 0; i < pairs; ++i) even[i] = from[2 * i], odd[i] = from[2 * i + 1];
  }
  static void zip(const T* even, const T* odd, Index pairs, T* to) {
    for (Index i = 0; i < pairs; ++i) to[2 * i] = even[i], to[2 * i + 1] = odd[i];
  }
};

}  // namespace mpk
