// From the instruction set chosen at run time to the templates of one, and from work to threads.
#pragma once

#include <exception>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

#include "common.h"
#include "gemm.h"
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

// Runs body(part) for part 0 to parts - 1, each on its own thread, the first on this one.
template <class Body>
void in_parallel(int parts, Body&& body) {
  std::exception_ptr failure;
  std::mutex guard;
  const auto run = [&](int part) {
    try {
      body(part);
    } catch (...) {
      const std::lock_guard<std::mutex> lock(guard);
      if (!failure) failure = std::current_exception();
    }
  };
  std::vector<std::thread> helpers;
  helpers.reserve(static_cast<std::size_t>(parts > 1 ? parts - 1 : 0));
  int started = 1;
  try {
    for (; started < parts; ++started) helpers.emplace_back(run, started);
  } catch (const std::exception&) {
    // The system has no more threads: the parts left are done here.
  }
  run(0);
  for (int part = started; part < parts; ++part) run(part);
  for (std::thread& helper : helpers) helper.join();
  if (failure) std::rethrow_exception(failure);
}

// How many threads are worth starting for so many multiply-adds: a thread costs some 20 microseconds.
inline int worthwhile_threads(int threads, double macs) {
  constexpr double kMacsPerThread = 1e6;
  const double most = macs / kMacsPerThread;
  return most < 2 ? 1 : (most < threads ? static_cast<int>(most) : threads);
}

}  // namespace mpk
