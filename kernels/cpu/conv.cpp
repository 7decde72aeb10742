// Convolutions and their two gradients as products of matrices that are never built: only their offset tables are.
#include "conv_gather.h"
#include "conv_scatter.h"
#include "conv_weight.h"

namespace mpk {
namespace {

template <class T>
void conv2d(const ConvShape& s, const T* x, const T* w, T* out, bool accumulate, int threads) {
  TapConvolution<T> op{};
  op.source = x, op.filter = w, op.result = out, op.accumulate = accumulate;
  op.groups = s.groups, op.rows = s.group_out, op.depth = s.group_in;
  op.source_height = s.y.size, op.source_width = s.x.size, op.result_height = s.y.out, op.result_width = s.x.out;
  op.filter_row = s.group_in * s.taps(), op.filter_depth = s.taps(), op.filter_group = s.group_out * op.filter_row;
  op.kernel_width = s.x.kernel;
  op.y = forward_phases(s.y), op.x = forward_phases(s.x);
  gather(op, s.batch, s.macs(), threads);
}

template <class T>
void gather_input_grad(const ConvShape& s, const T* dy, const T* w, T* dx, bool accumulate, int threads) {
  TapConvolution<T> op{};
  op.source = dy, op.filter = w, op.result = dx, op.accumulate = accumulate;
  op.groups = s.groups, op.rows = s.group_in, op.depth = s.group_out;
  op.source_height = s.y.out, op.source_width = s.x.out, op.result_height = s.y.size, op.result_width = s.x.size;
  op.filter_row = s.taps(), op.filter_depth = s.group_in * s.taps(), op.filter_group = s.group_out * op.filter_depth;
  op.kernel_width = s.x.kernel;
  op.y = input_grad_phases(s.y), op.x = input_grad_phases(s.x);
  gather(op, s.batch, s.macs(), threads);
}

// Taps times positions along one axis: products that gathering does, those with margins included.
double gathered(const Axis& axis) {
  double sum = 0;
  for (const Phase& phase : input_grad_phases(axis)) sum += double(phase.count) * double(phase.taps.size());
  return sum;
}

// A rough price of a product of `depth` terms in `rows` rows: a tile with few rows, or few terms, costs more for each.
double price(double products, Index rows, Index depth) {
  const double rows_in_tile = double(std::min<Index>(std::max<Index>(rows, 1), 6));
  return products * (1 + 1 / rows_in_tile) * (1 + 8 / double(std::max<Index>(depth, 1)));
}

template <class T>
void conv2d_input_grad(const ConvShape& s, const T* dy, const T* w, T* dx, bool accumulate, int threads) {
  const double by_gather = price(gathered(s.y) * gathered(s.x), s.group_in, s.group_out * s.taps());
  const double by_scatter = price(double(s.out_plane()) * double(s.taps()), s.group_in * s.taps(), s.group_out);
  if (by_gather <= by_scatter)
    gather_input_grad(s, dy, w, dx, accumulate, threads);
  else
    scatter_input_grad(s, dy, w, dx, accumulate, threads);
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
