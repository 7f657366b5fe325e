#pragma once

#include "../results.h"

namespace bench::train {

/// The processor's name. The remark lists its vector and 16-bit instructions, those that LibTorch uses, related environment
/// variables, and how amp computes on 16-bit CPU tensors.
Result processor(int threads);

}  // namespace bench::train
