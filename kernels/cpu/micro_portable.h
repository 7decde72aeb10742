// The innermost product in plain C++, for any processor. What every faster kernel must equal.
#pragma once

#include "common.h"

namespace mpk {

// A micro-kernel adds up R x kNR elements of C over `kc` values of k:
//
//     c[i * ldc + j] (+)= sum over k of a[k * R + i] * b[offset[k] + j]        i < R <= kMR,  j < kNR
//
// `a` is packed tile by tile; `b` is either packed (offset[k] = k * kNR) or read where it lies.
template <class Element>
struct MicroPortable {
  using T = Element;
  using Kernel = void (*)(Index kc, const T* a, const T* b, const Index* offset, T* c, Index ldc, bool accumulate);
  static constexpr int kMR = 4, kNR = 8;
  static constexpr Index kKC = 256, kMC = 96, kNC = 1024;

  template <int R>
  static void run(Index kc, const T* a, const T* b, const Index* offset, T* c, Index ldc, bool accumulate) {
    T sum[R][kNR] = {};
    for (Index k = 0; k < kc; ++k) {
      const T* row = b + offset[k];
      for (int i = 0; i < R; ++i)
        for (int j = 0; j < kNR; ++j) sum[i][j] += a[k * R + i] * row[j];
    }
    for (int i = 0; i < R; ++i)
      for (int j = 0; j < kNR; ++j) c[i * ldc + j] = sum[i][j] + (accumulate ? c[i * ldc + j] : T(0));
  }

  static constexpr Kernel kKernels[kMR + 1] = {nullptr, run<1>, run<2>, run<3>, run<4>};
};

}  // namespace mpk
