#include <apex_cpp/amp/session/session.h>

#include <ATen/core/grad_mode.h>

#include <mutex>
#include <sstream>

namespace apex::amp::detail {
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
    scalers.emplace_back(settings.properties.loss_scale, settings.min_loss_scale, settings.max_loss_scale,
                         settings.skip_nonfinite);
  }
}

std::string Session::name_of(const at::Tensor& parameter) const {
  return parameter_names->has(parameter) ? "'" + plain_name_of(parameter) + "'" : plain_name_of(parameter);
}

std::string Session::plain_name_of(const at::Tensor& parameter) const {
  if (const auto* name = parameter_names->find(parameter)) return *name;
  std::ostringstream description;
  description << "of shape " << parameter.sizes() << " (in no initialized model)";
  return description.str();
}

void Session::clear_cast_cache() const {
  if (cast_rules) cast_rules->cache().clear();
}

at::Tensor Session::master_of(const at::Tensor& parameter) const {
  for (const auto& weak : optimizers) {
    if (const auto optimizer = weak.lock()) {
      const at::Tensor master = optimizer->master_of(parameter);
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

void assign(at::Tensor tensor, const at::Tensor& value, const Session* session) {
  const at::NoGradGuard no_grad;
  tensor.copy_(value);
  const at::Tensor master = session ? session->master_of(tensor) : at::Tensor();
  if (master.defined()) master.copy_(value);
}

std::shared_ptr<Session> current_session() {
  std::lock_guard<std::mutex> lock(current().mutex);
  return current().session;
}

void set_current_session(std::shared_ptr<Session> session) {
  std::lock_guard<std::mutex> lock(current().mutex);
  set_newest_parameter_names(session ? session->parameter_names : nullptr);
  current().session = std::move(session);
}

Session& require_session(const char* caller) {
  const auto session = current_session();
  TORCH_CHECK(session, "amp::", caller, " was called before amp::initialize. Call amp::initialize first.");
  return *session;  // kept alive by the global
}

Session& require_enabled_session(const char* caller) {
  auto& session = require_session(caller);
  TORCH_CHECK(session.enabled(), "amp::", caller,
              " was called after amp::initialize(enabled=false): there are no loss scalers.");
  return session;
}

}  // namespace apex::amp::detail
