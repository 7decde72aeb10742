#include "threads.h"

#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace mpk {

void in_parallel(int parts, const std::function<void(int)>& body) {
  if (parts == 1) return body(0);
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
  helpers.reserve(static_cast<std::size_t>(parts - 1));
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

int worthwhile_threads(int threads, double macs) {
  constexpr double kMacsPerThread = 1e6;  // 100 microseconds: starting a thread costs some 20
  const double most = macs / kMacsPerThread;
  return most < 2 ? 1 : (most < threads ? static_cast<int>(most) : threads);
}

}  // namespace mpk
