// Convolution by gathering: each output pixel sums over the taps that it meets. Serves the forward direction and, with
// one phase for each remainder modulo the stride, the gradient of the input.
#pragma once

#include <vector>

#include "conv_common.h"

namespace mpk {

// What the forward convolution and the input gradient have in common: `rows` channels of each group of the result,
// summed over the `depth` channels of the same group of the source.
template <class T>
struct TapConvolution {
  const T* source;
  const T* filter;
  T* result;
  Index groups, rows, depth;
  Index source_height, source_width, result_height, result_width;
  Index filter_row, filter_depth, filter_group;  // strides of the filter: by row, by source channel, by group
  Index kernel_width;
  std::vector<Phase> y, x;
  bool accumulate;
};

// Offsets of the filter and of the padded source for each k = (source channel, taps of one phase).
template <class T>
Index fill_k(const TapConvolution<T>& op, const Padded<T>& padded, const Phase& y, const Phase& x, Margin my,
             Margin mx, Index*& of_filter, Index*& of_source) {
  const Index count = product(op.depth, static_cast<Index>(y.taps.size()), static_cast<Index>(x.taps.size()));
  of_filter = open_k_table(conv_tables().k_of_a, count);
  of_source = open_k_table(conv_tables().k_of_b, count);
  Index k = 0;
  for (Index c = 0; c < op.depth; ++c)
    for (const Tap& ty : y.taps)
      for (const Tap& tx : x.taps) {
        of_filter[k] = c * op.filter_depth + ty.kernel * op.kernel_width + tx.kernel;
        of_source[k++] = c * padded.plane + (ty.shift + my.low) * padded.width + tx.shift + mx.low;
      }
  close_k_table(of_source, count);
  return count;
}

// Offsets of the padded source and of the result for each column = (image, output pixel of one phase).
template <class T>
Index fill_columns(const TapConvolution<T>& op, const Padded<T>& padded, const Phase& y, const Phase& x, Index images,
                   Index*& of_source, Index*& of_result) {
  const Index count = product(images, y.count, x.count);
  of_source = conv_tables().columns_of_b.get<Index>(count);
  of_result = conv_tables().columns_of_c.get<Index>(count);
  const Index result_image = op.groups * op.rows * op.result_height * op.result_width;
  Index j = 0;
  for (Index n = 0; n < images; ++n)
    for (Index qy = 0; qy < y.count; ++qy) {
      const Index from = n * padded.image + qy * y.source_step * padded.width;
      const Index to = n * result_image + (y.start + y.step * qy) * op.result_width + x.start;
      for (Index qx = 0; qx < x.count; ++qx, ++j) {
        of_source[j] = from + qx * x.source_step;
        of_result[j] = to + qx * x.step;
      }
    }
  return count;
}

template <class Micro, class T>
void gather_part(const TapConvolution<T>& op, Range images, Range rows) {
  const Margin my = margin(op.y, op.source_height), mx = margin(op.x, op.source_width);
  const Index source_image = op.groups * op.depth * op.source_height * op.source_width;
  const Index result_plane = op.result_height * op.result_width, result_image = op.groups * op.rows * result_plane;
  const Index padded_plane = product(op.source_height + my.low + my.high, op.source_width + mx.low + mx.high);
  const Index padded_image_bytes = product(op.groups, op.depth, padded_plane, static_cast<Index>(sizeof(T)));
  const Index chunk = images_per_chunk(images.size(), padded_image_bytes, result_plane);
  // Planes a multiple of 1 KiB apart compete for the same few sets of the cache: those are packed.
  const bool in_place = rows.size() <= 2 * Micro::kMR || padded_plane * static_cast<Index>(sizeof(T)) % 1024 != 0;
  const Index* rows_of_filter = ramp(conv_tables().rows_of_a, rows.size(), op.filter_row);
  const Index* rows_of_result = ramp(conv_tables().rows_of_c, rows.size(), result_plane);
  for (Index n0 = images.begin; n0 < images.end; n0 += chunk) {
    const Index count = std::min(chunk, images.end - n0);
    const Padded<T> padded = pad_planes(op.source + n0 * source_image, count, op.groups * op.depth, op.source_height,
                                        op.source_width, my, mx, conv_tables().padded);
    for (const Phase& y : op.y)
      for (const Phase& x : op.x) {
        Index *k_of_filter, *k_of_source, *columns_of_source, *columns_of_result;
        const Index depth = fill_k(op, padded, y, x, my, mx, k_of_filter, k_of_source);
        const Index columns = fill_columns(op, padded, y, x, count, columns_of_source, columns_of_result);
        for (Index g = 0; g < op.groups; ++g) {
          const Rows<T> a{op.filter + g * op.filter_group + rows.begin * op.filter_row, rows_of_filter, k_of_filter};
          const Columns<T> b{padded.base + g * op.depth * padded.plane, k_of_source, columns_of_source, in_place};
          T* to = op.result + n0 * result_image + (g * op.rows + rows.begin) * result_plane;
          gemm<Micro>(rows.size(), columns, depth, a, b, {to, rows_of_result, columns_of_result, op.accumulate});
        }
      }
  }
}

template <class T>
void gather(const TapConvolution<T>& op, Index batch, double macs, int threads) {
  over_images_and_rows<T>(batch, op.rows, macs, threads, [&](auto micro, Range images, Range rows) {
    gather_part<decltype(micro)>(op, images, rows);
  });
}

}  // namespace mpk
