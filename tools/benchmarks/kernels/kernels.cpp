// The multi-tensor kernels, compared with torch's equivalents and with the time of the memory traffic alone.
#include "kernels.h"

#include <ATen/core/grad_mode.h>

#include "../suites.h"

namespace bench {

void run_kernels(Runner& runner) {
  const at::NoGradGuard no_grad;
  kernels::run_optimizers(runner);
  kernels::run_elementwise(runner);
}

}  // namespace bench
