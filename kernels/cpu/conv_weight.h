// The gradient of a convolution's filter.
#pragma once

#include "conv_common.h"

namespace mpk {

// dw[o, (c, tap)] = sum over k = (image, pixel) of dy[o, k] x[k, (c, tap)]: the same offsets, rows and columns swapped.
template <class Micro, class T>
void weight_grad_part(const ConvShape& s, const T* x, const T* dy, T* dw, bool accumulate, Range groups, Range rows) {
  // The margin before the image is exactly the padding, so padded row 0 is the first that output row 0 meets.
  const Margin my = margin(forward_phases(s.y), s.y.size), mx = margin(forward_phases(s.x), s.x.size);
  const Index in_channels = groups.size() * s.group_in, pixels = s.out_plane();
  const Index padded_plane = product(s.y.size + my.low + my.high, s.x.size + mx.low + mx.high);
  const Index padded_image_bytes = product(in_channels, padded_plane, static_cast<Index>(sizeof(T)));
  // All groups are padded at once only if they are all this thread's: else images do not follow each other.
  const bool all_groups = groups.size() == s.groups;
  const Index chunk = all_groups ? images_per_chunk(s.batch, padded_image_bytes, pixels) : 1;
  const Index columns = product(s.group_in, s.taps()), filter_group = s.group_out * columns;

  // dw may also be computed turned, its rows being (c, tap): the rows are copied as they lie, only columns turned.
  const auto lanes = [](Index m, Index n) { return double(m) * double(round_up(n, Micro::kNR)); };
  const bool turned = lanes(columns, rows.size()) <= 1.15 * lanes(rows.size(), columns);
  ConvTables& t = conv_tables();
  const Index* taps_of_w = ramp(turned ? t.rows_of_c : t.columns_of_c, columns, 1);
  const Index* outs_of_w = ramp(turned ? t.columns_of_c : t.rows_of_c, rows.size(), columns);
  const Index* outs_of_dy = ramp(turned ? t.columns_of_b : t.rows_of_a, rows.size(), pixels);

  for (Index n0 = 0; n0 < s.batch; n0 += chunk) {
    const Index count = std::min(chunk, s.batch - n0);
    const T* source = x + (n0 * s.in_channels + groups.begin * s.group_in) * s.in_plane();
    const Padded<T> padded =
        pad_planes(source, count, in_channels, s.y.size, s.x.size, my, mx, t.padded);

    Index* taps_of_x = (turned ? t.rows_of_a : t.columns_of_b).get<Index>(columns);
    Index j = 0;
    for (Index c = 0; c < s.group_in; ++c)
      for (Index ky = 0; ky < s.y.kernel; ++ky)
        for (Index kx = 0; kx < s.x.kernel; ++kx)
          taps_of_x[j++] = c * padded.plane + ky * s.y.dilation * padded.width + kx * s.x.dilation;

    const Index depth = count * pixels;
    Index* k_of_dy = open_k_table(t.k_of_a, depth);
    Index* k_of_x = open_k_table(t.k_of_b, depth);
    Index k = 0;
    for (Index n = 0; n < count; ++n)
      for (Index oy = 0; oy < s.y.out; ++oy)
        for (Index ox = 0; ox < s.x.out; ++ox, ++k) {
          k_of_x[k] = n * padded.image + oy * s.y.stride * padded.width + ox * s.x.stride;
          k_of_dy[k] = n * s.out_channels * pixels + oy * s.x.out + ox;
        }
    close_k_table(k_of_x, depth);
    close_k_table(k_of_dy, depth);

    for (Index g = groups.begin; g < groups.end; ++g) {
      const T* from_dy = dy + (n0 * s.out_channels + g * s.group_out + rows.begin) * pixels;
      const T* from_x = padded.base + (g - groups.begin) * s.group_in * padded.plane;
      T* to = dw + g * filter_group + rows.begin * columns;
      const bool add = accumulate || n0 > 0;
      if (turned)
        gemm<Micro>(columns, rows.size(), depth, {from_x, taps_of_x, k_of_x}, {from_dy, k_of_dy, outs_of_dy, false},
                    {to, taps_of_w, outs_of_w, add});
      else
        gemm<Micro>(rows.size(), columns, depth, {from_dy, outs_of_dy, k_of_dy}, {from_x, k_of_x, taps_of_x, true},
                    {to, outs_of_w, taps_of_w, add});
    }
  }
}

template <class T>
void conv2d_weight_grad(const ConvShape& s, const T* x, const T* dy, T* dw, bool accumulate, int threads) {
  require(threads >= 1);
  if (s.batch == 0) {
    if (!accumulate) std::fill_n(dw, s.out_channels * s.group_in * s.taps(), T(0));
    return;
  }
  threads = worthwhile_threads(threads, s.macs());
  const int group_parts = static_cast<int>(std::min<Index>(threads, s.groups)), row_parts = threads / group_parts;
  with_micro<T>([&](auto micro) {
    in_parallel(group_parts * row_parts, [&](int part) {
      weight_grad_part<decltype(micro)>(s, x, dy, dw, accumulate, part_of(s.groups, part / row_parts, group_parts),
                                        part_of(s.group_out, part % row_parts, row_parts));
    });
  });
}

}  // namespace mpk
