// Convolutions and their two gradients as products of matrices that are never built: only their offset tables are.
#include "conv_gather.h"
#include "conv_scatter.h"
#include "conv_weight.h"
#include "depthwise.h"

namespace mpk {
namespace {

template <class T>
void conv2d(const ConvShape& s, const T* x, const T* w, T* out, bool accumulate, int threads) {
  if (is_depthwise(s)) return depthwise(s, x, w, out, accumulate, threads);
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
  if (is_depthwise(s)) return depthwise_input_grad(s, dy, w, dx, accumulate, threads);
  const double by_gather = price(gathered(s.y) * gathered(s.x), s.group_in, s.group_out * s.taps());
  const double by_scatter = price(double(s.out_plane()) * double(s.taps()), s.group_in * s.taps(), s.group_out);
  if (by_gather <= by_scatter)
    gather_input_grad(s, dy, w, dx, accumulate, threads);
  else
    scatter_input_grad(s, dy, w, dx, accumulate, threads);
}

enum class Direction { kForward, kInputGrad, kWeightGrad };

// The one way in: x, w and y are the tensors of the convolution or of its gradients; the direction says which is written.
template <Direction direction, class T>
int convolve(const mpk_conv* conv, const T* first, const T* second, T* out, int accumulate, int threads) noexcept {
  return guarded([&] {
    const ConvShape s(*conv);
    const Index x = s.batch * s.in_channels * s.in_plane(), y = s.batch * s.out_channels * s.out_plane();
    const Index w = s.out_channels * s.group_in * s.taps();
    constexpr bool forward = direction == Direction::kForward, input = direction == Direction::kInputGrad;
    const Span written = span_of(out, {{forward ? y : input ? x : w, 1}});
    require(!written.overlaps(span_of(first, {{input ? y : x, 1}})), MPK_OVERLAP);
    require(!written.overlaps(span_of(second, {{forward || input ? w : y, 1}})), MPK_OVERLAP);
    if constexpr (forward)
      conv2d(s, first, second, out, accumulate != 0, threads);
    else if constexpr (input)
      conv2d_input_grad(s, first, second, out, accumulate != 0, threads);
    else if (is_depthwise(s))
      depthwise_weight_grad(s, first, second, out, accumulate != 0, threads);
    else
      conv2d_weight_grad(s, first, second, out, accumulate != 0, threads);
  });
}

}  // namespace
}  // namespace mpk

#define MPK_CONVOLUTIONS(suffix, T)                                                                                  \
  int mpk_conv2d_##suffix(const mpk_conv* conv, const T* x, const T* w, T* y, int accumulate, int threads) {         \
    return mpk::convolve<mpk::Direction::kForward>(conv, x, w, y, accumulate, threads);                              \
  }                                                                                                                  \
  int mpk_conv2d_input_grad_##suffix(const mpk_conv* conv, const T* dy, const T* w, T* dx, int accumulate,           \
                                     int threads) {                                                                  \
    return mpk::convolve<mpk::Direction::kInputGrad>(conv, dy, w, dx, accumulate, threads);                          \
  }                                                                                                                  \
  int mpk_conv2d_weight_grad_##suffix(const mpk_conv* conv, const T* x, const T* dy, T* dw, int accumulate,          \
                                      int threads) {                                                                 \
    return mpk::convolve<mpk::Direction::kWeightGrad>(conv, x, dy, dw, accumulate, threads);                         \
  }

MPK_CONVOLUTIONS(u64, std::uint64_t)
MPK_CONVOLUTIONS(u32, std::uint32_t)
MPK_CONVOLUTIONS(f32, float)
