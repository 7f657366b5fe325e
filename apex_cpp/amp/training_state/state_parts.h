#pragma once

#include <apex_cpp/amp/checkpoint/parts.h>
#include <apex_cpp/amp/masters/optimizer_stash.h>
#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>

#include <c10/util/Exception.h>

namespace apex::amp::detail {

/// Errors: RuntimeError naming `caller` unless there is one model and one optimizer, which is not sharded, outside of a
/// `scale_loss` block.
template <class Parts>
void check_one_of_each(const char* caller, const Parts& parts) {
  TORCH_CHECK(parts.models.size() == 1 && parts.optimizers.size() == 1, caller, " was given ", parts.models.size(),
              " models and ", parts.optimizers.size(), " optimizers. Give each model with its optimizer a file of its own.");
  const auto& optimizer = *parts.optimizers.front();
  TORCH_CHECK(!dynamic_cast<const ShardedOptimizer*>(&optimizer), caller,
              " was given a sharded optimizer. Save it with amp::save_checkpoint, and load that into a FusedAdam.");
  const auto* stash = stash_of(optimizer);
  TORCH_CHECK(!stash || !stash->inside_backward(), caller, " was called inside a scale_loss block. Call it after the step.");
}

}  // namespace apex::amp::detail
