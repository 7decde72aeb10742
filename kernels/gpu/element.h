// The element type of this compilation: each .cpp with kernels is compiled once for each.
#pragma once

#include "device.h"
#include "mpcpipe_gpu.h"

#if defined(MPG_U64)
using Element = uint64_t;
#define MPG_NAME(name) name##_u64
#elif defined(MPG_U32)
using Element = uint32_t;
#define MPG_NAME(name) name##_u32
#elif defined(MPG_F32)
using Element = float;
#define MPG_NAME(name) name##_f32
#else
#error "define MPG_U64, MPG_U32 or MPG_F32"
#endif
