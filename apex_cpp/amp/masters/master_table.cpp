#include <apex_cpp/amp/masters/master_table.h>

#include <apex_cpp/amp/casts.h>
#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>
#include <apex_cpp/amp/optimizer_classes/param_state.h>
#include <apex_cpp/amp/tensors/convert_network.h>
#include <apex_cpp/amp/tensors/parameters.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace apex::amp::detail {

void FormerMasters::add(const at::Tensor& param, const at::Tensor& master, GradSnapshot mark) {
  mark.forget_values();
  const Record record{Weak(param.getIntrusivePtr()), std::move(mark)};
  records_.set(param, record);
  records_.set(master, record);
}

std::optional<KnownParam> FormerMasters::find(const at::Tensor& tensor) const {
  const Record* found = records_.find(tensor);
  auto alive = found ? found->param.lock() : nullptr;
  if (!alive) return std::nullopt;
  return KnownParam{at::Tensor(std::move(alive)), found->mark};
}

namespace {

// On a CPU fresh memory costs more than the pass that writes it. Elsewhere torch's allocator has it at hand, for others too.
bool is_spare(const at::Tensor& grad, const at::Tensor& master) {
  return grad.defined() && grad.is_cpu() && grad.use_count() == 1 && grad.storage().use_count() == 1 &&
         grad.scalar_type() == at::kFloat && grad.sizes() == master.sizes() && grad.strides() == master.strides();
}

/// The elements of `exact` that `values` has in their rounded form, and those of `others` elsewhere.
at::Tensor exact_where_rounded(const at::Tensor& values, const at::Tensor& exact, const at::Tensor& others) {
  return at::where(values == exact.to(values.scalar_type()), exact, others);
}

}  // namespace

// A master that a load or the program has written to meanwhile has no earlier values to come back.
void TrainedParam::take_written_values(bool can_be_put_back) {
  if (written.still(param)) return;
  const disable_casts casts_off;
  const at::Tensor values = param.detach(), here = master.detach();
  if (!after.still(master)) before = can_be_put_back ? here.clone() : at::Tensor();
  at::Tensor others = values.to(at::kFloat);
  if (before.defined()) others = exact_where_rounded(values, before, others);
  here.copy_(exact_where_rounded(values, here, others));
  note_written();
  after = TensorVersion(master);
  if (!can_be_put_back) forget_before();
}

void TrainedParam::mark_written() {
  note_written();
  forget_before();
}

void TrainedParam::note_written() {
  written = TensorVersion(param);
  sample = ValueFingerprint(param);
}

void TrainedParam::forget_before() {
  before.reset();
  after = {};
}

at::Tensor TrainedParam::new_master_grad() {
  const at::Tensor spare = std::exchange(spare_grad, at::Tensor());
  return spare.defined() ? spare : at::empty_like(master);
}

void TrainedParam::drop_master_grad() {
  const at::Tensor grad = std::exchange(master.mutable_grad(), at::Tensor());
  if (is_spare(grad, master)) spare_grad = grad;
}

TrainedParam& MasterTable::add(const at::Tensor& param, const at::Tensor& master) {
  TrainedParam& entry = entries_.emplace_back();
  entry.param = param;
  entry.master = master;
  if (entry.has_master()) entry.mark_written();
  if (const GradSnapshot* early = early_marks_.find(param)) entry.mark = *early;
  early_marks_.erase(param);
  params_.insert(entry.has_master() ? params_.begin() + num_masters_++ : params_.end(), &entry);
  by_param_[param.unsafeGetTensorImpl()] = &entry;
  by_stepped_[entry.stepped().unsafeGetTensorImpl()] = &entry;
  return entry;
}

std::vector<TrainedParam*> MasterTable::not_in(const ParamGroups& groups) const {
  std::unordered_set<const at::TensorImpl*> held;
  for (const auto& group : groups) {
    for (const auto& tensor : group.params()) held.insert(tensor.unsafeGetTensorImpl());
  }
  const auto is_held = [&](const at::Tensor& tensor) { return held.count(tensor.unsafeGetTensorImpl()) > 0; };
  std::vector<TrainedParam*> found;
  for (TrainedParam* each : params_) {
    if (!is_held(each->stepped()) && !is_held(each->param)) found.push_back(each);
  }
  return found;
}

void MasterTable::forget(const std::vector<TrainedParam*>& gone) {
  const std::unordered_set<const TrainedParam*> going(gone.begin(), gone.end());
  for (const TrainedParam* each : gone) {
    drop_from(by_param_, each->param, each);
    drop_from(by_stepped_, each->stepped(), each);
    if (each->has_master()) former_.add(each->param, each->master, each->mark);
    num_masters_ -= each->has_master();
  }
  const auto goes = [&](const TrainedParam* each) { return going.count(each) > 0; };
  params_.erase(std::remove_if(params_.begin(), params_.end(), goes), params_.end());
  entries_.remove_if([&](const TrainedParam& each) { return goes(&each); });
}

void MasterTable::set_aside_grad_of(const at::Tensor& param) {
  if (!param.grad().defined()) return;
  TrainedParam* here = find(param);
  GradSnapshot& mark = here ? here->mark : early_marks_.at(param);
  mark = GradSnapshot(param.grad());
  mark.forget_values();
}

TrainedParam* MasterTable::find_in(const Index& index, const at::Tensor& tensor) {
  const auto found = index.find(tensor.unsafeGetTensorImpl());
  return found == index.end() ? nullptr : found->second;
}

void MasterTable::drop_from(Index& index, const at::Tensor& tensor, const TrainedParam* entry) {
  const auto found = index.find(tensor.unsafeGetTensorImpl());
  if (found != index.end() && found->second == entry) index.erase(found);
}

std::optional<KnownParam> MasterTable::known_param(const at::Tensor& tensor) const {
  const TrainedParam* here = find_stepped(tensor);
  if (here && here->has_master()) return KnownParam{here->param, here->mark};
  return former_.find(tensor);
}

TrainedParam* MasterTable::find(const at::Tensor& param) const { return find_in(by_param_, param); }
TrainedParam* MasterTable::find_stepped(const at::Tensor& tensor) const { return find_in(by_stepped_, tensor); }

TrainedParam* MasterTable::find_tied(const at::Tensor& param) const {
  const auto all = with_masters();
  const auto found =
      std::find_if(all.begin(), all.end(), [&](const TrainedParam* each) { return are_tied(each->param, param); });
  return found == all.end() ? nullptr : *found;
}

std::vector<TrainedParam*> MasterTable::with_masters_in(const ParamGroups& groups) const {
  std::vector<TrainedParam*> found;
  std::unordered_set<const TrainedParam*> seen;
  for (const auto& group : groups) {
    for (const auto& tensor : group.params()) {
      TrainedParam* entry = find_stepped(tensor);
      if (entry && entry->has_master() && seen.insert(entry).second) found.push_back(entry);
    }
  }
  return found;
}

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

void MasterWeightInit::check_can_adopt(const at::Tensor& param) const {
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

void MasterWeightInit::check_new_group(const std::vector<at::Tensor>& params) const {
  for (const auto& param : params) {
    check_can_adopt(param);
    TORCH_CHECK(!table_.find(param), "add_param_group: the parameter ", session_.name_of(param),
                " is in the optimizer already.");
  }
}

// MW-01: with masters a frozen parameter stays as it is, and everywhere one of a dtype that amp does not train.
bool MasterWeightInit::is_frozen(const at::Tensor& param) const {
  return !param.requires_grad() && (session_.has_masters() || !is_amp_float(param.scalar_type()));
}

bool MasterWeightInit::is_due(const ParamGroups& groups) const {
  if (!adopted_once_ || has_gone_ || !seen_.still(groups)) return true;
  return std::any_of(frozen_.begin(), frozen_.end(), [&](const at::Tensor& param) { return !is_frozen(param); });
}

std::vector<MasterWeightInit::NewParam> MasterWeightInit::new_params(ParamGroups& groups, const KnownParamOf& known_param_of,
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
void MasterWeightInit::list_params_once(ParamGroups& groups) {
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

void MasterWeightInit::adopt_new_params(torch::optim::Optimizer& optimizer, const KnownParamOf& known_param_of,
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

void MasterWeightInit::remember(const ParamGroups& groups) {
  seen_ = ParamGroupsSnapshot(groups);
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

std::vector<at::Tensor> MasterWeightInit::forget_gone_params(torch::optim::Optimizer& optimizer) {
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

void MasterWeightInit::adopt(torch::optim::Optimizer& optimizer, NewParam& param) {
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

void MasterWeightInit::give_master(torch::optim::Optimizer& optimizer, at::Tensor& param) {
  TrainedParam* tied = has_shared_memory(param) ? table_.find_tied(param) : nullptr;
  const at::Tensor values = tied ? tied->master.detach() : param.detach().clone().to(at::kFloat);
  const at::Tensor master = at::Tensor(values).requires_grad_();
  rekey_param_state(optimizer, param, master);
  table_.add(param, master).is_tied = tied;
  if (tied) tied->is_tied = true;
  param = master;
}

// The program may have written into the model's parameter in the meantime.
void MasterWeightInit::take_master_back(torch::optim::Optimizer& optimizer, const NewParam& param) {
  rekey_param_state(optimizer, param.known->param, param.place);
  TrainedParam& entry = table_.add(param.known->param, param.place);
  entry.mark = param.known->mark;
  entry.written = {};
}

}  // namespace apex::amp::detail
