#include <apex_cpp/amp/masters/outside_grads.h>

namespace apex::amp::detail {
namespace {

constexpr const char* kThirdLine =
    "Differentiate the loss in a block: { auto scaled_loss = amp::scale_loss(loss, optimizer); scaled_loss.backward(); }";

// A gradient in another dtype than its parameter's is from before `initialize` cast the parameter: it counts no more (MW-06).
bool is_outside(const TrainedParam& each) {
  const at::Tensor& grad = each.param.grad();
  return grad.defined() && grad.scalar_type() == each.param.scalar_type() && each.mark.was_changed(grad);
}

}  // namespace

void check_step_reads_grads(const GradPasses& passes, const Session& session) {
  const bool in_block = passes.state() == GradPasses::State::collected;
  for (const TrainedParam* each : passes.not_read_as_they_are()) {
    if (!is_outside(*each)) continue;
    TORCH_CHECK(in_block, "step() found a gradient of ", session.name_of(each->param),
                " that no scale_loss block has unscaled, and would not use it: the step trains FP32 master weights. ",
                kThirdLine);
    TORCH_CHECK(false, "step() found that the gradient of ", session.name_of(each->param),
                " was changed after its scale_loss block, which the step would not see: it reads unscaled FP32 gradients. Clip "
                "with amp::clip_grad_norm_(optimizer, max_norm), or edit the gradients of amp::master_params(optimizer), after "
                "the block. Differentiate a further loss in a block of its own.");
  }
}

}  // namespace apex::amp::detail
