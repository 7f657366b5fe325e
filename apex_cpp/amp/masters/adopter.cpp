#include <apex_cpp/amp/masters/adopter.h>

#include <apex_cpp/amp/optimizer_classes/param_state.h>
#include <apex_cpp/amp/optimizer_classes/sharded_optimizer.h>
#include <apex_cpp/amp/optimizer_classes/steps_masters.h>
#include <apex_cpp/amp/tensors/low_precision.h>

namespace apex::amp::detail {
namespace {

// The optimizer's view of the masters: the model params behind them, in its own groups' order.
void describe_copies(const MasterTable& table, const MasterTable::Groups& groups, MasterStep& step) {
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

std::vector<at::Tensor*> Adopter::new_params(torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor*> found;
  for (auto& group : optimizer.param_groups()) {
    found_groups_ = true;
    for (auto& param : group.params()) {
      if (!table_.find_stepped(param) && !is_frozen(param)) found.push_back(&param);
    }
  }
  return found;
}

// Parameters that came past add_param_group may be here already, as masters or as they are.
void Adopter::list_params_once(ParamGroups& groups) {
  if (!listed_once_.is_due(groups)) return;
  for (auto& group : groups) {
    for (at::Tensor& param : group.params()) {
      if (const TrainedParam* here = table_.find(param)) param = here->stepped();
    }
  }
  listed_once_.see_to(groups, [&](const at::Tensor& param) {
    const TrainedParam* here = table_.find_stepped(param);
    return session_.name_of(here ? here->param : param);
  });
}

void Adopter::adopt_new_params(torch::optim::Optimizer& optimizer) {
  list_params_once(optimizer.param_groups());
  const auto params = new_params(optimizer);
  const auto* sharded = dynamic_cast<const ShardedOptimizer*>(&optimizer);
  TORCH_CHECK(!sharded || sharded->keeps_masters() || !session_.has_masters(),
              "This opt level trains FP32 master weights, and the sharded optimizer was made with store_params(false). Leave "
              "store_params true, or give initialize master_weights(false).");
  for (const at::Tensor* param : params) check_can_adopt(*param);
  for (at::Tensor* param : params) adopt(optimizer, *param);
  adopted_once_ = true;
  if (params.empty() || !session_.has_masters()) return;
  match_state_to_params(optimizer);
  if (auto* fused = dynamic_cast<StepsMasters*>(&optimizer)) {
    describe_copies(table_, optimizer.param_groups(), fused->master_step);
  }
}

void Adopter::adopt(torch::optim::Optimizer& optimizer, at::Tensor& param) {
  const auto* sharded = dynamic_cast<const ShardedOptimizer*>(&optimizer);
  if (session_.has_masters() && is_low_precision(param.scalar_type()) && !sharded) return give_master(optimizer, param);
  // MW-06: gradients from before the masters existed are dropped with theirs.
  if (session_.has_masters() && !adopted_once_) param.mutable_grad().reset();
  table_.add(param, {});
}

void Adopter::give_master(torch::optim::Optimizer& optimizer, at::Tensor& param) {
  const at::Tensor master = param.detach().clone().to(at::kFloat).requires_grad_();
  rekey_param_state(optimizer, param, master);
  table_.add(param, master);
  param = master;
}

}  // namespace apex::amp::detail
