// Shapes of a convolution and of its gradients, reduced to taps on padded planes.
#pragma once

#include <algorithm>
#include <vector>

#include "common.h"

namespace mpk {

struct Tap {
  Index kernel;  // index into the filter, along one axis
  Index shift;   // output position q reads source position q * source_step + shift
};

// Along one axis, the outputs start, start + step, ... (`count` of them), which all use the same taps.
struct Phase {
  Index start, step, count, source_step;
  std::vector<Tap> taps;
};

// Zeros that must surround the source along one axis, so that no tap falls outside.
struct Margin {
  Index low = 0, high = 0;
};

struct Axis {
  Index size, kernel, stride, pad, dilation, out;
};

inline Axis make_axis(Index size, Index kernel, Index stride, Index pad, Index dilation) {
  require(size >= 0 && kernel >= 1 && stride >= 1 && pad >= 0 && dilation >= 1);
  constexpr Index kMost = Index(1) << 40;  // keeps every sum below inside 64 bits
  require(size < kMost && pad < kMost && stride < kMost && product(kernel, dilation) < kMost, MPK_TOO_LARGE);
  const Index room = size + 2 * pad - dilation * (kernel - 1) - 1;
  require(room >= 0);
  return {size, kernel, stride, pad, dilation, room / stride + 1};
}

// The convolution itself: one phase.
inline std::vector<Phase> forward_phases(const Axis& axis) {
  Phase phase{0, 1, axis.out, axis.stride, {}};
  for (Index k = 0; k < axis.kernel; ++k) phase.taps.push_back({k, k * axis.dilation - axis.pad});
  return {phase};
}

// The gradient of the input at i sums over k the dy at (i + pad - k dilation) / stride where that is whole. All i with
// the same remainder modulo the stride use the same k: a phase each, a convolution with stride 1.
inline std::vector<Phase> input_grad_phases(const Axis& axis) {
  std::vector<Phase> phases;
  for (Index r = 0; r < std::min(axis.stride, axis.size); ++r) {
    Phase phase{r, axis.stride, ceil_div(axis.size - r, axis.stride), 1, {}};
    for (Index k = axis.kernel - 1; k >= 0; --k) {
      const Index position = r + axis.pad - k * axis.dilation;
      if (position % axis.stride == 0) phase.taps.push_back({k, position / axis.stride});
    }
    phases.push_back(phase);
  }
  return phases;
}

inline Margin margin(const std::vector<Phase>& phases, Index source_size) {
  Margin m;
  for (const Phase& phase : phases)
    for (const Tap& tap : phase.taps) {
      m.low = std::max(m.low, -tap.shift);
      m.high = std::max(m.high, (phase.count - 1) * phase.source_step + tap.shift - (source_size - 1));
    }
  return m;
}

struct ConvShape {
  Index batch, in_channels, out_channels, groups;
  Index group_in, group_out;  // channels of one group
  bool as_products;
  Axis y, x;

  explicit ConvShape(const mpk_conv& c)
      : batch(c.batch), in_channels(c.in_channels), out_channels(c.out_channels), groups(c.groups),
        group_in(0), group_out(0), as_products(c.algorithm == MPK_AS_PRODUCTS),
        y(make_axis(c.height, c.kernel_h, c.stride_h, c.pad_h, c.dilation_h)),
        x(make_axis(c.width, c.kernel_w, c.stride_w, c.pad_w, c.dilation_w)) {
    require(batch >= 0 && in_channels >= 0 && out_channels >= 0 && groups >= 1);
    require(c.algorithm == MPK_BEST || c.algorithm == MPK_AS_PRODUCTS);
    require(in_channels % groups == 0 && out_channels % groups == 0);
    group_in = in_channels / groups;
    group_out = out_channels / groups;
    product(batch, in_channels, y.size, x.size);
    product(batch, out_channels, y.out, x.out);
    product(out_channels, group_in, y.kernel, x.kernel);
  }

  Index in_plane() const { return y.size * x.size; }
  Index out_plane() const { return y.out * x.out; }
  Index taps() const { return y.kernel * x.kernel; }
  double macs() const {
    return double(batch) * double(out_plane()) * double(out_channels) * double(group_in) * double(taps());
  }
};

// Planes (images, channels, height, width) with zeros around, in scratch memory; the source itself where none are needed.
template <class T>
struct Padded {
  const T* base;
  Index height, width, plane, image;  // sizes with margins; elements of a plane and of an image
};

template <class T>
Padded<T> pad_planes(const T* source, Index images, Index channels, Index height, Index width, Margin y, Margin x,
                     Scratch& scratch) {
  const Index padded_height = y.low + height + y.high, padded_width = x.low + width + x.high;
  const Index plane = product(padded_height, padded_width);
  Padded<T> padded{source, padded_height, padded_width, plane, product(channels, plane)};
  if (padded_height == height && padded_width == width) return padded;
  T* to = scratch.get<T>(product(images, channels, plane));
  padded.base = to;
  for (Index p = 0; p < images * channels; ++p) {
    to = std::fill_n(to, y.low * padded_width, T(0));
    for (Index row = 0; row < height; ++row, source += width) {
      to = std::fill_n(to, x.low, T(0));
      to = std::copy_n(source, width, to);
      to = std::fill_n(to, x.high, T(0));
    }
    to = std::fill_n(to, y.high * padded_width, T(0));
  }
  return padded;
}

}  // namespace mpk
