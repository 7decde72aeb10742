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
#define MPK_ABI_VERSION 3

enum mpk_status {
  MPK_OK = 0,
  MPK_BAD_SIZE = 1,    /* a size is negative, or sizes do not fit together */
  MPK_TOO_LARGE = 2,   /* a size, or a product of sizes, does not fit the address arithmetic */
  MPK_NO_MEMORY = 3,   /* scratch memory could not be had */
  MPK_UNSUPPORTED = 4, /* this processor lacks the instructions (AES) */
  MPK_FAILED = 5,      /* the system refused something else, for example a thread */
  MPK_OVERLAP = 6      /* the output shares memory with an input: give other memory and copy */
};

enum mpk_isa { MPK_ISA_PORTABLE = 0, MPK_ISA_AVX2 = 1, MPK_ISA_AVX512 = 2, MPK_ISA_NEON = 3 };

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
/* In float32 the order of the sums, and so the rounding, may depend on the threads and the instruction set. */
MPK_API int mpk_matmul_f32(int64_t m, int64_t n, int64_t k, const float* a, int64_t a_row, int64_t a_col,
                           const float* b, int64_t b_row, int64_t b_col, float* c, int64_t c_row, int64_t c_col,
                           int accumulate, int threads);

enum mpk_algorithm {
  MPK_BEST = 0,       /* one filter a channel has kernels of its own, all else is a product of matrices */
  MPK_AS_PRODUCTS = 1 /* always a product of matrices, to compare */
};

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
  int64_t algorithm; /* a value of mpk_algorithm */
} mpk_conv;

/* y from x and w. */
MPK_API int mpk_conv2d_u64(const mpk_conv* conv, const uint64_t* x, const uint64_t* w, uint64_t* y, int accumulate,
                           int threads);
MPK_API int mpk_conv2d_u32(const mpk_conv* conv, const uint32_t* x, const uint32_t* w, uint32_t* y, int accumulate,
                           int threads);
MPK_API int mpk_conv2d_f32(const mpk_conv* conv, const float* x, const float* w, float* y, int accumulate,
                           int threads);
/* dx, the gradient of x, from dy (shape of y) and w. */
MPK_API int mpk_conv2d_input_grad_u64(const mpk_conv* conv, const uint64_t* dy, const uint64_t* w, uint64_t* dx,
                                      int accumulate, int threads);
MPK_API int mpk_conv2d_input_grad_u32(const mpk_conv* conv, const uint32_t* dy, const uint32_t* w, uint32_t* dx,
                                      int accumulate, int threads);
MPK_API int mpk_conv2d_input_grad_f32(const mpk_conv* conv, const float* dy, const float* w, float* dx,
                                      int accumulate, int threads);
/* dw, the gradient of w, from x and dy. */
MPK_API int mpk_conv2d_weight_grad_u64(const mpk_conv* conv, const uint64_t* x, const uint64_t* dy, uint64_t* dw,
                                       int accumulate, int threads);
MPK_API int mpk_conv2d_weight_grad_u32(const mpk_conv* conv, const uint32_t* x, const uint32_t* dy, uint32_t* dw,
                                       int accumulate, int threads);
MPK_API int mpk_conv2d_weight_grad_f32(const mpk_conv* conv, const float* x, const float* dy, float* dw,
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
/* A draw of a tape: n elements of 4 or 8 bytes from the key stream of the first 16 bytes of HMAC-SHA256(key, label),
 * each brought into the range of `bits` bits, as a signed number. The key has at most 64 bytes. MPK_UNSUPPORTED as
 * above. */
MPK_API int mpk_draw(const uint8_t* key, int64_t key_bytes, const uint8_t* label, int64_t label_bytes, void* out,
                     int64_t n, int element_bytes, int bits);

/* The local steps of a division by 2^t of x = u + v (mod 2^k), where one party knows u and another v. Elements have 4
 * or 8 bytes; k bits of them count, and results are signed representatives. Planes are packed bits, (n + 63) / 64
 * words. sum = x + y + constant, or x + constant where y is null; plane = (sum >= 0) ^ mask. `sum` may be x or y. */
MPK_API int mpk_sum_and_sign(const void* x, const void* y, int64_t constant, const uint64_t* mask, int64_t n,
                             int element_bytes, int k, void* sum, uint64_t* plane);
/* The lowest `out_bytes` bytes of (r_a & r_b) - c0, as a signed number of t bits. */
MPK_API int mpk_deal(const uint64_t* r_a, const uint64_t* r_b, const void* c0, int64_t n, int element_bytes, int t,
                     int out_bytes, uint8_t* out);
/* out = (s >> t) + (bit + sigma c) 2^(k-t) - constant - mask, where s >> t is a logical shift of k bits, sigma is -1
 * where alpha ^ beta, c is read from c_bytes (1 to 8) bytes an element, and bit is (own & beta) - (alpha & beta) if
 * `first`, else own & alpha. `mask` may be null or `out`. */
MPK_API int mpk_quotient_half(const void* s, const uint64_t* own, const uint64_t* alpha, const uint64_t* beta,
                              const uint8_t* c, int c_bytes, int first, int64_t constant, const void* mask, int64_t n,
                              int element_bytes, int k, int t, void* out);

/* One party's summand of a level of ANDs on replicated bits: z = x_0 & (y_0 ^ y_1) ^ x_1 & y_0 ^ mask_0 ^ mask_1 for n
 * planes x = p, y = g, and then for the last q_planes of p with y = q. Plane j of component i of p begins at
 * p[i * p_component + j * p_plane], and so on; z and the masks are (n + q_planes, words), contiguous. */
MPK_API int mpk_and_level(const uint64_t* p, int64_t p_component, int64_t p_plane, const uint64_t* g,
                          int64_t g_component, int64_t g_plane, const uint64_t* q, int64_t q_component, int64_t q_plane,
                          int64_t planes, int64_t q_planes, int64_t words, const uint64_t* mask_0,
                          const uint64_t* mask_1, uint64_t* z);

/* A value that two of four parties know, as one of the four sees it on its way to being shared: it is masked by the key
 * stream of HMAC-SHA256(key, label + suffix), which all but the receiver of the rest know. Terms are the same for all
 * uses of one kind: what changes from use to use is in mpk_use. */
enum mpk_term_op {
  MPK_TERM_UNKNOWN = 0, /* this party has the mask only */
  MPK_TERM_COPY = 1,    /* a */
  MPK_TERM_PRODUCT = 2, /* a b, or a & b */
  MPK_TERM_CROSS = 3,   /* a (b - 2 c) + d (e - 2 f) */
  MPK_TERM_CHOSEN = 4,  /* a + b where c is 1, else 0 */
  MPK_TERM_MINUS = 5    /* -a */
};
enum { MPK_MOST_OPERANDS = 6 };
typedef struct mpk_term {
  int64_t half; /* 0 or 1: of the first elements or of the others */
  int64_t op;
  int64_t source[MPK_MOST_OPERANDS], row[MPK_MOST_OPERANDS]; /* of a, b, ... as far as `op` needs them */
  const uint8_t* key; /* at most 64 bytes */
  int64_t key_bytes;
  const uint8_t* suffix;
  int64_t suffix_bytes;
  int64_t mask_at, rest_at; /* the components of `out` to which mask and value - mask are added; negative: none */
  int64_t wire;             /* where value - mask goes: which of the wires; negative: nowhere */
  const uint8_t* tag_key;   /* for a tag of what goes over the wire, as mpk_tag with label + tag_suffix */
  int64_t tag_key_bytes;
  const uint8_t* tag_suffix;
  int64_t tag_suffix_bytes;
  int64_t tag; /* which of the tags it is; negative: none */
} mpk_term;
/* Rows whose first elements are `stride` elements apart. */
typedef struct mpk_rows {
  const void* first;
  int64_t stride, rows;
} mpk_rows;
typedef struct mpk_use {
  const uint8_t* label;
  int64_t label_bytes;
  const mpk_rows* sources; /* their rows have all elements, of both halves */
  int64_t source_count;
  void* const* wires; /* the elements of the term's half, wire_bytes each */
  int64_t wire_count;
  uint8_t* tags; /* 16 bytes each; those of a half without elements are not written */
  int64_t tag_count;
} mpk_use;
/* out (outs, n[0] + n[1]) = base (or 0 where it is null; it may be out itself) + the terms' masks and rests, each times
 * 2^up. Elements have 4 or 8 bytes, `bits` of them count; an element of `out` has out_bytes. With `xored` everything is
 * bits: addition is xor, and there is only copy and product. MPK_UNSUPPORTED without AES instructions. At most 32 terms
 * and 4 components. `out` is not reduced to any range. */
MPK_API int mpk_joint(const mpk_term* terms, int64_t count, const mpk_use* use, const int64_t n[2], int element_bytes,
                      int bits, int xored, int wire_bytes, const void* base, int64_t base_stride, void* out,
                      int64_t out_stride, int64_t outs, int out_bytes, int up);
/* GMAC of AES-128 (NIST SP 800-38D, nothing encrypted, a nonce of zeros) of nbytes, under the first 16 bytes of the key
 * stream of HMAC-SHA256(key, label + suffix). MPK_UNSUPPORTED as above. */
MPK_API int mpk_tag(const uint8_t* key, int64_t key_bytes, const uint8_t* label, int64_t label_bytes,
                    const uint8_t* suffix, int64_t suffix_bytes, const uint8_t* data, int64_t nbytes, uint8_t tag[16]);
/* The same of n elements of wire_bytes (1 to 8) each that came, and out += (or ^= with `xored`) each of them times 2^up. */
MPK_API int mpk_take(const uint8_t* key, int64_t key_bytes, const uint8_t* label, int64_t label_bytes,
                     const uint8_t* suffix, int64_t suffix_bytes, const uint8_t* data, int wire_bytes, int64_t n,
                     int xored, int up, void* out, int out_bytes, uint8_t tag[16]);
/* x_1 + x_2, x_0 - x_2, x_0 + x_1, one after the other, of rows x_i of n elements each that are `stride` elements apart. */
MPK_API int mpk_pair_sums(const void* x, int64_t stride, int64_t n, int element_bytes, void* out);
/* A stream of elements or coefficients: the key stream of HMAC-SHA256(key, label). */
typedef struct mpk_stream {
  const uint8_t* key; /* at most 64 bytes */
  int64_t key_bytes;
  const uint8_t* label;
  int64_t label_bytes;
} mpk_stream;
/* Three parties' steps of one message (protocol.replicated4.told). Parts are X = first - mask and Y = second - mask modulo
 * 2^bits, as unsigned numbers; bit 0 and 1 of `minus` say that first or second count with the other sign. Streams of
 * masks are of elements, those of coefficients of 64-bit numbers. MPK_UNSUPPORTED without AES instructions.
 *
 * Who tells: wire = X + Y modulo 2^bits, out = base + wire, carries = the bits, packed, of X + Y that 2^bits is taken from.
 * A witness, of two such messages: out = base + the four masks, the first two of which are those of its two parts;
 * tags (16 bytes each, the highest first) = sum of coefficient X, and of coefficient Y, modulo 2^128.
 * Who is told: out += wire, tag = sum of coefficient (wire + 2^bits carry), the sum of both witnesses' tags. */
MPK_API int mpk_tell(const void* first, const void* second, int minus, const mpk_stream masks[2], int64_t n,
                     int element_bytes, int bits, const void* base, void* out, void* wire, uint64_t* carries);
MPK_API int mpk_vouch(const void* first, const void* second, int minus, const mpk_stream masks[4],
                      const mpk_stream coefficients[2], int64_t n, int element_bytes, int bits, const void* base,
                      void* out, uint8_t tags[32]);
MPK_API int mpk_told(const void* wire, const uint64_t* carries, const mpk_stream* coefficients, int64_t n,
                     int element_bytes, int bits, void* out, uint8_t tag[16]);
/* s = x + y + lift modulo 2^k (y may be null): out = (s >> t, a logical shift) - constant, bit = (s >= 0). */
MPK_API int mpk_shifted(const void* x, const void* y, int64_t lift, int64_t constant, int64_t n, int element_bytes,
                        int k, int t, void* out, void* bit, int bit_bytes);
/* The three summands of a level of ANDs that one of four parties knows: z[c] = (x_a ^ x_b) & (y_a ^ y_b), where a and b
 * are the two components that are not c, for planes as in mpk_and_level. z is (3, planes + q_planes, words). */
MPK_API int mpk_and_summands(const uint64_t* p, int64_t p_component, int64_t p_plane, const uint64_t* g,
                             int64_t g_component, int64_t g_plane, const uint64_t* q, int64_t q_component,
                             int64_t q_plane, int64_t planes, int64_t q_planes, int64_t words, uint64_t* z);

/* Of each block of `width` (1 to 8) of the `count` planes, the lowest being what is left over: the products of its
 * non-empty sets of planes, by the set's number, 2^planes - 1 rows of words. */
MPK_API int mpk_monomials(const uint64_t* planes, int64_t count, int64_t width, int64_t words, uint64_t* out);
/* From such rows of a and of b: for each block the sum over i of a_i b_i times all (a_j ^ b_j) above, then for each but
 * the lowest all of (a_j ^ b_j) but for the products of a's alone and b's alone. As sums of products of two rows. */
MPK_API int mpk_block_products(const uint64_t* a, const uint64_t* b, int64_t count, int64_t width, int64_t words,
                               uint64_t* z);

/* Passes of three parties (protocol.replicated3): what a party computes between two rounds, masks included. Elements
 * have 4 or 8 bytes, and all of their bits count. Masks are the streams of HMAC-SHA256(key, label + suffix), as by
 * mpk_draw; the suffixes are those of the protocol. MPK_UNSUPPORTED without AES instructions. */
typedef struct mpk_pass {
  const uint8_t* next_key; /* shared with the next party and with the previous one, at most 64 bytes */
  int64_t next_bytes;
  const uint8_t* prev_key;
  int64_t prev_bytes;
  const uint8_t* label;
  int64_t label_bytes;
} mpk_pass;
/* The elements for which this party plays role 0, 1 and 2, and the words of packed bits. */
typedef struct mpk_chunks {
  int64_t n[3], start[3], words[3], word_start[3], total, total_words;
} mpk_chunks;
/* out = x + (stream with the next) - (stream with the previous), n elements. */
MPK_API int mpk_pass_masked(const mpk_pass* pass, const void* x, int64_t n, int element_bytes, void* out);
/* A truncation by t, before the first round. Of a partial (x1 null): u, alpha, dealt, and z2 in `other`; of a share: v
 * in `other`, and beta. */
MPK_API int mpk_pass_truncate_begin(const mpk_pass* pass, const mpk_chunks* chunks, const void* x0, const void* x1,
                                    int element_bytes, int t, void* u, uint64_t* alpha, uint8_t* dealt, void* other,
                                    uint64_t* beta);
/* A masked half of the quotient, and the mask as a component of `out` (2, total). Role 0: s = u, own = alpha, seen =
 * beta. Role 1: own = beta, seen = alpha, s = v; or s = z_1, and `last` = z_2, of which `own` is made. */
MPK_API int mpk_pass_truncate_half(const mpk_pass* pass, const mpk_chunks* chunks, int role, const void* s,
                                   const void* last, uint64_t* own, const uint64_t* seen, const uint8_t* dealt,
                                   int element_bytes, int t, void* half, void* out);
/* The rest of `out`: the sums of both halves, as role 0 and 1, and streams. */
MPK_API int mpk_pass_truncate_end(const mpk_pass* pass, const mpk_chunks* chunks, const void* half0, const void* seen1,
                                  const void* half1, const void* seen0, int element_bytes, void* out);
/* The truncation of a partial in two rounds. Before the first: m0 and m1, which roles 0 and 1 show each other; role 2's
 * quotient and dealt, and its part of `out`. */
MPK_API int mpk_pass_open_begin(const mpk_pass* pass, const mpk_chunks* chunks, const void* z, int element_bytes, int t,
                                void* m0, void* m1, void* quotient, uint8_t* dealt, void* out);
/* From what came: q0 and q1, and `out` but for the other's q, which `end` adds. */
MPK_API int mpk_pass_open_second(const mpk_pass* pass, const mpk_chunks* chunks, int element_bytes, int t,
                                 const void* m0, const void* seen1, const void* m1, const void* seen0,
                                 const void* quotient, const uint8_t* dealt, uint8_t* q0, uint8_t* q1, void* out);
MPK_API int mpk_pass_open_end(const mpk_chunks* chunks, int element_bytes, int t, const uint8_t* seen1,
                              const uint8_t* seen0, void* out);
/* A comparison with zero by m bits, before the first round: what is sent, t0 (m, words[0]) and g1 (m - 1, words[1]), and
 * what is known of generate (2, m - 1, total_words) and propagate (2, m, total_words). */
MPK_API int mpk_pass_sign_begin(const mpk_pass* pass, const mpk_chunks* chunks, const void* x0, const void* x1,
                                int element_bytes, int m, uint64_t* t0, uint64_t* g1, uint64_t* generate,
                                uint64_t* propagate);
/* As role 2, from the t0 and g1 that came: g2 (m - 1, words[2]), and its words of generate and propagate. */
MPK_API int mpk_pass_sign_second(const mpk_pass* pass, const mpk_chunks* chunks, int m, const uint64_t* t0,
                                 const uint64_t* g1, uint64_t* g2, uint64_t* generate, uint64_t* propagate);
/* A level of the carry tree over `positions` planes of generate (2, generate_rows, words) and propagate. Where `own`
 * and `seen` are given, both components of what the level before sent, they make new_generate and new_propagate (2,
 * positions - positions / 2, words), whose first row has no meaning, and the level is of these. z: this level's masked
 * summands; null for none. */
MPK_API int mpk_pass_tree_level(const mpk_pass* pass, int64_t words, int64_t positions, uint64_t* generate,
                                int64_t generate_rows, uint64_t* propagate, int64_t propagate_rows,
                                const uint64_t* own, const uint64_t* seen, uint64_t* new_generate,
                                uint64_t* new_propagate, uint64_t* z);
/* bit * x, or the bit as an element where x is null, before the first round. With `first` the bit's half is shared, too:
 * t0 is made and t1 drawn (and kept, where there is an x); else t1 is given. */
MPK_API int mpk_pass_select_begin(const mpk_pass* pass, const mpk_chunks* chunks, const uint64_t* bits, const void* x0,
                                  const void* x1, int element_bytes, int first, void* t1, void* t0, void* u0,
                                  void* half1, void* out);
/* As role 2, from t0 and u0 (null where x is) and role 1's half: its own half, and its part of `out`. */
MPK_API int mpk_pass_select_second(const mpk_pass* pass, const mpk_chunks* chunks, const uint64_t* bits,
                                   const void* x0, const void* x1, int element_bytes, const void* t0, const void* u0,
                                   const void* seen1, void* half2, void* out);

#ifdef __cplusplus
}
#endif
#endif
