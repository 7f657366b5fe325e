#include "kernels/cpu/isa.h"

#include <c10/util/Exception.h>

#include <atomic>

#ifdef APEX_CPP_X86_KERNELS
#include <cpuid.h>
#endif

namespace apex::kernels::cpu {
namespace {

#ifdef APEX_CPP_X86_KERNELS
// Older compilers cannot be asked for this one by name.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

// The compiler's check covers the operating system, which has to save the wide registers.
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}
#else
bool has_avx2() { return false; }
bool has_avx512() { return false; }
#endif

std::atomic<Isa>& current() {
  static std::atomic<Isa> isa{has_avx512() ? Isa::avx512 : has_avx2() ? Isa::avx2 : Isa::portable};
  return isa;
}

}  // namespace

const char* name_of(Isa isa) { return isa == Isa::portable ? "portable" : isa == Isa::avx2 ? "avx2" : "avx512"; }

bool is_available(Isa isa) { return isa == Isa::portable || (isa == Isa::avx2 ? has_avx2() : has_avx512()); }

Isa current_isa() { return current(); }

void set_current_isa(Isa isa) {
  TORCH_CHECK(is_available(isa), "kernels for ", name_of(isa), " cannot run here: this build or this machine lacks them.");
  current() = isa;
}

}  // namespace apex::kernels::cpu
