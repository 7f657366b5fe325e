// What the multi-tensor kernels take, beside torch's own ways to do the same and the memory traffic that it takes.
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
