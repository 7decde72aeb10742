// What the library says of itself.
#include "mpcpipe_gpu.h"
#include "tiles.h"

extern "C" int mpg_abi_version(void) { return MPG_ABI_VERSION; }

extern "C" const char* mpg_kind(void) {
#if defined(MPG_HIP)
  return "hip";
#elif defined(MPG_CUDA)
  return "cuda";
#else
  return "emulated";
#endif
}

extern "C" int mpg_wave(void) { return mpg::WAVE; }

namespace {

template <class Shape>
int tell(int64_t numbers[9]) {
  const int64_t found[9] = {Shape::TN,     Shape::TM,    Shape::CG, Shape::PG,        Shape::ACROSS,
                            Shape::DEPTH, Shape::BM, Shape::BN, 2 * Shape::BUFFER};
  for (int i = 0; i < 9; ++i) numbers[i] = found[i];
  return 0;
}

}  // namespace

extern "C" int mpg_product_tile(int index, int element_bytes, int64_t numbers[9]) {
  using mpg::Tile;
#define MPG_TELL(i, ...) \
  if (index == i) return tell<__VA_ARGS__>(numbers);
  if (element_bytes == 4) {
    MPG_TILES_4(MPG_TELL)
  }
  MPG_TILES(MPG_TELL)
  return MPG_BAD_CALL;
}

extern "C" const char* mpg_error_text(int code) {
  return code == MPG_BAD_CALL ? "sizes or a tile that cannot be" : mpg::error_text(code);
}

extern "C" int mpg_set_order(unsigned order) {
#if defined(MPG_EMULATED)
  mpg::emulated::order() = order;
  return 0;
#else
  (void)order;
  return MPG_BAD_CALL;
#endif
}
