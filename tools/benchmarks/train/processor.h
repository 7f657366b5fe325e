#pragma once

#include "../results.h"

namespace bench::train {

/// The processor by name, and in the remark: its vector and 16-bit instructions, those that LibTorch uses, what the
/// environment says of them, and how amp computes on 16-bit CPU tensors.
Result processor(int threads);

}  // namespace bench::train
