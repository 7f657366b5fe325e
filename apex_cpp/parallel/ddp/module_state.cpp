#include <apex_cpp/parallel/ddp/module_state.h>

#include <apex_cpp/amp/handles/forward_casts.h>
#include <apex_cpp/amp/session/amp_session.h>
#include <apex_cpp/amp/tensors/convert_network.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/parallel/processes/collectives.h>
#include <apex_cpp/torch_compat/autograd.h>

#include <functional>
#include <limits>
#include <sstream>
#include <string_view>
#include <utility>

namespace apex::parallel::detail {
namespace {

using torch::autograd::variable_list;

class CallsBack final : public torch::autograd::FunctionPostHook {
 public:
  CallsBack(GradHooks::Call call, size_t index) : call_(std::move(call)), index_(index) {}

  variable_list operator()(const variable_list& outputs, const variable_list&) override {
    call_(index_);
    return outputs;
  }

 private:
  GradHooks::Call call_;
  size_t index_;
};

}  // namespace

void GradHooks::add(const at::Tensor& param, size_t index, const Call& call) {
  auto accumulator = torch_compat::grad_accumulator(param);
  const uintptr_t key = accumulator->add_post_hook(std::make_unique<CallsBack>(call, index));
  hooks_.emplace(index, Hook{std::move(accumulator), key});
}

bool GradHooks::hears(const at::Tensor& param, size_t index) const {
  return torch_compat::existing_grad_accumulator(param) == hooks_.at(index).accumulator;
}

GradHooks::~GradHooks() {
  for (const auto& [index, hook] : hooks_) hook.accumulator->del_post_hook(hook.key);
}

namespace {

template <class Items>
std::vector<NamedTensor> each_once(const Items& items) {
  std::vector<NamedTensor> once;
  amp::detail::FirstSeen is_new;
  for (const auto& item : items) {
    if (is_new(item.value())) once.push_back({item.key(), item.value()});
  }
  return once;
}

void describe(const char* kind, const std::vector<NamedTensor>& named, std::ostream& text) {
  for (const auto& [name, tensor] : named) {
    text << kind << " '" << name << "', shape " << tensor.sizes() << ", ";
    tensor.layout() == at::kStrided ? text << "strides " << tensor.strides() : text << tensor.layout();
    text << ", " << tensor.scalar_type() << ", on " << tensor.device().type() << (tensor.requires_grad() ? ", trained" : "")
         << "\n";
  }
}

// The module's session, not the newest: a rank may have initialized another model alone.
std::shared_ptr<amp::detail::Session> session_within(const torch::nn::Module& module) {
  if (auto session = amp::detail::session_of(module)) return session;
  for (const auto& child : module.modules(/*include_self=*/false)) {
    if (auto session = amp::detail::session_of(*child)) return session;
  }
  return nullptr;
}

// Ranks with different loss scales, or scales that change at different steps, would compute different weights.
std::string amp_settings_text(const amp::detail::Session& session) {
  std::ostringstream text;
  text.precision(std::numeric_limits<double>::max_digits10);
  for (const auto& [name, value] : opt_levels::describe(session.settings.properties)) text << name << " " << value << "\n";
  text << "min_loss_scale " << session.settings.min_loss_scale.value_or(0) << "\nmax_loss_scale "
       << session.settings.max_loss_scale << "\n";
  text << amp::detail::describe_float8(session.settings) << "\n";
  if (const auto history = session.float8_history()) {
    const at::Tensor state = history->state().contiguous();
    const std::string_view bytes(static_cast<const char*>(state.const_data_ptr()), state.nbytes());
    text << "fp8 history of " << state.size(0) << " passes, hash " << std::hash<std::string_view>()(bytes) << "\n";
  }
  for (size_t i = 0; i < session.scalers.size(); ++i) {
    text << "loss " << i << ": a scale of " << session.scalers[i].loss_scale() << ", unchanged for "
         << session.scalers[i].unskipped() << " steps\n";
  }
  return text.str();
}

}  // namespace

std::vector<at::Tensor> tensors_of(const std::vector<NamedTensor>& named) {
  std::vector<at::Tensor> tensors;
  for (const auto& each : named) tensors.push_back(each.tensor);
  return tensors;
}

ModuleState::ModuleState(const torch::nn::Module& module)
    : params(each_once(module.named_parameters())),
      buffers(each_once(module.named_buffers())),
      session(session_within(module)) {}

namespace {

std::vector<bool> are_defined_on_all_ranks(const std::vector<at::Tensor>& tensors, const ProcessGroup& group) {
  at::Tensor flags = at::zeros({static_cast<int64_t>(tensors.size())}, at::kInt);
  auto values = flags.accessor<int32_t, 1>();
  for (size_t i = 0; i < tensors.size(); ++i) values[static_cast<int64_t>(i)] = tensors[i].defined();
  at::Tensor shared = flags.to(device_for(group));
  all_reduce(group, shared, "finding which master weights all ranks have", c10d::ReduceOp::MIN);
  flags.copy_(shared);
  std::vector<bool> defined;
  for (size_t i = 0; i < tensors.size(); ++i) defined.push_back(values[static_cast<int64_t>(i)] != 0);
  return defined;
}

}  // namespace

void ModuleState::share_masters(const ProcessGroup& group) const {
  if (!session || group->getSize() == 1) return;
  const auto sessions = amp::detail::sessions_that_know(tensors_of(params), session);  // parts may be models of other calls
  for (const auto& each : sessions) each->make_masters();
  std::vector<at::Tensor> weights, masters, shared;
  for (const auto& [name, param] : params) {
    if (!amp::detail::is_low_precision(param.scalar_type())) continue;
    weights.push_back(param);
    masters.push_back(amp::detail::master_values_of(param, sessions));
  }
  if (weights.empty()) return;
  const auto everywhere = are_defined_on_all_ranks(masters, group);
  for (size_t i = 0; i < masters.size(); ++i) {
    if (everywhere[i]) shared.push_back(masters[i] = masters[i].detach());
  }
  flat_dist_call(shared, broadcast_from(0, group, "broadcasting rank 0's master weights"));
  for (size_t i = 0; i < masters.size(); ++i) {
    if (!masters[i].defined()) continue;
    const at::Tensor value = everywhere[i] ? masters[i] : weights[i].detach().to(at::kFloat);
    for (const auto& each : sessions) each->load_master(weights[i], value);
  }
  for (const auto& each : sessions) each->drop_obsolete_master_backups();
}

void ModuleState::check_same_on_all_ranks(const ProcessGroup& group, const std::string& what) const {
  std::ostringstream text;
  describe("parameter", params, text);
  describe("buffer", buffers, text);
  try {
    expect_same(group, text.str(), what);
  } catch (c10::ValueError& error) {
    error.add_context("Ranks whose dtypes differ have most likely called amp::initialize at different opt levels.");
    throw;
  }
}

void ModuleState::check_same_amp_on_all_ranks(const ProcessGroup& group) const {
  try {
    expect_same(group, session ? amp_settings_text(*session) : "without amp\n", "amp's settings");
  } catch (c10::ValueError& error) {
    error.add_context("Call amp::initialize with the same level and options, and amp::load_checkpoint, on every rank.");
    throw;
  }
}

void ModuleState::check_trained_dtypes() const {
  for (const auto& [name, param] : params) {
    const auto dtype = param.scalar_type();
    TORCH_CHECK_TYPE(amp::detail::is_real_float(dtype) || !param.requires_grad(),
                     "DistributedDataParallel was given the trained parameter '", name, "' in ", dtype,
                     "; it averages float16, bfloat16, float32 and float64. Store a complex parameter as its "
                     "torch::view_as_real, or freeze it.");
  }
}

}  // namespace apex::parallel::detail
