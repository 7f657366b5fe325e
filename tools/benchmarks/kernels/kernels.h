#pragma once

#include "../runner.h"

namespace bench::kernels {

// The two halves of the suite.
void run_optimizers(Runner& runner);
void run_elementwise(Runner& runner);

}  // namespace bench::kernels
