// The C ABI of the device kernels: depthwise and pointwise convolutions over Z_2^64 (u64), Z_2^32 (u32) and float32
// (f32).
//
// Pointers are to memory of the device, C-contiguous. Functions start kernels on the stream and do not wait for them.
// They return 0, a code of the runtime (positive), or MPG_BAD_CALL where sizes or a tile cannot be; mpg_error_text()
// says which. The caller chooses tiles: any valid tile gives the same integers.
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define MPG_ABI_VERSION 1
#define MPG_BAD_CALL (-1)
// Neither device has less to offer a block without being asked.
#define MPG_MAX_LDS_BYTES 49152

// x (batch, channels, height, width), w (channels * multiplier, 1, kernel, kernel), y (batch, channels * multiplier,
// out_height, out_width). kernel is 3, 5 or 7, stride 1 or 2, in both directions.
struct mpg_depthwise {
  int64_t batch, channels, multiplier, height, width, out_height, out_width;
  int64_t kernel, stride, pad_h, pad_w;
  // A block's share: steps down and across, and planes (or images, for the weight gradient); tile_columns * group <=
  // 256.
  int64_t tile_rows, tile_columns, group;
  int64_t parts;  // weight gradient: blocks a filter; with more than one, `workspace` holds parts * w elements
  int64_t accumulate, device;
};

// Row or column i of a matrix lies at (i / period) * leap + (i % period) * step elements; period 0: at i * step.
struct mpg_axis {
  int64_t step, leap, period;
};

// c (m, n) = a (m, k) b (k, n). c is all of a contiguous tensor of m * n elements, in whatever order.
struct mpg_product {
  int64_t m, n, k;
  struct mpg_axis a_row, a_column, b_row, b_column, c_row, c_column;
  int64_t tile, parts;  // with more than one part, `workspace` holds parts * m * n elements
  int64_t a_along_k, b_along_k;
  int64_t accumulate, device;
};

#define MPG_EXPORT __attribute__((visibility("default")))
#define MPG_DECLARE(E)                                                                                               \
  MPG_EXPORT int mpg_depthwise_forward_##E(const struct mpg_depthwise*, const void* x, const void* w, void* y,       \
                                           void* workspace, void* stream);                                           \
  MPG_EXPORT int mpg_depthwise_input_grad_##E(const struct mpg_depthwise*, const void* dy, const void* w, void* dx,  \
                                              void* workspace, void* stream);                                        \
  MPG_EXPORT int mpg_depthwise_weight_grad_##E(const struct mpg_depthwise*, const void* x, const void* dy, void* dw, \
                                               void* workspace, void* stream);                                       \
  MPG_EXPORT int mpg_product_##E(const struct mpg_product*, const void* a, const void* b, void* c, void* workspace,  \
                                 void* stream);
MPG_DECLARE(u64)
MPG_DECLARE(u32)
MPG_DECLARE(f32)

MPG_EXPORT int mpg_abi_version(void);
// "cuda", "hip", or "emulated".
MPG_EXPORT const char* mpg_kind(void);
MPG_EXPORT int mpg_wave(void);
// Tile `index` of products: TN, TM, CG, PG, ACROSS, DEPTH, and the block's BM, BN and LDS elements. MPG_BAD_CALL where
// there is none for elements of that size.
MPG_EXPORT int mpg_product_tile(int index, int element_bytes, int64_t numbers[9]);
MPG_EXPORT const char* mpg_error_text(int code);
// Emulated only: the order in which threads run. 0 forward, 1 backward, others shuffled. MPG_BAD_CALL on a device.
MPG_EXPORT int mpg_set_order(unsigned order);

#ifdef __cplusplus
}
#endif
