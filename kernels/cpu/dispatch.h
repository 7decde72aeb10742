// From the instruction set chosen at run time to the templates of one.
#pragma once

#include <type_traits>

#include "common.h"
#include "isa.h"
#include "micro_avx2.h"
#include "micro_portable.h"

namespace mpk {

// Calls `body` with an object whose type is the micro-kernel set for elements of type T.
template <class T, class Body>
void with_micro(Body&& body) {
#ifdef MPK_X86
  if (isa() == MPK_ISA_AVX2) {
    if constexpr (std::is_same_v<T, std::uint64_t>)
      return body(MicroAvx2U64{});
    else
      return body(MicroAvx2U32{});
  }
#endif
  body(MicroPortable<T>{});
}

}  // namespace mpk
