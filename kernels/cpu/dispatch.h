// From the instruction set chosen at run time to the templates of one.
#pragma once

#include <type_traits>

#include "common.h"
#include "isa.h"
#include "micro_portable.h"
#include "vector_avx2.h"
#include "vector_avx512.h"
#include "vector_neon.h"

namespace mpk {

// Calls `body` with an object whose type is the one for elements of type T.
template <class T, class U64, class U32, class F32, class Body>
void with_element(Body&& body) {
  if constexpr (std::is_same_v<T, std::uint64_t>)
    return body(U64{});
  else if constexpr (std::is_same_v<T, std::uint32_t>)
    return body(U32{});
  else
    return body(F32{});
}

// Calls `body` with an object whose type is the micro-kernel set for elements of type T.
template <class T, class Body>
void with_micro(Body&& body) {
#ifdef MPK_X86
  if (isa() == MPK_ISA_AVX512) return with_element<T, avx512::MicroU64, avx512::MicroU32, avx512::MicroF32>(body);
  if (isa() == MPK_ISA_AVX2) return with_element<T, avx2::MicroU64, avx2::MicroU32, avx2::MicroF32>(body);
#endif
#ifdef MPK_NEON
  if (isa() == MPK_ISA_NEON) return with_element<T, neon::MicroU64, neon::MicroU32, neon::MicroF32>(body);
#endif
  body(MicroPortable<T>{});
}

}  // namespace mpk
