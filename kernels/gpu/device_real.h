// The dialect of device.h on a device: CUDA's and HIP's own words.
#pragma once

#define DEVICE __device__ __forceinline__
#define BOTH __host__ __device__ constexpr
#define KERNEL __global__ void __launch_bounds__(256)
// With blocks of 256 threads both compilers take the second number for blocks a unit: CUDA counts blocks, HIP waves a
// SIMD, of which a unit has four. It caps registers, but also makes compilers use as many as that leaves.
#define KERNEL_FOR(...) __global__ void __launch_bounds__(256, (__VA_ARGS__))

namespace mpg {

#if defined(MPG_HIP)
// All DCUs and GCN or CDNA cards have waves of 64. RDNA would need 32, and other permutations.
constexpr int WAVE = 64;
constexpr bool HAS_DPP = true;
#else
constexpr int WAVE = 32;
constexpr bool HAS_DPP = false;
#endif

// DPP controls of the GCN instruction set, as v_mov_b32_dpp has them.
constexpr int QUAD_1032 = 0xB1, QUAD_2301 = 0x4E, QUAD_3210 = 0x1B, ROW_ROTATE_8 = 0x128, ROW_HALF_MIRROR = 0x141;

DEVICE int thread() { return static_cast<int>(threadIdx.x); }
DEVICE int block() { return static_cast<int>(blockIdx.x); }
DEVICE void sync() { __syncthreads(); }

// The block's dynamic LDS (shared memory). One array of bytes serves all types.
template <class T>
DEVICE T* lds() {
  extern __shared__ __align__(16) unsigned char mpg_lds[];
  return reinterpret_cast<T*>(mpg_lds);
}

template <class T>
DEVICE T shuffle_xor_any(T v, int distance) {
#if defined(MPG_HIP)
  if constexpr (sizeof(T) == 8) {
    return static_cast<T>(__shfl_xor(static_cast<unsigned long long>(v), distance, WAVE));
  } else {
    return __shfl_xor(v, distance, WAVE);
  }
#else
  return __shfl_xor_sync(0xffffffffu, v, distance, WAVE);
#endif
}

template <int CONTROL, class T>
DEVICE T dpp(T v) {
#if defined(MPG_HIP)
  int words[sizeof(T) / 4];
  __builtin_memcpy(words, &v, sizeof(T));
  UNROLL
  for (unsigned i = 0; i < sizeof(T) / 4; ++i) {
    words[i] = __builtin_amdgcn_update_dpp(0, words[i], CONTROL, 0xf, 0xf, true);
  }
  __builtin_memcpy(&v, words, sizeof(T));
#endif
  return v;
}

// Starts the kernel on the stream. Returns the runtime's error code, 0 for none.
template <class P>
int launch(void (*kernel)(P), int64_t grid, size_t lds_bytes, void* stream, const P& params) {
  if (grid == 0) return 0;
#if defined(MPG_HIP)
  kernel<<<dim3(static_cast<unsigned>(grid)), dim3(256), lds_bytes, static_cast<hipStream_t>(stream)>>>(params);
  return static_cast<int>(hipGetLastError());
#else
  kernel<<<dim3(static_cast<unsigned>(grid)), dim3(256), lds_bytes, static_cast<cudaStream_t>(stream)>>>(params);
  return static_cast<int>(cudaGetLastError());
#endif
}

inline int set_device(int device) {
#if defined(MPG_HIP)
  return static_cast<int>(hipSetDevice(device));
#else
  return static_cast<int>(cudaSetDevice(device));
#endif
}

inline const char* error_text(int code) {
#if defined(MPG_HIP)
  return hipGetErrorString(static_cast<hipError_t>(code));
#else
  return cudaGetErrorString(static_cast<cudaError_t>(code));
#endif
}

}  // namespace mpg
