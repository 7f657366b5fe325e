#include <apex_cpp/amp/masters/adopter.h>

#include <apex_cpp/amp/optimizer_classes/param_state.h>
#include <apex_cpp/amp/optimizer_classes/sharded_optimizer.h>
#include <apex_cpp/amp/optimizer_classes/steps_masters.h>
#include <apex_cpp/amp/tensors/low_precision.h>
#include <apex_cpp/amp/tensors/model_tensors.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <unordered_set>

namespace apex::amp::detail {
namespace {

// The optimizer's view of the masters: the model params behind them, in its own groups' order.
void describe_copies(const MasterTable& table, const ParamGroups& groups, MasterStep& step) {
  step.model_params.clear();
  for (const auto& group : groups) {
    auto& copies = step.model_params.emplace_back(group.params().size());
    for (size_t i = 0; i < copies.size(); ++i) {
      const TrainedParam* entry = table.find_stepped(group.params()[i]);
      if (entry && entry->has_master()) copies[i] = entry->param;
    }
  }
}

}  // namespace

void Adopter::check_can_adopt(const at::Tensor& param) const {
  if (!param.requires_grad()) return;
  TORCH_CHECK_TYPE(is_amp_float(param.scalar_type()), "The optimizer's parameter ", session_.name_of(param), " has dtype ",
                   param.scalar_type(),
                   "; amp trains float32, float16 and bfloat16 parameters. Convert it to float32 before amp::initialize, or "
                   "leave it to an optimizer of its own.");
  if (!session_.has_masters()) return;
  const TrainedParam* here = table_.find(param);
  const bool shared = !(here && here->has_master()) && session_.master_of(param).defined();
  TORCH_CHECK(!shared, "Another optimizer of this amp::initialize keeps the master weight of ", session_.name_of(param),
              ", and two masters of one parameter would write over each other. Give each parameter to one optimizer.");
}

void Adopter::check_new_group(const std::vector<at::Tensor>& params) const {
  for (const auto& param : params) {
    check_can_adopt(param);
    TORCH_CHECK(!table_.find(param), "add_param_group: the parameter ", session_.name_of(param),
                " is in the optimizer already.");
  }
}

// MW-01: with masters a frozen parameter stays as it is, and everywhere one of a dtype that amp does not train.
bool Adopter::is_frozen(const at::Tensor& param) const {
  return !param.requires_grad() && (session_.has_masters() || !is_amp_float(param.scalar_type()));
}

bool Adopter::is_due(const ParamGroups& groups) const {
  if (!adopted_once_ || has_gone_ || !seen_.still(groups)) return true;
  return std::any_of(frozen_.begin(), frozen_.end(), [&](const at::Tensor& param) { return !is_frozen(param); });
}

std::vector<Adopter::NewParam> Adopter::new_params(ParamGroups& groups, const KnownParamOf& known_param_of,
                                                   const std::vector<at::Tensor>& once_trained) {
  std::unordered_set<const at::TensorImpl*> thawed;
  for (const at::Tensor& param : once_trained) {
    if (is_low_precision(param.scalar_type()) && !session_.master_of(param).defined())
      thawed.insert(param.unsafeGetTensorImpl());
  }
  std::vector<NewParam> found;
  for (auto& group : groups) {
    for (auto& param : group.params()) {
      const bool is_trained = !is_frozen(param) || thawed.count(param.unsafeGetTensorImpl()) > 0;
      if (is_trained && !table_.find_stepped(param)) found.push_back({param, known_param_of(param)});
    }
  }
  return found;
}

// Parameters that came past add_param_group may be here already, as masters, as former ones, or as they are.
void Adopter::list_params_once(ParamGroups& groups) {
  for (auto& group : groups) {
    for (at::Tensor& param : group.params()) {
      if (table_.find_stepped(param)) continue;
      const auto known = table_.known_param(param);
      if (const TrainedParam* here = table_.find(known ? known->param : param)) param = here->stepped();
    }
  }
  detail::list_params_once(groups, [&](const at::Tensor& param) {
    const TrainedParam* here = table_.find_stepped(param);
    return session_.name_of(here ? here->param : param);
  });
}

void Adopter::adopt_new_params(torch::optim::Optimizer& optimizer, const KnownParamOf& known_param_of,
                               const std::vector<at::Tensor>& once_trained) {
  const c10::InferenceMode off(false);  // masters and state that are made in it could not be stepped outside of it
  auto& groups = optimizer.param_groups();
  found_groups_ = found_groups_ || !groups.empty();
  list_params_once(groups);
  auto params = new_params(groups, known_param_of, once_trained);
  const auto* sharded = dynamic_cast<const ShardedOptimizer*>(&optimizer);
  TORCH_CHECK(!sharded || sharded->keeps_masters() || !session_.has_masters(),
              "This opt level trains FP32 master weights, and the sharded optimizer was made with store_params(false). Leave "
              "store_params true, or give initialize master_weights(false).");
  for (const NewParam& each : params) check_can_adopt(each.param());
  for (NewParam& each : params) adopt(optimizer, each);
  adopted_once_ = true;
  remember(groups);
  if (!session_.has_masters()) return;
  if (!params.empty()) match_state_to_params(optimizer, /*has_masters=*/true);
  if (auto* fused = dynamic_cast<StepsMasters*>(&optimizer)) describe_copies(table_, groups, fused->master_step);
}

void Adopter::remember(const ParamGroups& groups) {
  seen_ = SeenGroups(groups);
  frozen_.clear();
  size_t taken = 0;
  for (const auto& group : groups) {
    for (const at::Tensor& param : group.params()) {
      if (table_.find_stepped(param)) {
        ++taken;
      } else {
        frozen_.push_back(param);
      }
    }
  }
  has_gone_ = taken < table_.all().size();
}

std::vector<at::Tensor> Adopter::forget_gone_params(torch::optim::Optimizer& optimizer) {
  if (!is_due(optimizer.param_groups())) return {};
  const auto gone = table_.not_in(optimizer.param_groups());
  std::vector<at::Tensor> params;
  for (const TrainedParam* each : gone) {
    if (each->has_master()) rekey_param_state(optimizer, each->master, each->param);
    params.push_back(each->param);
  }
  table_.forget(gone);
  return params;
}

void Adopter::adopt(torch::optim::Optimizer& optimizer, NewParam& param) {
  const auto* sharded = dynamic_cast<const ShardedOptimizer*>(&optimizer);
  if (param.is_master()) return take_master_back(optimizer, param);
  if (session_.has_masters() && is_low_precision(param.place.scalar_type()) && !sharded) {
    give_master(optimizer, param.place);
    if (param.known) table_.find_stepped(param.place)->mark = param.known->mark;
    return;
  }
  // MW-06: gradients from before the masters existed are dropped with theirs.
  if (session_.has_masters() && !adopted_once_) param.place.mutable_grad().reset();
  table_.add(param.place, {});
}

void Adopter::give_master(torch::optim::Optimizer& optimizer, at::Tensor& param) {
  TrainedParam* tied = has_shared_memory(param) ? table_.find_tied(param) : nullptr;
  const at::Tensor values = tied ? tied->master.detach() : param.detach().clone().to(at::kFloat);
  const at::Tensor master = at::Tensor(values).requires_grad_();
  rekey_param_state(optimizer, param, master);
  table_.add(param, master).is_tied = tied;
  if (tied) tied->is_tied = true;
  param = master;
}

// The program may have written into the model's parameter in the meantime.
void Adopter::take_master_back(torch::optim::Optimizer& optimizer, const NewParam& param) {
  rekey_param_state(optimizer, param.known->param, param.place);
  TrainedParam& entry = table_.add(param.known->param, param.place);
  entry.mark = param.known->mark;
  entry.written = {};
}

}  // namespace apex::amp::detail
