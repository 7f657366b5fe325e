#pragma once

#include <apex_cpp/amp/masters/optimizer_stash.h>

namespace apex::amp::detail {

/// A step may be captured in a CUDA graph alone, its scale_loss block outside: the graph would keep this block's scale, and
/// would not skip. Errors: as check_capture in scaling/, if one of the session's loss scales is dynamic, or with
/// skip_nonfinite.
void check_captured_step(OptimizerStash& stash);

}  // namespace apex::amp::detail
