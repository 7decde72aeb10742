// Starts the depthwise kernels of one element type.
#include "depthwise.h"

#include <algorithm>

#include "depthwise_weight.h"
#include "element.h"
#include "sum_parts.h"

namespace mpg {
namespace {

constexpr int64_t LIMIT = int64_t{1} << 31;

// What all directions ask of a call: sizes that fit together and 31-bit indices of planes and blocks.
bool valid(const mpg_depthwise& c) {
  const int64_t least[] = {c.batch, c.channels, c.multiplier, c.height, c.width, c.out_height, c.out_width,
                           c.tile_rows, c.tile_columns, c.group, c.parts};
  for (int64_t size : least) {
    if (size < 1 || size >= LIMIT) return false;
  }
  if (c.kernel != 3 && c.kernel != 5 && c.kernel != 7) return false;
  if (c.stride != 1 && c.stride != 2) return false;
  if (c.pad_h < 0 || c.pad_w < 0 || c.pad_h >= LIMIT / 4 || c.pad_w >= LIMIT / 4) return false;
  if (c.out_height != (c.height + 2 * c.pad_h - c.kernel) / c.stride + 1) return false;
  if (c.out_width != (c.width + 2 * c.pad_w - c.kernel) / c.stride + 1) return false;
  if (c.height + 2 * c.pad_h < c.kernel || c.width + 2 * c.pad_w < c.kernel) return false;
  if (c.channels * c.multiplier >= LIMIT || c.batch * c.channels * c.multiplier >= LIMIT) return false;
  return c.group <= THREADS && c.tile_columns <= THREADS && c.tile_columns * c.group <= THREADS;
}

template <int K, int S, bool GRADIENT>
int start(const mpg_depthwise& c, const Element* in, const Element* filter, Element* out, void* stream, bool accumulate,
          int pick) {
  constexpr int64_t NEAR = ceil_div(K, S);
  const int64_t filters = c.channels * c.multiplier;
  Depthwise<Element> p{};
  p.in = in;
  p.filter = filter;
  p.out = out;
  p.out_channels = static_cast<int>(GRADIENT ? c.channels : filters);
  p.in_channels = static_cast<int>(GRADIENT ? filters : c.channels);
  p.planes = static_cast<int>(c.batch * p.out_channels);
  p.multiplier = static_cast<int>(c.multiplier);
  p.pick = pick;
  p.out_height = static_cast<int>(GRADIENT ? c.height : c.out_height);
  p.out_width = static_cast<int>(GRADIENT ? c.width : c.out_width);
  p.pad_h = static_cast<int>(c.pad_h);
  p.pad_w = static_cast<int>(c.pad_w);
  p.first_row = GRADIENT ? p.pad_h / S : 0;
  p.first_column = GRADIENT ? p.pad_w / S : 0;
  p.rows = GRADIENT ? (p.out_height - 1 + p.pad_h) / S - p.first_row + 1 : p.out_height;
  p.columns = GRADIENT ? (p.out_width - 1 + p.pad_w) / S - p.first_column + 1 : p.out_width;
  p.tile_rows = static_cast<int>(std::min<int64_t>(c.tile_rows, p.rows));
  p.tile_columns = static_cast<int>(std::min<int64_t>(c.tile_columns, p.columns));
  p.group = static_cast<int>(std::min<int64_t>(c.group, p.planes));
  p.accumulate = accumulate;

  const int64_t row_tiles = ceil_div(p.rows, p.tile_rows), column_tiles = ceil_div(p.columns, p.tile_columns);
  p.by_channels = divider(p.out_channels);
  p.by_multiplier = divider(c.multiplier);
  p.by_row_tiles = divider(row_tiles);
  p.by_column_tiles = divider(column_tiles);
  p.by_tile_columns = divider(p.tile_columns);
  const int64_t across = GRADIENT ? p.tile_columns + NEAR - 1 : (p.tile_columns - 1) * int64_t{S} + K;
  const int64_t down = (p.tile_rows + NEAR - 1) * (GRADIENT ? 1 : S);
  const int64_t taps = taps_in_registers<Element, K>() ? 0 : K * K;
  if (down * (across + 1) * p.group >= LIMIT / 8) return MPG_BAD_CALL;
  p.patch = GRADIENT ? make_patch(down, across, 1, c.out_height, c.out_width)
                     : make_patch(down, across, S, c.height, c.width);
  const int64_t lds = sizeof(Element) * p.group * (p.patch.plane_size + taps);
  const int64_t grid = ceil_div(p.planes, p.group) * row_tiles * column_tiles;
  if (lds > MPG_MAX_LDS_BYTES || grid >= LIMIT) return MPG_BAD_CALL;
  return launch(&depthwise<Element, K, S, GRADIENT>, grid, lds, stream, p);
}

template <int K, int S>
int forward(const mpg_depthwise& c, const Element* x, const Element* w, Element* y, Element*, void* stream) {
  return start<K, S, false>(c, x, w, y, stream, c.accumulate != 0, 0);
}

// With a multiplier, a plane of dx is a sum over the filters of its channel: one after the other.
template <int K, int S>
int input_grad(const mpg_depthwise& c, const Element* dy, const Element* w, Element* dx, Element*, void* stream) {
  for (int pick = 0; pick < c.multiplier; ++pick) {
    const int status = start<K, S, true>(c, dy, w, dx, stream, c.accumulate != 0 || pick > 0, pick);
    if (status) return status;
  }
  return 0;
}

template <int K, int S>
int weight_grad(const mpg_depthwise& c, const Element* x, const Element* dy, Element* dw, Element* workspace,
                void* stream) {
  constexpr int64_t NEAR = ceil_div(K, S);
  DepthwiseWeight<Element> p{};
  const bool direct = c.parts == 1;
  if (!direct && workspace == nullptr) return MPG_BAD_CALL;
  p.x = x;
  p.dy = dy;
  p.out = direct ? dw : workspace;
  p.batch = static_cast<int>(c.batch);
  p.channels = static_cast<int>(c.channels);
  p.filters = static_cast<int>(c.channels * c.multiplier);
  p.out_height = static_cast<int>(c.out_height);
  p.out_width = static_cast<int>(c.out_width);
  p.pad_h = static_cast<int>(c.pad_h);
  p.pad_w = static_cast<int>(c.pad_w);
  p.tile_rows = static_cast<int>(std::min(c.tile_rows, c.out_height));
  p.tile_columns = static_cast<int>(std::min(c.tile_columns, c.out_width));
  p.row_tiles = ceil_div(p.out_height, p.tile_rows);
  p.column_tiles = ceil_div(p.out_width, p.tile_columns);
  p.group = static_cast<int>(std::min(c.group, c.batch));
  p.parts = static_cast<int>(c.parts);
  p.by_filters = divider(p.filters);
  p.by_multiplier = divider(c.multiplier);
  p.by_tile_columns = divider(p.tile_columns);
  p.accumulate = direct && c.accumulate != 0;
  const int64_t down = (p.tile_rows + NEAR - 1) * S, across = (p.tile_columns - 1) * int64_t{S} + K;
  if (down * (across + 1) * p.group >= LIMIT / 8 || p.parts * int64_t{p.group} >= LIMIT / 2) return MPG_BAD_CALL;
  p.patch = make_patch(down, across, S, c.height, c.width);
  const int64_t elements = std::max<int64_t>(int64_t{p.group} * p.patch.plane_size, WAVES * K * K);
  const int64_t lds = sizeof(Element) * elements, grid = p.filters * c.parts;
  if (lds > MPG_MAX_LDS_BYTES || grid >= LIMIT) return MPG_BAD_CALL;
  const int status = launch(&depthwise_weight<Element, K, S>, grid, lds, stream, p);
  if (status || direct) return status;
  const int64_t size = int64_t{p.filters} * K * K;
  const Parts<Element> sum{workspace, dw, size, p.parts, c.accumulate != 0};
  return launch(&sum_parts<Element>, (size + THREADS - 1) / THREADS, 0, stream, sum);
}

}  // namespace
}  // namespace mpg

#define MPG_CASE(direction, K, S) \
  if (call->kernel == K && call->stride == S) return mpg::direction<K, S>(*call, a, b, c, scratch, stream);
#define MPG_DEFINE(direction)                                                                                     \
  extern "C" int MPG_NAME(mpg_depthwise_##direction)(const mpg_depthwise* call, const void* first,                \
                                                     const void* second, void* result, void* workspace,           \
                                                     void* stream) {                                              \
    if (!mpg::valid(*call)) return MPG_BAD_CALL;                                                                  \
    const int status = mpg::set_device(static_cast<int>(call->device));                                           \
    if (status) return status;                                                                                    \
    const Element *a = static_cast<const Element*>(first), *b = static_cast<const Element*>(second);              \
    Element *c = static_cast<Element*>(result), *scratch = static_cast<Element*>(workspace);                      \
    MPG_CASE(direction, 3, 1)                                                                                     \
    MPG_CASE(direction, 3, 2)                                                                                     \
    MPG_CASE(direction, 5, 1)                                                                                     \
    MPG_CASE(direction, 5, 2)                                                                                     \
    MPG_CASE(direction, 7, 1)                                                                                     \
    MPG_CASE(direction, 7, 2)                                                                                     \
    return MPG_BAD_CALL;                                                                                          \
  }

MPG_DEFINE(forward)
MPG_DEFINE(input_grad)
MPG_DEFINE(weight_grad)
