/* mpcpipe's native CPU library: exact integer arithmetic modulo 2^64 and 2^32, bit slicing, and AES-128-CTR.
 *
 * Plain C ABI, so that the library does not depend on the version of torch or of Python. Rules of every function:
 *
 *   - It returns MPK_OK (0) or another value of `mpk_status`, never throws and never aborts. Sizes are checked before
 *     memory is touched; pointers are trusted to span what the sizes say, and may be null where the size is 0.
 *   - Strides and sizes count elements, not bytes. Strides may be 0 or negative.
 *   - `accumulate` != 0 adds the result to what the output holds, otherwise it is overwritten.
 *   - `threads` >= 1 is how many threads may work, the caller's included; each writes its own part of the output, so the result does not
 *     depend on it. Small products use one thread whatever is asked.
 *   - Inputs must not overlap the output; MPK_OVERLAP says so where they do, and nothing is written then.
 *   - Functions may be called from several threads at once. Scratch memory is kept by each thread for its next call.
 */
#ifndef MPCPIPE_KERNELS_H
#define MPCPIPE_KERNELS_H

#include <stdint.h>

#if defined(_WIN32)
#define MPK_API __declspec(dllexport)
#else
#define MPK_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Grows whenever a signature below changes; the Python side refuses a library with another number. */
#define MPK_ABI_VERSION 1

enum mpk_status {
  MPK_OK = 0,
  MPK_BAD_SIZE = 1,    /* a size is negative, or sizes do not fit together */
  MPK_TOO_LARGE = 2,   /* a size, or a product of sizes, does not fit the address arithmetic */
  MPK_NO_MEMORY = 3,   /* scratch memory could not be had */
  MPK_UNSUPPORTED = 4, /* this processor lacks the instructions (AES) */
  MPK_FAILED = 5,      /* the system refused something else, for example a thread */
  MPK_OVERLAP = 6      /* the output shares memory with an input: give other memory and copy */
};

enum mpk_isa { MPK_ISA_PORTABLE = 0, MPK_ISA_AVX2 = 1 };

MPK_API int mpk_abi_version(void);
/* The instruction set in use: at first the best one that the processor has. */
MPK_API int mpk_isa(void);
/* Chooses an instruction set for all following calls of the process; MPK_UNSUPPORTED if the processor lacks it. */
MPK_API int mpk_set_isa(int isa);
/* 1 if AES instructions are used at all, 2 if two blocks go through each of them (VAES), 0 if there are none. */
MPK_API int mpk_aes_level(void);

/* c (m, n) = a (m, k) times b (k, n). Element (i, j) of a is a[i * a_row + j * a_col], and so on. */
MPK_API int mpk_matmul_u64(int64_t m, int64_t n, int64_t k, const uint64_t* a, int64_t a_row, int64_t a_col,
                           const uint64_t* b, int64_t b_row, int64_t b_col, uint64_t* c, int64_t c_row, int64_t c_col,
                           int accumulate, int threads);
MPK_API int mpk_matmul_u32(int64_t m, int64_t n, int64_t k, const uint32_t* a, int64_t a_row, int64_t a_col,
                           const uint32_t* b, int64_t b_row, int64_t b_col, uint32_t* c, int64_t c_row, int64_t c_col,
                           int accumulate, int threads);

/* A two-dimensional convolution (cross-correlation, as in neural networks). All tensors are contiguous:
 *   x  (batch, in_channels, height, width)
 *   w  (out_channels, in_channels / groups, kernel_h, kernel_w)
 *   y  (batch, out_channels, out_h, out_w),   out_h = (height + 2 pad_h - dilation_h (kernel_h - 1) - 1) / stride_h + 1
 */
typedef struct mpk_conv {
  int64_t batch, in_channels, height, width;
  int64_t out_channels, kernel_h, kernel_w;
  int64_t stride_h, stride_w, pad_h, pad_w, dilation_h, dilation_w;
  int64_t groups;
} mpk_conv;

/* y from x and w. */
MPK_API int mpk_conv2d_u64(const mpk_conv* conv, const uint64_t* x, const uint64_t* w, uint64_t* y, int accumulate,
                           int threads);
MPK_API int mpk_conv2d_u32(const mpk_conv* conv, const uint32_t* x, const uint32_t* w, uint32_t* y, int accumulate,
                           int threads);
/* dx, the gradient of x, from dy (shape of y) and w. */
MPK_API int mpk_conv2d_input_grad_u64(const mpk_conv* conv, const uint64_t* dy, const uint64_t* w, uint64_t* dx,
                                      int accumulate, int threads);
MPK_API int mpk_conv2d_input_grad_u32(const mpk_conv* conv, const uint32_t* dy, const uint32_t* w, uint32_t* dx,
                                      int accumulate, int threads);
/* dw, the gradient of w, from x and dy. */
MPK_API int mpk_conv2d_weight_grad_u64(const mpk_conv* conv, const uint64_t* x, const uint64_t* dy, uint64_t* dw,
                                       int accumulate, int threads);
MPK_API int mpk_conv2d_weight_grad_u32(const mpk_conv* conv, const uint32_t* x, const uint32_t* dy, uint32_t* dw,
                                       int accumulate, int threads);

/* The lowest `count` (0 to 64) bits of n elements of 4 or 8 bytes, sliced: planes is (count, (n + 63) / 64) words; bit
 * j of element i is bit i % 64 of word i / 64 of plane j. Bits past n are 0. Elements of 4 bytes are sign-extended. */
MPK_API int mpk_bit_planes(const void* x, int64_t n, int element_bytes, int count, uint64_t* planes);
/* The inverse for one plane: out[i] = bit i, as an element of 4 or 8 bytes. */
MPK_API int mpk_unpack_bits(const uint64_t* plane, int64_t n, int element_bytes, void* out);

/* nbytes of the AES-128-CTR key stream from block `first_block` on (NIST SP 800-38A): block b is the cipher of b as a
 * 16-byte big-endian number. MPK_UNSUPPORTED without AES instructions: a table in software would leak the key through
 * the cache, so there is none. */
MPK_API int mpk_aes128_ctr(const uint8_t key[16], uint64_t first_block, uint8_t* out, int64_t nbytes);

#ifdef __cplusplus
}
#endif
#endif
