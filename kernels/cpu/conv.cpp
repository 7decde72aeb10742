// Convolutions and their two gradients as products of matrices that are never built: only their offset tables are.
#include <algorithm>

#include "conv_shape.h"
#include "dispatch.h"

namespace mpk {
namespace {

constexpr Index kChunkBytes = Index(2) << 20;  // padded source that is worked on at a time: about a core's cache
constexpr Index kChunkColumns = 8192;          // and as many output pixels, which bounds the offset tables

struct Range {
  Index begin, end;
  Index size() const { return end - begin; }
};

inline Range part_of(Index count, Index part, Index parts) {
  return {count * part / parts, count * (part + 1) / parts};
}

struct Tables {
  Scratch padded, k_of_a, k_of_b, columns_of_b, columns_of_c;
};

Tables& tables() {
  static thread_local Tables t;
  return t;
}

Index images_per_chunk(Index batch, Index image_bytes, Index image_columns) {
  const Index by_bytes = kChunkBytes / std::max<Index>(image_bytes, 1);
  const Index by_columns = kChunkColumns / std::max<Index>(image_columns, 1);
  return std::max<Index>(1, std::min({batch, by_bytes, by_columns}));
}

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
  of_filter = tables().k_of_a.get<Index>(count);
  of_source = tables().k_of_b.get<Index>(count);
  Index k = 0;
  for (Index c = 0; c < op.depth; ++c)
    for (const Tap& ty : y.taps)
      for (const Tap& tx : x.taps) {
        of_filter[k] = c * op.filter_depth + ty.kernel * op.kernel_width + tx.kernel;
        of_source[k++] = c * padded.plane + (ty.shift + my.low) * padded.width + tx.shift + mx.low;
      }
  return count;
}

// Offsets of the padded source and of the result for each column = (image, output pixel of one phase).
template <class T>
Index fill_columns(const TapConvolution<T>& op, const Padded<T>& padded, const Phase& y, const Phase& x, Index images,
                   Index*& of_source, Index*& of_result) {
  const Index count = product(images, y.count, x.count);
  of_source = tables().columns_of_b.get<Index>(count);
  of_result = tables().columns_of_c.get<Index>(count);
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
void run_part(const TapConvolution<T>& op, Range images, Range rows) {
  const Margin my = margin(op.y, op.source_height), mx = margin(op.x, op.source_width);
  const Index source_image = op.groups * op.depth * op.source_height * op.source_width;
  const Index result_plane = op.result_height * op.result_width, result_image = op.groups * op.rows * result_plane;
  const Index padded_plane = product(op.source_height + my.low + my.high, op.source_width + mx.low + mx.high);
  const Index padded_image_bytes = product(op.groups, op.depth, padded_plane, static_cast<Index>(sizeof(T)));
  const Index chunk = images_per_chunk(images.size(), padded_image_bytes, result_plane);
  // Planes a multiple of 1 KiB apart compete for the same few sets of the cache: those are packed.
  const bool in_place = rows.size() <= 2 * Micro::kMR || padded_plane * static_cast<Index>(sizeof(T)) % 1024 != 0;
  for (Index n0 = images.begin; n0 < images.end; n0 += chunk) {
    const Index count = std::min(chunk, images.end - n0);
    const Padded<T> padded = pad_planes(op.source + n0 * source_image, count, op.groups * op.depth, op.source_height,
                                        op.source_width, my, mx, tables().padded);
    for (const Phase& y : op.y)
      for (const Phase& x : op.x) {
        Index *k_of_filter, *k_of_source, *columns_of_source, *columns_of_result;
        const Index depth = fill_k(op, padded, y, x, my, mx, k_of_filter, k_of_source);
        const Index columns = fill_columns(op, padded, y, x, count, columns_of_source, columns_of_result);
        for (Index g = 0; g < op.groups; ++g) {
          const Rows<T> a{op.filter + g * op.filter_group + rows.begin * op.filter_row, op.filter_row, k_of_filter};
          const Columns<T> b{padded.base + g * op.depth * padded.plane, k_of_source, columns_of_source, in_place};
          T* to = op.result + n0 * result_image + (g * op.rows + rows.begin) * result_plane;
          gemm<Micro>(rows.size(), columns, depth, a, b, Target<T>{to, result_plane, columns_of_result, op.accumulate});
        }
      }
  }
}

template <class T>
void run(const TapConvolution<T>& op, Index batch, double macs, int threads) {
  require(threads >= 1);
  if (batch == 0) return;
  threads = worthwhile_threads(threads, macs);
  // Images first; what they leave over works on other rows of the same images.
  const int image_parts = static_cast<int>(std::min<Index>(threads, batch)), row_parts = threads / image_parts;
  with_micro<T>([&](auto micro) {
    in_parallel(image_parts * row_parts, [&](int part) {
      run_part<decltype(micro)>(op, part_of(batch, part / row_parts, image_parts),
                                part_of(op.rows, part % row_parts, row_parts));
    });
  });
}

template <class T>
void conv2d(const ConvShape& s, const T* x, const T* w, T* out, bool accumulate, int threads) {
  TapConvolution<T> op{};
  op.source = x, op.filter = w, op.result = out, op.accumulate = accumulate;
  op.groups = s.groups, op.rows = s.group_out, op.depth = s.group_in;
  op.source_height = s.y.size, op.source_width = s.x.size, op.result_height = s.y.out, op.result_width = s.x.out;
  op.filter_row = s.group_in * s.taps(), op.filter_depth = s.taps(), op.filter_group = s.group_out * op.filter_row;
  op.kernel_width = s.x.kernel;
  op.y = forward_phases(s.y), op.x = forward_phases(s.x);
  run(op, s.batch, s.macs(), threads);
}

template <class T>
void conv2d_input_grad(const ConvShape& s, const T* dy, const T* w, T* dx, bool accumulate, int threads) {
  TapConvolution<T> op{};
  op.source = dy, op.filter = w, op.result = dx, op.accumulate = accumulate;
  op.groups = s.groups, op.rows = s.group_in, op.depth = s.group_out;
  op.source_height = s.y.out, op.source_width = s.x.out, op.result_height = s.y.size, op.result_width = s.x.size;
  op.filter_row = s.taps(), op.filter_depth = s.group_in * s.taps(), op.filter_group = s.group_out * op.filter_depth;
  op.kernel_width = s.x.kernel;
  op.y = input_grad_phases(s.y), op.x = input_grad_phases(s.x);
  run(op, s.batch, s.macs(), threads);
}

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

  Index* columns_of_w = tables().columns_of_c.get<Index>(columns);
  for (Index j = 0; j < columns; ++j) columns_of_w[j] = j;

  for (Index n0 = 0; n0 < s.batch; n0 += chunk) {
    const Index count = std::min(chunk, s.batch - n0);
    const T* source = x + (n0 * s.in_channels + groups.begin * s.group_in) * s.in_plane();
    const Padded<T> padded =
        pad_planes(source, count, in_channels, s.y.size, s.x.size, my, mx, tables().padded);

    Index* columns_of_x = tables().columns_of_b.get<Index>(columns);
    Index j = 0;
    for (Index c = 0; c < s.group_in; ++c)
      for (Index ky = 0; ky < s.y.kernel; ++ky)
        for (Index kx = 0; kx < s.x.kernel; ++kx)
          columns_of_x[j++] = c * padded.plane + ky * s.y.dilation * padded.width + kx * s.x.dilation;

    Index* k_of_dy = tables().k_of_a.get<Index>(count * pixels);
    Index* k_of_x = tables().k_of_b.get<Index>(count * pixels);
    Index k = 0;
    for (Index n = 0; n < count; ++n)
      for (Index oy = 0; oy < s.y.out; ++oy)
        for (Index ox = 0; ox < s.x.out; ++ox, ++k) {
          k_of_x[k] = n * padded.image + oy * s.y.stride * padded.width + ox * s.x.stride;
          k_of_dy[k] = n * s.out_channels * pixels + oy * s.x.out + ox;
        }

    for (Index g = groups.begin; g < groups.end; ++g) {
      const Index first_row = g * s.group_out + rows.begin;
      const Rows<T> a{dy + (n0 * s.out_channels + first_row) * pixels, pixels, k_of_dy};
      const Columns<T> b{padded.base + (g - groups.begin) * s.group_in * padded.plane, k_of_x, columns_of_x, true};
      T* to = dw + g * filter_group + rows.begin * columns;
      gemm<Micro>(rows.size(), columns, count * pixels, a, b,
                  Target<T>{to, columns, columns_of_w, accumulate || n0 > 0});
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

}  // namespace
}  // namespace mpk

#define MPK_CONVOLUTIONS(suffix, T)                                                                                 \
  int mpk_conv2d_##suffix(const mpk_conv* conv, const T* x, const T* w, T* y, int accumulate, int threads) {        \
    return mpk::guarded([&] { mpk::conv2d(mpk::ConvShape(*conv), x, w, y, accumulate != 0, threads); });            \
  }                                                                                                                 \
  int mpk_conv2d_input_grad_##suffix(const mpk_conv* conv, const T* dy, const T* w, T* dx, int accumulate,          \
                                     int threads) {                                                                 \
    return mpk::guarded([&] { mpk::conv2d_input_grad(mpk::ConvShape(*conv), dy, w, dx, accumulate != 0, threads); }); \
  }                                                                                                                 \
  int mpk_conv2d_weight_grad_##suffix(const mpk_conv* conv, const T* x, const T* dy, T* dw, int accumulate,         \
                                      int threads) {                                                                \
    return mpk::guarded([&] { mpk::conv2d_weight_grad(mpk::ConvShape(*conv), x, dy, dw, accumulate != 0, threads); }); \
  }

MPK_CONVOLUTIONS(u64, uint64_t)
MPK_CONVOLUTIONS(u32, uint32_t)
