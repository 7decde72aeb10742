// Gradient of a convolution's input by scattering: each dy is spread over the input pixels that its taps meet,
//
//     dx[c, oy s + ky d - p, ox s + kx d - p] += sum over o of w[o, c, ky, kx] dy[o, oy, ox].
//
// One product with a row for each (kx, ky, c) whose results are added where they belong. Unlike gathering it multiplies
// nothing by margins, which without padding are a large part, and has many rows even for a single channel.
#pragma once

#include "conv_common.h"

namespace mpk {

// dx (images, channels, height, width) with room around it for all that taps can reach; dx itself where that fits.
struct Spread {
  Index height, width;
  bool direct;
};

inline Spread spread_of(const ConvShape& s) {
  const auto reach = [](const Axis& a) { return (a.out - 1) * a.stride + (a.kernel - 1) * a.dilation + 1; };
  const Index height = std::max(reach(s.y), s.y.pad + s.y.size), width = std::max(reach(s.x), s.x.pad + s.x.size);
  return {height, width, height == s.y.size && width == s.x.size && s.y.pad == 0 && s.x.pad == 0};
}

template <class Micro, class T>
void scatter_part(const ConvShape& s, const T* dy, const T* w, T* dx, bool accumulate, Range images, Range rows) {
  const Spread spread = spread_of(s);
  const Index plane = product(spread.height, spread.width);
  // Beside dx, a thread that owns only some channels of each group keeps room for those only.
  const Index kept = spread.direct ? s.group_in : rows.size(), image = product(s.groups, kept, plane);
  const Index chunk = images_per_chunk(images.size(), product(image, static_cast<Index>(sizeof(T))), s.in_plane());
  const Index taps = s.taps(), m = product(taps, rows.size()), first = spread.direct ? rows.begin : 0;
  ConvTables& t = conv_tables();

  Index* rows_of_w = t.rows_of_a.get<Index>(m);
  Index* rows_of_dx = t.rows_of_c.get<Index>(m);
  Index i = 0;
  // Neighbouring rows share kx: those of one tile then do not touch the same vectors of dx.
  for (Index kx = 0; kx < s.x.kernel; ++kx)
    for (Index ky = 0; ky < s.y.kernel; ++ky)
      for (Index c = 0; c < rows.size(); ++c, ++i) {
        rows_of_w[i] = (rows.begin + c) * taps + ky * s.x.kernel + kx;
        rows_of_dx[i] = (first + c) * plane + ky * s.y.dilation * spread.width + kx * s.x.dilation;
      }
  const Index* k_of_w = ramp(t.k_of_a, s.group_out, s.group_in * taps);
  const Index* k_of_dy = ramp(t.k_of_b, s.group_out, s.out_plane());

  for (Index n0 = images.begin; n0 < images.end; n0 += chunk) {
    const Index count = std::min(chunk, images.end - n0), columns = product(count, s.out_plane());
    Index* columns_of_dy = t.columns_of_b.get<Index>(columns);
    Index* columns_of_dx = t.columns_of_c.get<Index>(columns);
    Index j = 0;
    for (Index n = 0; n < count; ++n)
      for (Index oy = 0; oy < s.y.out; ++oy)
        for (Index ox = 0; ox < s.x.out; ++ox, ++j) {
          columns_of_dy[j] = n * s.out_channels * s.out_plane() + oy * s.x.out + ox;
          columns_of_dx[j] = n * image + oy * s.y.stride * spread.width + ox * s.x.stride;
        }

    T* to = dx + n0 * s.in_channels * s.in_plane();
    T* sums = spread.direct ? to : t.padded.get<T>(product(count, image));
    if (!spread.direct) {
      std::fill_n(sums, count * image, T(0));
    } else if (!accumulate) {
      for (Index p = 0; p < count * s.groups; ++p)
        std::fill_n(to + (p * s.group_in + rows.begin) * plane, rows.size() * plane, T(0));
    }
    for (Index g = 0; g < s.groups; ++g)
      gemm<Micro>(m, columns, s.group_out, {w + g * s.group_out * s.group_in * taps, rows_of_w, k_of_w},
                  {dy + (n0 * s.out_channels + g * s.group_out) * s.out_plane(), k_of_dy, columns_of_dy, false},
                  {sums + g * kept * plane, rows_of_dx, columns_of_dx, true});
    if (spread.direct) continue;
    for (Index p = 0; p < count * s.groups; ++p)
      for (Index c = 0; c < rows.size(); ++c)
        for (Index y = 0; y < s.y.size; ++y) {
          const T* from = sums + (p * kept + c) * plane + (s.y.pad + y) * spread.width + s.x.pad;
          T* line = to + (p * s.group_in + rows.begin + c) * s.in_plane() + y * s.x.size;
          for (Index x = 0; x < s.x.size; ++x) line[x] = from[x] + (accumulate ? line[x] : T(0));
        }
  }
}

template <class T>
void scatter_input_grad(const ConvShape& s, const T* dy, const T* w, T* dx, bool accumulate, int threads) {
  over_images_and_rows<T>(s.batch, s.group_in, s.macs(), threads, [&](auto micro, Range images, Range rows) {
    scatter_part<decltype(micro)>(s, dy, w, dx, accumulate, images, rows);
  });
}

}  // namespace mpk
