#include <apex_cpp/amp/session/session.h>

#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/amp/masters/optimizer_stash.h>
#include <apex_cpp/amp/session/earlier_casts.h>

#include <mutex>
#include <sstream>

namespace apex::amp {
namespace detail {
namespace {

struct Current {
  std::mutex mutex;
  std::shared_ptr<Session> session;
};

Current& current() {
  static Current instance;
  return instance;
}

}  // namespace

Session::Session(opt_levels::Settings wanted) : settings(std::move(wanted)) {
  if (!enabled()) return;
  for (int64_t i = 0; i < settings.num_losses; ++i) {
    scalers.emplace_back(settings.properties.loss_scale, settings.min_loss_scale, settings.max_loss_scale);
  }
}

std::string Session::name_of(const at::Tensor& parameter) const {
  return parameter_names.has(parameter) ? "'" + plain_name_of(parameter) + "'" : plain_name_of(parameter);
}

std::string Session::plain_name_of(const at::Tensor& parameter) const {
  if (const auto* name = parameter_names.find(parameter)) return *name;
  std::ostringstream description;
  description << "of shape " << parameter.sizes() << " (in no initialized model)";
  return description.str();
}

void Session::clear_cast_cache() const {
  if (cast_rules) cast_rules->cache().clear();
}

at::Tensor Session::master_of(const at::Tensor& parameter) const {
  for (const auto& weak : optimizers) {
    if (const auto stash = weak.lock()) {
      const at::Tensor master = stash->master_of(parameter);
      if (master.defined()) return master;
    }
  }
  return {};
}

LossScaler& Session::scaler(int64_t loss_id) {
  TORCH_CHECK_INDEX(loss_id >= 0 && loss_id < static_cast<int64_t>(scalers.size()), "loss_id ", loss_id,
                    " is out of range: amp was initialized with num_losses=", scalers.size(),
                    ". Set InitializeOptions().num_losses to the number of losses.");
  return scalers[loss_id];
}

std::shared_ptr<Session> current_session() {
  std::lock_guard<std::mutex> lock(current().mutex);
  return current().session;
}

void set_current_session(std::shared_ptr<Session> session) {
  std::lock_guard<std::mutex> lock(current().mutex);
  current().session = std::move(session);
}

Session& require_session(const char* caller) {
  const auto session = current_session();
  TORCH_CHECK(session, "amp::", caller, " was called before amp::initialize. Call amp::initialize first.");
  return *session;  // kept alive by the global
}

}  // namespace detail

const opt_levels::Properties& properties() { return detail::require_session("properties").settings.properties; }

LossScaler& loss_scaler(int64_t loss_id) { return detail::require_session("loss_scaler").scaler(loss_id); }

int64_t num_loss_scalers() { return static_cast<int64_t>(detail::require_session("num_loss_scalers").scalers.size()); }

void clear_cast_cache() { detail::require_session("clear_cast_cache").clear_cast_cache(); }

void reset() {
  const auto session = detail::current_session();
  if (session && session->cast_rules) detail::release_threads(session->cast_rules);
  detail::set_current_session(nullptr);
  detail::forget_dead_tensors();
}

}  // namespace apex::amp
