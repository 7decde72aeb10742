// From work to threads.
#pragma once

#include <functional>

namespace mpk {

// Runs body(part) for part 0 to parts - 1, each on its own thread, the first on this one. What a part throws is thrown
// here, after all have ended.
void in_parallel(int parts, const std::function<void(int)>& body);

// How many of `threads` are worth starting for so many multiply-adds.
int worthwhile_threads(int threads, double macs);

}  // namespace mpk
