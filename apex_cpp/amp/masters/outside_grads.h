#pragma once

#include <apex_cpp/amp/masters/grad_passes.h>
#include <apex_cpp/amp/masters/stray_grads.h>
#include <apex_cpp/amp/session/session.h>

// Gradients in the model that no scale_loss block has made, or that were changed after one. Where parameters have masters these
// are not what a step reads, so that a program which is right without amp would train nothing, or by other values. Zeros, and
// gradients that stay after a step, are no error.
namespace apex::amp::detail {

/// Errors: RuntimeError naming the parameter and what to do in place. Synchronises only where a gradient is not as the last
/// block left it.
void check_step_reads_grads(const GradPasses& passes, const Session& session);
/// The same before a block, which would put its own gradients in their place. Those that other optimizers' blocks have left are
/// dropped, as Apex does.
void check_block_keeps_grads(const GradPasses& passes, const StrayGrads& strays, const Session& session);

}  // namespace apex::amp::detail
