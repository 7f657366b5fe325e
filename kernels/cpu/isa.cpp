#include "kernels/cpu/isa.h"

#include <c10/util/Exception.h>

#include <atomic>
#include <iterator>

#ifdef APEX_CPP_X86_KERNELS
#include <cpuid.h>
#endif

namespace apex::kernels::cpu {
namespace {

#ifdef APEX_CPP_X86_KERNELS
// __builtin_cpu_supports of older compilers does not know f16c.
bool has_f16c() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}

// __builtin_cpu_supports also checks that the operating system saves the wide registers.
bool has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c(); }

bool has_avx512() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

bool has_avx512_bf16() { return has_avx512() && __builtin_cpu_supports("avx512bf16"); }
#else
bool has_avx2() { return false; }
bool has_avx512() { return false; }
bool has_avx512_bf16() { return false; }
#endif

bool has_neon() {
#ifdef APEX_CPP_NEON_KERNELS
  return true;
#else
  return false;
#endif
}

struct Named {
  Isa isa;
  const char* name;
  bool (*is_available)();
};

constexpr Named kAll[] = {{Isa::portable, "portable", [] { return true; }},
                          {Isa::avx2, "avx2", has_avx2},
                          {Isa::avx512, "avx512", has_avx512},
                          {Isa::avx512_bf16, "avx512_bf16", has_avx512_bf16},
                          {Isa::neon, "neon", has_neon}};

static_assert(kAll[0].isa == Isa{0} && kAll[1].isa == Isa{1} && kAll[2].isa == Isa{2} && kAll[3].isa == Isa{3} &&
              kAll[4].isa == Isa{4} && std::size(kAll) == std::size(kEveryIsa));

const Named& known(Isa isa) { return kAll[static_cast<size_t>(isa)]; }

Isa widest() {
  Isa isa = Isa::portable;
  for (const Named& each : kAll) {
    if (each.is_available()) isa = each.isa;
  }
  return isa;
}

std::atomic<Isa>& current() {
  static std::atomic<Isa> isa{widest()};
  return isa;
}

}  // namespace

const char* name_of(Isa isa) { return known(isa).name; }

bool is_available(Isa isa) { return known(isa).is_available(); }

Isa current_isa() { return current(); }

void set_current_isa(Isa isa) {
  TORCH_INTERNAL_ASSERT(is_available(isa), "kernels for ", name_of(isa),
                        " cannot run here: this build or this machine lacks them.");
  current() = isa;
}

}  // namespace apex::kernels::cpu
