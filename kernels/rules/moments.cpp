#include "kernels/rules/moments.h"

namespace apex::kernels::rules {

// Measured with AVX512 and data in the caches. Products take 0.6 times as long as divisions in Adam on an Intel Xeon, and 1.3
// times as long in LAMB on an AMD EPYC.
bool products_are_quicker() {
#ifdef APEX_CPP_X86_KERNELS
  static const bool kDividesSlowly = !__builtin_cpu_is("amd");
  return kDividesSlowly;
#else
  return false;
#endif
}

}  // namespace apex::kernels::rules
