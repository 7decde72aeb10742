// Convolutions in which every channel is on its own (groups = channels): one filter on one plane, row by row.
//
// A plane is copied into scratch memory with its margins, and with a stride its columns are sorted by their remainder,
//
//     stride 2:   a b c d e f   ->   a c e | b d f
//
// so that the inputs of neighbouring outputs are neighbours for every tap.
#pragma once

#include <algorithm>
#include <vector>

#include "conv_common.h"

namespace mpk {

inline bool is_depthwise(const ConvShape& s) { return s.group_in == 1 && s.group_out == 1 && !s.as_products; }

template <class T>
class SortedPlane {
 public:
  SortedPlane(Index height, Index width, Margin y, Margin x, Index stride, Scratch& scratch)
      : height_(height), width_(width), y_(y), x_(x), stride_(stride) {
    segment_ = ceil_div(x.low + width + x.high, stride);
    pitch_ = product(segment_, stride);
    constexpr Index kOverread = 16;  // vectors may be read past the end, and their results dropped
    size_ = product(y.low + height + y.high, pitch_) + kOverread;
    base_ = scratch.get<T>(size_);
    std::fill_n(base_, size_, T(0));  // margins stay 0 from here on
  }

  template <class Strips>
  void take(const T* from) {
    T* row = base_ + y_.low * pitch_;
    for (Index y = 0; y < height_; ++y, row += pitch_, from += width_) {
      if (stride_ == 1) {
        std::copy_n(from, width_, row + x_.low);
        continue;
      }
      if (stride_ == 2) {
        T* even = row + x_.low % 2 * segment_ + x_.low / 2;  // where the columns 0, 2, ... go
        T* odd = row + (x_.low + 1) % 2 * segment_ + (x_.low + 1) / 2;
        Strips::unzip(from, width_ / 2, even, odd);
        if (width_ % 2) even[width_ / 2] = from[width_ - 1];
        continue;
      }
      for (Index r = 0; r < stride_; ++r) {
        const Index first = (r - x_.low % stride_ + stride_) % stride_;  // first source column of this remainder
        T* to = row + r * segment_ + (x_.low + first) / stride_;
        for (Index x = first; x < width_; x += stride_) *to++ = from[x];
      }
    }
  }

  // Where the tap that lies (y, x) source positions from an output's own finds its input for output (0, 0).
  Index offset(Index y, Index x) const {
    const Index column = x + x_.low;
    return (y + y_.low) * pitch_ + column % stride_ * segment_ + column / stride_;
  }

  const T* base() const { return base_; }
  Index pitch() const { return pitch_; }

 private:
  Index height_, width_;
  Margin y_, x_;
  Index stride_, segment_, pitch_, size_;
  T* base_;
};

// One result plane for each source plane: forward, or the gradient of the input.
template <class T>
struct PlaneConvolution {
  const T* source;
  const T* filter;
  T* result;
  Index batch, channels, source_height, source_width, result_height, result_width, kernel_width, taps;
  std::vector<Phase> y, x;
  bool accumulate;
};

// to[count j + i] (+)= line i [j], of `count` lines that are `pitch` apart.
template <class Strips, class T>
void merge(const T* lines, Index count, Index pitch, Index width, T* to, bool accumulate) {
  if (count == 2 && !accumulate) {
    Strips::zip(lines, lines + pitch, width / 2, to);
    if (width % 2) to[width - 1] = lines[width / 2];
    return;
  }
  for (Index i = 0; i < count; ++i)
    for (Index j = i; j < width; j += count) to[j] = lines[i * pitch + j / count] + (accumulate ? to[j] : T(0));
}

template <class Strips, class T>
void run_planes(const PlaneConvolution<T>& op, Range channels) {
  ConvTables& t = conv_tables();
  const Index stride = op.x.empty() ? 1 : op.x.front().source_step;
  SortedPlane<T> plane(op.source_height, op.source_width, margin(op.y, op.source_height),
                       margin(op.x, op.source_width), stride, t.padded);
  T* weights = t.rows_of_a.get<T>(op.taps * Strips::kPrepared);
  Index* offset = t.k_of_b.get<Index>(op.taps);
  // The rows of several phases side by side (the input gradient of a strided convolution) are merged afterwards.
  const Index side_by_side = static_cast<Index>(op.x.size()), line = op.result_width;
  T* lines = t.rows_of_c.get<T>(product(side_by_side, Index(Strips::kMostRows), line));
  const Index source_plane = op.source_height * op.source_width, result_plane = op.result_height * op.result_width;
  for (Index c = channels.begin; c < channels.end; ++c)
    for (Index n = 0; n < op.batch; ++n) {
      plane.template take<Strips>(op.source + (n * op.channels + c) * source_plane);
      T* to = op.result + (n * op.channels + c) * result_plane;
      for (const Phase& y : op.y) {
        Index prepared = 0;  // taps of all sides, one after the other
        for (const Phase& x : op.x)
          for (const Tap& ty : y.taps)
            for (const Tap& tx : x.taps) {
              offset[prepared] = plane.offset(ty.shift, tx.shift);
              Strips::prepare(op.filter[c * op.taps + ty.kernel * op.kernel_width + tx.kernel],
                              weights + Strips::kPrepared * prepared++);
            }
        for (Index q = 0; q < y.count; q += Strips::kMostRows) {
          const Index rows = std::min<Index>(Strips::kMostRows, y.count - q);
          T* out = to + (y.start + y.step * q) * op.result_width;
          Index side = 0, first = 0;
          for (const Phase& x : op.x) {
            const Index taps = static_cast<Index>(y.taps.size() * x.taps.size());
            Correlation<T> strip{x.count, taps, offset + first, weights + Strips::kPrepared * first,
                                 plane.base() + q * y.source_step * plane.pitch(), y.source_step * plane.pitch(),
                                 out, y.step * op.result_width, op.accumulate};
            if (side_by_side > 1)
              strip.out = lines + side * Strips::kMostRows * line, strip.out_pitch = line, strip.accumulate = false;
            Strips::correlate(static_cast<int>(rows), strip);
            ++side, first += taps;
          }
          if (side_by_side > 1)
            for (Index r = 0; r < rows; ++r)
              merge<Strips>(lines + r * line, side_by_side, Strips::kMostRows * line, op.result_width,
                            out + r * y.step * op.result_width, op.accumulate);
        }
      }
    }
}

template <class Strips, class T>
void project_planes(const ConvShape& s, const T* x, const T* dy, T* dw, bool accumulate, Range channels) {
  ConvTables& t = conv_tables();
  const std::vector<Phase> y_phases = forward_phases(s.y), x_phases = forward_phases(s.x);
  SortedPlane<T> plane(s.y.size, s.x.size, margin(y_phases, s.y.size), margin(x_phases, s.x.size), s.x.stride,
                       t.padded);
  const Index taps = s.taps();
  Index* offset = t.k_of_b.get<Index>(taps);
  Index count = 0;
  for (const Tap& ty : y_phases[0].taps)
    for (const Tap& tx : x_phases[0].taps) offset[count++] = plane.offset(ty.shift, tx.shift);
  T* sums = t.rows_of_a.get<T>(taps);

  for (Index c = channels.begin; c < channels.end; ++c) {
    std::fill_n(sums, taps, T(0));
    for (Index n = 0; n < s.batch; ++n) {
      plane.template take<Strips>(x + (n * s.groups + c) * s.in_plane());
      const T* from = dy + (n * s.groups + c) * s.out_plane();
      for (Index first = 0; first < taps; first += Strips::kMostTaps)
        Strips::project(static_cast<int>(std::min<Index>(Strips::kMostTaps, taps - first)),
                        Projection<T>{s.y.out, s.x.out, s.x.out, s.y.stride * plane.pitch(), offset + first, from,
                                      plane.base(), sums + first});
    }
    for (Index k = 0; k < taps; ++k) dw[c * taps + k] = sums[k] + (accumulate ? dw[c * taps + k] : T(0));
  }
}

// Runs body(strips, channels) on parts that work on different channels.
template <class T, class Body>
void over_channels(const ConvShape& s, int threads, Body&& body) {
  require(threads >= 1);
  const int parts = static_cast<int>(std::min<Index>(worthwhile_threads(threads, s.macs()), s.groups));
  with_micro<T>([&](auto micro) {
    in_parallel(parts, [&](int part) { body(typename decltype(micro)::Strips{}, part_of(s.groups, part, parts)); });
  });
}

template <class T>
void depthwise(const ConvShape& s, const T* x, const T* w, T* out, bool accumulate, int threads) {
  const PlaneConvolution<T> op{x,          w,       out,     s.batch,    s.groups, s.y.size,
                               s.x.size,   s.y.out, s.x.out, s.x.kernel, s.taps(), forward_phases(s.y),
                               forward_phases(s.x), accumulate};
  over_channels<T>(s, threads, [&](auto strips, Range channels) { run_planes<decltype(strips)>(op, channels); });
}

template <class T>
void depthwise_input_grad(const ConvShape& s, const T* dy, const T* w, T* dx, bool accumulate, int threads) {
  const PlaneConvolution<T> op{dy,        w,        dx,       s.batch,    s.groups, s.y.out,
                               s.x.out,   s.y.size, s.x.size, s.x.kernel, s.taps(), input_grad_phases(s.y),
                               input_grad_phases(s.x), accumulate};
  over_channels<T>(s, threads, [&](auto strips, Range channels) { run_planes<decltype(strips)>(op, channels); });
}

template <class T>
void depthwise_weight_grad(const ConvShape& s, const T* x, const T* dy, T* dw, bool accumulate, int threads) {
  over_channels<T>(s, threads, [&](auto strips, Range channels) {
    project_planes<decltype(strips)>(s, x, dy, dw, accumulate, channels);
  });
}

}  // namespace mpk
