#include <apex_cpp/amp/session.h>

#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/amp/session/amp_session.h>
#include <apex_cpp/amp/tensors/gradients.h>

namespace apex::amp {

const opt_levels::Properties& properties() { return detail::require_session("properties").settings.properties; }

LossScaler& loss_scaler(int64_t loss_id) { return detail::require_enabled_session("loss_scaler").scaler(loss_id); }

int64_t num_loss_scalers() { return static_cast<int64_t>(detail::require_session("num_loss_scalers").scalers.size()); }

void clear_cast_cache() {
  auto& session = detail::require_session("clear_cast_cache");
  session.clear_cast_cache();
  for (const auto& weak : session.optimizers) {
    if (const auto optimizer = weak.lock()) optimizer->weights_were_written();
  }
}

void reset() {
  const auto session = detail::current_session();
  if (session && session->cast_rules) detail::release_threads(session->cast_rules);
  detail::set_current_session(nullptr);
  detail::forget_dead_tensors();
  detail::forget_kernel_calls();
}

}  // namespace apex::amp
