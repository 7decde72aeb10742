// The second kernel where blocks shared the terms of a sum: adds up what they left, always in the same order.
#pragma once

#include "device.h"

namespace mpg {

template <class T>
struct Parts {
  const T* parts;  // (count, size)
  T* out;
  int64_t size;
  int count;
  int accumulate;
};

template <class T>
KERNEL sum_parts(const Parts<T> p) {
  const int64_t i = static_cast<int64_t>(block()) * THREADS + thread();
  if (i >= p.size) return;
  T sum = p.accumulate ? p.out[i] : T(0);
  for (int part = 0; part < p.count; ++part) sum += p.parts[part * p.size + i];
  p.out[i] = sum;
}

}  // namespace mpg
