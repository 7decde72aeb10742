#include "isa.h"

#include <atomic>

#include "common.h"

namespace mpk {
namespace {

bool has(int isa) {
  switch (isa) {
    case MPK_ISA_PORTABLE: return true;
#ifdef MPK_X86
    case MPK_ISA_AVX2: return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    case MPK_ISA_AVX512: return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
#endif
#ifdef MPK_NEON
    case MPK_ISA_NEON: return true;
#endif
    default: return false;
  }
}

int best_isa() {
  for (const int isa : {MPK_ISA_AVX512, MPK_ISA_AVX2, MPK_ISA_NEON})
    if (has(isa)) return isa;
  return MPK_ISA_PORTABLE;
}

int best_aes() {
#ifdef MPK_X86
  if (!__builtin_cpu_supports("aes") || !__builtin_cpu_supports("ssse3") || !__builtin_cpu_supports("pclmul")) return 0;
  const bool wide = __builtin_cpu_supports("vaes") && __builtin_cpu_supports("vpclmulqdq");
  return wide && __builtin_cpu_supports("avx2") ? 2 : 1;
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

bool has_avx2() { return isa() == MPK_ISA_AVX2 || isa() == MPK_ISA_AVX512; }

int aes_level() {
  static const int best = best_aes();
  // "portable" leaves out the wide AES only: without any AES instruction there is no AES here at all.
  return isa() == MPK_ISA_PORTABLE && best > 1 ? 1 : best;
}

}  // namespace mpk

int mpk_abi_version(void) { return MPK_ABI_VERSION; }

int mpk_isa(void) { return mpk::isa(); }

int mpk_set_isa(int isa) {
  if (!mpk::has(isa)) return MPK_UNSUPPORTED;
  mpk::chosen().store(isa, std::memory_order_relaxed);
  return MPK_OK;
}

int mpk_aes_level(void) { return mpk::aes_level(); }
