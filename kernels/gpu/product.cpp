// Starts the product kernels of one element type.
#include "element.h"
#include "product.h"
#include "sum_parts.h"
#include "tiles.h"

namespace mpg {
namespace {

constexpr int64_t LIMIT = int64_t{1} << 31;

Axis axis(const mpg_axis& a) {
  return {a.step, a.leap, divider(a.period > 0 ? a.period : 1), a.period == 0};
}

template <class Shape>
int start(const mpg_product& c, const Element* a, const Element* b, Element* out, Element* workspace, void* stream) {
  const bool direct = c.parts == 1;
  const int64_t size = c.m * c.n;
  if (!direct && workspace == nullptr) return MPG_BAD_CALL;
  const int64_t tiles_m = ceil_div(static_cast<int>(c.m), Shape::BM);
  const int64_t tiles_n = ceil_div(static_cast<int>(c.n), Shape::BN);
  const int64_t terms = (c.k + c.parts - 1) / c.parts;
  const int64_t lds = 2 * Shape::BUFFER * static_cast<int64_t>(sizeof(Element));
  if (tiles_m * tiles_n * c.parts >= LIMIT || c.parts * terms >= LIMIT || lds > MPG_MAX_LDS_BYTES) return MPG_BAD_CALL;
  Product<Element> p{};
  p.a = a;
  p.b = b;
  p.c = direct ? out : workspace;
  p.m = static_cast<int>(c.m);
  p.n = static_cast<int>(c.n);
  p.k = static_cast<int>(c.k);
  p.a_row = axis(c.a_row);
  p.a_column = axis(c.a_column);
  p.b_row = axis(c.b_row);
  p.b_column = axis(c.b_column);
  p.c_row = axis(c.c_row);
  p.c_column = axis(c.c_column);
  p.tiles_n = static_cast<int>(tiles_n);
  p.by_tiles = divider(tiles_m * tiles_n);
  p.by_tiles_n = divider(tiles_n);
  p.terms = static_cast<int>(terms);
  p.a_along_k = c.a_along_k != 0;
  p.b_along_k = c.b_along_k != 0;
  p.part_size = direct ? 0 : size;
  p.accumulate = direct && c.accumulate != 0;
  const int status = launch(&product<Element, Shape>, tiles_m * tiles_n * c.parts, lds, stream, p);
  if (status || direct) return status;
  const Parts<Element> sum{workspace, out, size, static_cast<int>(c.parts), c.accumulate != 0};
  return launch(&sum_parts<Element>, (size + THREADS - 1) / THREADS, 0, stream, sum);
}

}  // namespace
}  // namespace mpg

extern "C" int MPG_NAME(mpg_product)(const mpg_product* call, const void* first, const void* second, void* result,
                                     void* workspace, void* stream) {
  using namespace mpg;
  for (int64_t size : {call->m, call->n, call->parts}) {
    if (size < 1 || size >= LIMIT) return MPG_BAD_CALL;
  }
  // Terms are counted past the last by a tile's depth.
  if (call->k < 0 || call->k >= LIMIT - 1024 || call->m >= LIMIT - 1024 || call->n >= LIMIT - 1024) return MPG_BAD_CALL;
  const int status = set_device(static_cast<int>(call->device));
  if (status) return status;
  const Element *a = static_cast<const Element*>(first), *b = static_cast<const Element*>(second);
  Element *c = static_cast<Element*>(result), *scratch = static_cast<Element*>(workspace);
#define MPG_START(index, ...) \
  if (call->tile == index) return start<__VA_ARGS__>(*call, a, b, c, scratch, stream);
#if !defined(MPG_U64)
  MPG_TILES_4(MPG_START)
#endif
  MPG_TILES(MPG_START)
  return MPG_BAD_CALL;
}
