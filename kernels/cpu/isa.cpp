#include "isa.h"

#include <atomic>

#include "common.h"

namespace mpk {
namespace {

int best_isa() {
#ifdef MPK_X86
  if (__builtin_cpu_supports("avx2")) return MPK_ISA_AVX2;
#endif
  return MPK_ISA_PORTABLE;
}

int best_aes() {
#ifdef MPK_X86
  if (!__builtin_cpu_supports("aes") || !__builtin_cpu_supports("ssse3") || !__builtin_cpu_supports("pclmul")) return 0;
  return __builtin_cpu_supports("vaes") && __builtin_cpu_supports("avx2") ? 2 : 1;
#else
  return 0;
#endif
}

std::atomic<int>& chosen() {
  static std::atomic<int> value{best_isa()};
  return value;
}

}  // namespace

int isa() { return chosen().load(std::memory_order_relaxed); }

int aes_level() {
  static const int best = best_aes();
  // "portable" leaves out the wide AES only: without any AES instruction there is no AES here at all.
  return isa() == MPK_ISA_PORTABLE && best > 1 ? 1 : best;
}

}  // namespace mpk

int mpk_abi_version(void) { return MPK_ABI_VERSION; }

int mpk_isa(void) { return mpk::isa(); }

int mpk_set_isa(int isa) {
  if (isa != MPK_ISA_PORTABLE && isa != mpk::best_isa()) return MPK_UNSUPPORTED;
  mpk::chosen().store(isa, std::memory_order_relaxed);
  return MPK_OK;
}

int mpk_aes_level(void) { return mpk::aes_level(); }
