// What all kernels share: target attributes, scratch memory, checked sizes, and the wall between C++ and C.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <initializer_list>
#include <limits>
#include <new>
#include <stdexcept>

#include "mpcpipe_kernels.h"

#if defined(__x86_64__) || defined(__i386__)
#define MPK_X86 1
#include <immintrin.h>
#define MPK_TARGET(features) __attribute__((target(features)))
#elif defined(__aarch64__)
#define MPK_NEON 1
#include <arm_neon.h>
#endif

namespace mpk {

using Index = std::ptrdiff_t;

// Thrown inside the library, turned into an mpk_status at the ABI.
struct Failure {
  int status;
};

inline void require(bool condition, int status = MPK_BAD_SIZE) {
  if (!condition) throw Failure{status};
}

// Product of sizes that are not negative, or a Failure where it would not fit an index of 16-byte elements.
inline Index product(Index first) { return first; }
template <class... Rest>
Index product(Index first, Index second, Rest... rest) {
  Index result;
  require(first >= 0 && second >= 0);
  require(!__builtin_mul_overflow(first, second, &result), MPK_TOO_LARGE);
  require(result <= std::numeric_limits<Index>::max() / 16, MPK_TOO_LARGE);
  return product(result, static_cast<Index>(rest)...);
}

inline Index ceil_div(Index x, Index y) { return (x + y - 1) / y; }
inline Index round_up(Index x, Index y) { return ceil_div(x, y) * y; }

// The addresses that a strided array takes up: [begin, end), empty if the array is.
struct Span {
  std::uintptr_t begin = 0, end = 0;

  bool overlaps(const Span& other) const { return begin < other.end && other.begin < end; }
};

struct Extent {
  Index count, stride;
};

template <class T>
Span span_of(const T* base, std::initializer_list<Extent> extents) {
  Index low = 0, high = 1;
  for (const Extent& extent : extents) {
    if (extent.count == 0) return {};
    Index last;
    require(!__builtin_mul_overflow(extent.count - 1, extent.stride, &last), MPK_TOO_LARGE);
    require(!__builtin_add_overflow(last < 0 ? low : high, last, last < 0 ? &low : &high), MPK_TOO_LARGE);
  }
  constexpr Index kMost = std::numeric_limits<Index>::max() / 16;
  require(low >= -kMost && high <= kMost, MPK_TOO_LARGE);
  const std::uintptr_t start = reinterpret_cast<std::uintptr_t>(base);
  return {start + static_cast<std::uintptr_t>(low * static_cast<Index>(sizeof(T))),
          start + static_cast<std::uintptr_t>(high * static_cast<Index>(sizeof(T)))};
}

// Memory that only grows, aligned to cache lines; one lives in each thread, so a call seldom allocates.
class Scratch {
 public:
  Scratch() = default;
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() { std::free(memory_); }

  template <class T>
  T* get(Index count) {
    const Index bytes = round_up(product(count, static_cast<Index>(sizeof(T))), 4096);
    if (bytes > bytes_) {
      std::free(memory_);
      bytes_ = 0;
      memory_ = std::aligned_alloc(64, static_cast<std::size_t>(bytes));
      require(memory_ != nullptr, MPK_NO_MEMORY);
      bytes_ = bytes;
    }
    return static_cast<T*>(memory_);
  }

 private:
  void* memory_ = nullptr;
  Index bytes_ = 0;
};

// Runs `body` and turns whatever it throws into a status: nothing may be thrown through the C ABI.
template <class Body>
int guarded(Body&& body) noexcept {
  try {
    body();
    return MPK_OK;
  } catch (const Failure& failure) {
    return failure.status;
  } catch (const std::bad_alloc&) {
    return MPK_NO_MEMORY;
  } catch (const std::exception&) {
    return MPK_FAILED;
  }
}

}  // namespace mpk
