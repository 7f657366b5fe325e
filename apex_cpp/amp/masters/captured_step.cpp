#include <apex_cpp/amp/masters/captured_step.h>

#include <apex_cpp/amp/scaling/capture.h>

namespace apex::amp::detail {

void check_captured_step(OptimizerStash& stash) {
  for (const auto& group : stash.handle()->param_groups()) {
    if (group.params().empty()) continue;
    for (const LossScaler& scaler : stash.session().scalers) check_capture(scaler, "step()", group.params().front().device());
  }
}

}  // namespace apex::amp::detail
