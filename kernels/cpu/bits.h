// Bit slicing, for kernels that go on with the planes.
#pragma once

#include <cstdint>

#include "common.h"

namespace mpk {

// The lowest `count` bits of x + y (of x where y is null), n elements of 4 or 8 bytes, sliced as by mpk_bit_planes:
// plane j begins at planes + j * stride words.
template <class T>
void bit_planes(const T* x, const T* y, Index n, int count, std::uint64_t* planes, Index stride);

}  // namespace mpk
