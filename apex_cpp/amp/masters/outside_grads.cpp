#include <apex_cpp/amp/masters/outside_grads.h>

namespace apex::amp::detail {
namespace {

constexpr const char* kThirdLine =
    "Differentiate the loss in a block: { auto scaled_loss = amp::scale_loss(loss, optimizer); scaled_loss.backward(); }; "
    "write gradients of your own into amp::master_params(optimizer)[i].mutable_grad(), in FP32; or drop the gradient with the "
    "model's zero_grad().";

// A gradient in another dtype than its parameter's is from before `initialize` cast the parameter: it counts no more (MW-06).
bool is_outside(const TrainedParam& each) {
  const at::Tensor& grad = each.param.grad();
  return grad.defined() && grad.scalar_type() == each.param.scalar_type() && each.mark.was_changed(grad);
}

void check_as_marked(const TrainedParam& each, bool after_block, const char* caller, const Session& session) {
  if (!is_outside(each)) return;
  TORCH_CHECK(after_block, caller, " found a gradient of ", session.name_of(each.param),
              " that no scale_loss block has unscaled, and would not use it: the step trains FP32 master weights. ",
              kThirdLine);
  TORCH_CHECK(false, caller, " found that the gradient of ", session.name_of(each.param),
              " was changed after its scale_loss block, which the step would not see: it reads unscaled FP32 gradients. Clip "
              "with amp::clip_grad_norm_(optimizer, max_norm), or edit the gradients of amp::master_params(optimizer), after "
              "the block. Differentiate a further loss in a block of its own.");
}

}  // namespace

void check_step_reads_grads(const GradPasses& passes, const Session& session) {
  const bool after_block = passes.state() == GradPasses::State::collected;
  for (const TrainedParam* each : passes.not_read_as_they_are()) check_as_marked(*each, after_block, "step()", session);
}

void check_block_keeps_grads(const GradPasses& passes, const StrayGrads& strays, const Session& session) {
  if (passes.waiting()) return;  // they add up, still scaled
  const bool after_block = passes.state() == GradPasses::State::collected;
  const auto dropped = strays.params();
  for (const TrainedParam* each : passes.not_read_as_they_are()) {
    if (dropped.count(each->param.unsafeGetTensorImpl())) continue;
    check_as_marked(*each, after_block, "amp::scale_loss", session);
  }
}

}  // namespace apex::amp::detail
