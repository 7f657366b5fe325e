#include <apex_cpp/amp/session/amp_session.h>

#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/amp/tensors/convert_network.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/amp/tensors/tensor_version.h>

#include "opt_levels/detail/values.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <atomic>
#include <iomanip>
#include <iostream>
#include <mutex>
#include <numeric>
#include <sstream>
#include <utility>

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

int64_t Session::overflows() const {
  return std::accumulate(scalers.begin(), scalers.end(), int64_t{0},
                         [](int64_t sum, const LossScaler& scaler) { return sum + scaler.overflows(); });
}

void Session::clear_cast_cache() const {
  if (cast_rules) cast_rules->cache().clear();
  // Calls outside of a handle use the thread's rules, maybe of a later call that trains the same weights.
  const auto outside = rules_of_this_thread();
  if (outside && outside != cast_rules) outside->cache().clear();
}

std::vector<std::shared_ptr<MasterProvider>> Session::providers() const {
  std::vector<std::shared_ptr<MasterProvider>> in_use;
  for (const auto& weak : optimizers) {
    auto optimizer = weak.lock();
    if (optimizer && !optimizer->is_retired()) in_use.push_back(std::move(optimizer));
  }
  return in_use;
}

void Session::make_masters() const {
  if (!has_masters()) return;
  for (const auto& optimizer : providers()) optimizer->make_masters();
}

void Session::drop_obsolete_master_backups() const {
  for (const auto& optimizer : providers()) optimizer->drop_obsolete_master_backups();
}

at::Tensor Session::master_of(const at::Tensor& parameter) const {
  for (const auto& optimizer : providers()) {
    const at::Tensor master = optimizer->master_of(parameter);
    if (master.defined()) return master;
  }
  return {};
}

at::Tensor Session::master_values_of(const at::Tensor& parameter) const {
  const at::Tensor master = master_of(parameter);
  if (master.defined()) return master;
  for (const auto& optimizer : providers()) {
    const at::Tensor kept = optimizer->kept_master_of(parameter);
    if (kept.defined()) return kept;
  }
  return {};
}

void Session::load_master(const at::Tensor& parameter, const at::Tensor& value) const {
  const at::NoGradGuard no_grad;
  const at::Tensor master = master_of(parameter);
  if (master.defined()) return void(master.copy_(value));
  for (const auto& optimizer : providers()) {
    if (optimizer->load_kept_master(parameter, value)) return;
  }
}

LossScaler& Session::scaler(int64_t loss_id) {
  TORCH_CHECK_INDEX(loss_id >= 0 && loss_id < static_cast<int64_t>(scalers.size()), "loss_id ", loss_id,
                    " is out of range: amp was initialized with num_losses=", scalers.size(),
                    ". Set InitializeOptions().num_losses to the number of losses.");
  return scalers[loss_id];
}

void assign(at::Tensor tensor, const at::Tensor& value, const Sessions& sessions) {
  const at::NoGradGuard no_grad;
  tensor.copy_(value);
  for (const auto& session : sessions) session->load_master(tensor, value);
}

at::Tensor master_values_of(const at::Tensor& parameter, const Sessions& sessions) {
  for (const auto& session : sessions) {
    const at::Tensor values = session->master_values_of(parameter);
    if (values.defined()) return values;
  }
  return {};
}

void load_values(const Sessions& sessions, const std::function<void()>& load) {
  for (const auto& session : sessions) session->make_masters();
  load();
  for (const auto& session : sessions) {
    session->drop_obsolete_master_backups();
    session->clear_cast_cache();
  }
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

namespace {

// The sessions that have cast a tensor, or whose optimizers were given it; the newest is the last.
using Records = std::vector<std::weak_ptr<Session>>;

struct CastRecords {
  std::mutex mutex;
  WeakTensorMap<Records> of;

  void add(const at::Tensor& tensor, const std::shared_ptr<Session>& session) {
    Records& records = of.at(tensor);
    const auto is_over = [&](const std::weak_ptr<Session>& each) {
      const bool is_same = !each.owner_before(session) && !session.owner_before(each);
      return is_same || each.expired();
    };
    records.erase(std::remove_if(records.begin(), records.end(), is_over), records.end());
    records.push_back(session);
  }
};

CastRecords& cast_records() {
  static CastRecords instance;
  return instance;
}

using Params = std::unordered_set<const at::TensorImpl*>;

// The groups count as well as the masters: an optimizer gets its masters at its first use, and some keep them out of sight, as
// remainders or in parts on several ranks. A frozen parameter counts only with a master.
bool trains_with_masters(const MasterProvider& optimizer, const std::vector<at::Tensor>& params, const Params& trained) {
  Params here;
  optimizer.add_trained(here);
  return std::any_of(params.begin(), params.end(), [&](const at::Tensor& param) {
    const auto* key = param.unsafeGetTensorImpl();
    const bool gets_master = is_low_precision(param.scalar_type()) && param.requires_grad();
    return (gets_master && here.count(key) > 0 && trained.count(key) > 0) || optimizer.master_of(param).defined();
  });
}

void retire_optimizers(const Session& session, const std::vector<at::Tensor>& params, const Params& trained) {
  if (!session.has_masters()) return;
  for (const auto& weak : session.optimizers) {
    const auto optimizer = weak.lock();
    if (optimizer && trains_with_masters(*optimizer, params, trained)) optimizer->retire();
  }
}

}  // namespace

bool was_cast_by_amp(const at::Tensor& tensor) {
  const std::lock_guard<std::mutex> lock(cast_records().mutex);
  return cast_records().of.has(tensor);
}

std::shared_ptr<Session> session_that_cast(const at::Tensor& tensor) {
  const std::lock_guard<std::mutex> lock(cast_records().mutex);
  const auto* found = cast_records().of.find(tensor);
  return found ? found->back().lock() : nullptr;
}

Sessions sessions_that_know(const std::vector<at::Tensor>& tensors, const std::shared_ptr<Session>& own) {
  Sessions found;
  if (own) found.push_back(own);
  const std::lock_guard<std::mutex> lock(cast_records().mutex);
  for (const at::Tensor& tensor : tensors) {
    const Records* records = cast_records().of.find(tensor);
    if (!records) continue;
    for (const auto& weak : *records) {
      auto session = weak.lock();
      if (session && std::count(found.begin(), found.end(), session) == 0) found.push_back(std::move(session));
    }
  }
  return found;
}

void remember_casts(const torch::nn::Module& module, const std::shared_ptr<Session>& session) {
  const std::lock_guard<std::mutex> lock(cast_records().mutex);
  for (const auto& [name, tensor] : tensors_of(module)) cast_records().add(tensor, session);
}

void remember_cast(const at::Tensor& param, const std::shared_ptr<Session>& session) {
  const std::lock_guard<std::mutex> lock(cast_records().mutex);
  cast_records().add(param, session);
}

void undo_earlier_casts(torch::nn::Module& module, InPlaceCaster& to_float32, const Params& trained) {
  std::vector<at::Tensor> cast;
  for (const auto& [name, tensor] : tensors_of(module)) {
    if (was_cast_by_amp(tensor)) cast.push_back(tensor);
  }
  for (const auto& session : sessions_that_know(cast, nullptr))
    retire_optimizers(*session, cast, trained);  // before they are FP32
  for (at::Tensor& tensor : cast) {
    if (!is_low_precision(tensor.scalar_type())) continue;
    tensor.mutable_grad().reset();
    to_float32.cast(tensor);
  }
}

void forget_dead_tensors() {
  const std::lock_guard<std::mutex> lock(cast_records().mutex);
  cast_records().of.drop_expired();
}

namespace {

constexpr int kColumn = 22;

std::atomic<bool> prints_properties{true};

void print_row(const std::string& name, const std::string& value) {
  std::cout << "  " << std::left << std::setw(kColumn) << name << " : " << value << "\n";
}

void print_table(const opt_levels::Properties& properties) {
  for (const auto& [name, value] : opt_levels::describe(properties)) print_row(name, value);
}

void print_float8(const opt_levels::Settings& settings) {
  using opt_levels::detail::value_text;
  print_row("fp8", value_text(settings.fp8));
  print_row("fp8_gradients", value_text(settings.fp8_gradients));
  if (settings.fp8_convolutions) print_row("fp8_convolutions", "true");
  const auto modules = settings.bfloat16_modules.value_or(std::vector<std::string>());
  print_row("bfloat16_modules", modules.empty() ? "none" : opt_levels::detail::join(modules));
}

}  // namespace

void set_printing(bool on) { prints_properties = on; }

void print_properties(const opt_levels::OptLevel& level, const opt_levels::Settings& settings) {
  if (settings.verbosity <= 0 || !prints_properties) return;
  std::cout << "amp: opt level " << level.name() << ": " << level.description() << "\n"
            << "Properties that the level sets:\n";
  print_table(level.preset());
  std::cout << "Properties in force, with overrides:\n";
  print_table(settings.properties);
  // Not in Apex's table.
  if (settings.skip_nonfinite) print_row("skip_nonfinite", "true");
  if (settings.fp8 != opt_levels::Float8Recipe::none) print_float8(settings);
  std::cout << std::flush;
}

std::string describe_float8(const opt_levels::Settings& settings) {
  using opt_levels::detail::value_text;
  return "fp8 " + value_text(settings.fp8) + ", gradients " + value_text(settings.fp8_gradients) +
         (settings.fp8_convolutions ? ", with convolutions" : "");
}

void print_cpu_compute(const opt_levels::Settings& settings, c10::ScalarType type, bool in_float32, const std::string& reason) {
  if (settings.verbosity <= 0 || !prints_properties) return;
  std::cout << "amp: " << type << " operators on the CPU " << (in_float32 ? "compute in FP32" : "are native") << ": " << reason
            << std::endl;
}

void print_huge_pages_hint(const opt_levels::Settings& settings) {
  static std::atomic<bool> was_printed{false};
  if (settings.verbosity <= 0 || !prints_properties || was_printed.exchange(true)) return;
  std::cout << "amp: the model has CPU tensors of 32 MB or more: huge pages may shorten a step. Set huge_pages: true in the "
               "level's YAML, or APEX_CPP_HUGE_PAGES=on in the environment. With false or off this line is not printed."
            << std::endl;
}

void print_skipped_step(const Session& session, const Overflow& overflow, double scale_now) {
  if (session.settings.verbosity <= 0) return;
  std::cout << "amp: gradient overflow: " << describe(overflow.grad)
            << (overflow.nonfinite_loss ? ", of a loss that is not finite" : "") << ". Skipping step, loss scaler "
            << overflow.loss_id << " was at loss scale " << overflow.scale_before << " and is at " << scale_now << std::endl;
}

void print_line(const std::string& text) {
  const auto session = current_session();
  if (prints_properties && session && session->settings.verbosity > 0) std::cout << "amp: " << text << std::endl;
}

}  // namespace apex::amp::detail
