#include <apex_cpp/amp/masters/master_table.h>

#include <apex_cpp/amp/casts.h>
#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>
#include <apex_cpp/amp/optimizer_classes/param_state.h>
#include <apex_cpp/amp/tensors/convert_network.h>
#include <apex_cpp/amp/tensors/parameters.h>

#include <ATen/ops/empty_like.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <unordered_map>
#include <unordered_set>
#include <utility>

namespace apex::amp::detail {

void FormerMasters::add(const at::Tensor& param, const at::Tensor& master, LastGrads last_grads) {
  last_grads.model.forget_values();
  const Record record{Weak(param.getIntrusivePtr()), std::move(last_grads)};
  records_.set(param, record);
  records_.set(master, record);
}

std::optional<KnownParam> FormerMasters::find(const at::Tensor& tensor) const {
  const Record* found = records_.find(tensor);
  auto alive = found ? found->param.lock() : nullptr;
  if (!alive) return std::nullopt;
  return KnownParam{at::Tensor(std::move(alive)), found->last_grads};
}

namespace {

// A CPU needs longer to map fresh memory than to write a gradient. On other devices torch's caching allocator reuses memory.
bool is_spare(const at::Tensor& grad, const at::Tensor& master) {
  return grad.defined() && grad.is_cpu() && grad.use_count() == 1 && grad.storage().use_count() == 1 &&
         grad.scalar_type() == at::kFloat && grad.sizes() == master.sizes() && grad.strides() == master.strides();
}

}  // namespace

// Replaces a backup that is obsolete, since the master was written. The program may restore the weight until the next step, as
// after an evaluation with averaged weights.
void TrainedParam::update_master_from_edits(bool may_be_restored) {
  const bool in_doubt = std::exchange(may_be_edited, false);
  const bool master_counts = in_doubt && master_was_written() && !loaded_master.matches(master);
  const bool unwritten = synced_weight.has_version_of(param);
  if (unwritten && (!in_doubt || (master_counts && !synced_weight.shows_hidden_write(param)))) return;
  const disable_casts casts_off;
  const at::Tensor values = param.detach(), exact = master.detach();
  if (!backup.defined() || master_was_written()) backup = may_be_restored ? exact.clone() : at::Tensor();
  at::Tensor edits = values.to(at::kFloat);
  if (backup.defined()) edits = exact_where_rounded(values, backup, edits, dtype);
  exact.copy_(exact_where_rounded(values, exact, edits, dtype));
  synced_weight = WeightRecord(param);
  synced_master = TensorVersion(master);
  if (!may_be_restored) drop_backup();
}

void TrainedParam::mark_synced() {
  synced_weight = WeightRecord(param);
  synced_master = TensorVersion(master);
  may_be_edited = false;
  drop_backup();
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
  entry.dtype = param.scalar_type();
  entry.master = master;
  if (entry.has_master()) entry.seen_at = param.const_data_ptr();
  entry.has_master() ? entry.mark_synced() : void(entry.added_grad = TensorVersion(param.grad()));
  if (const GradSnapshot* grad = preexisting_grads_.find(param)) entry.last_grads.model = *grad;
  preexisting_grads_.erase(param);
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
    if (each->has_master()) former_.add(each->param, each->master, each->last_grads);
    num_masters_ -= each->has_master();
  }
  const auto goes = [&](const TrainedParam* each) { return going.count(each) > 0; };
  params_.erase(std::remove_if(params_.begin(), params_.end(), goes), params_.end());
  entries_.remove_if([&](const TrainedParam& each) { return goes(&each); });
}

void MasterTable::mark_grad_as_preexisting(const at::Tensor& param) {
  if (!param.grad().defined()) return;
  TrainedParam* here = find(param);
  GradSnapshot& snapshot = here ? here->last_grads.model : preexisting_grads_.at(param);
  snapshot = GradSnapshot(param.grad());
  snapshot.forget_values();
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
  if (here && here->has_master()) return KnownParam{here->param, here->last_grads};
  return former_.find(tensor);
}

TrainedParam* MasterTable::find(const at::Tensor& param) const { return find_in(by_param_, param); }
TrainedParam* MasterTable::find_stepped(const at::Tensor& tensor) const { return find_in(by_stepped_, tensor); }

TrainedParam* MasterTable::find_tied(const at::Tensor& param) const {
  const auto all = with_masters();
  const auto found = std::find_if(all.begin(), all.end(), [&](const TrainedParam* each) {
    return !each->param.is_same(param) && are_tied(each->param, param);
  });
  return found == all.end() ? nullptr : *found;
}

void MasterTable::match_ties() const {
  const auto all = with_masters();
  if (std::none_of(all.begin(), all.end(), [](const TrainedParam* each) { return each->has_moved(); })) return;
  const c10::InferenceMode off(false);
  for (TrainedParam* each : all) {
    if (!each->has_moved()) continue;
    each->seen_at = each->param.const_data_ptr();
    if (each->is_tied) each->master.set_data(each->master.detach().clone());
    const bool has_shape = each->master.sizes() == each->param.sizes();  // another one is an error of the next block
    const TrainedParam* const other = has_shape && has_shared_memory(each->param) ? find_tied(each->param) : nullptr;
    if (other) each->master.set_data(other->master.detach());
  }
  std::unordered_map<const void*, int> uses;
  for (const TrainedParam* each : all) ++uses[each->master.const_data_ptr()];
  for (TrainedParam* each : all) each->is_tied = each->master.numel() > 0 && uses[each->master.const_data_ptr()] > 1;
}

void MasterTable::match_layouts() const {
  std::unordered_map<const void*, at::Tensor> tied;  // by the memory that the masters shared
  for (TrainedParam* each : with_masters()) {
    const bool is_same_layout = each->master.strides() == each->param.strides();
    if (is_same_layout || !each->param.is_non_overlapping_and_dense()) continue;
    const void* const before = each->master.const_data_ptr();
    const auto found = each->is_tied ? tied.find(before) : tied.end();
    each->master.set_data(found != tied.end() ? found->second : in_layout_of(each->master.detach(), each->param));
    if (each->is_tied) tied.emplace(before, each->master.detach());
  }
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

// Fills `step.model_params`: the model parameter of each master, in the order of the groups.
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
  TORCH_CHECK_TYPE(
      is_amp_float(param.scalar_type()), "The optimizer's parameter ", session_.name_of(param), " has dtype ",
      param.scalar_type(),
      "; amp trains float32, float16 and bfloat16 parameters. Convert it to float32 before amp::initialize, or "
      "leave it to an optimizer of its own, and divide its gradients by the loss scale before its step, which must "
      "be left out if they are not finite.");
  if (!session_.has_masters()) return;
  const TrainedParam* here = table_.find(param);
  const bool shared = !(here && here->has_master()) && session_.master_of(param).defined();
  TORCH_CHECK(!shared, "Another optimizer of this amp::initialize keeps the master weight of ", session_.name_of(param),
              ", and two masters of one parameter would overwrite each other. Give each parameter to one optimizer.");
}

void MasterWeightInit::check_new_group(const std::vector<at::Tensor>& params) const {
  for (const auto& param : params) {
    check_can_adopt(param);
    const bool is_here = table_.find(param) || std::any_of(frozen_.begin(), frozen_.end(),
                                                           [&](const at::Tensor& each) { return each.is_same(param); });
    TORCH_CHECK(!is_here, "add_param_group: the parameter ", session_.name_of(param), " is in the optimizer already.");
  }
}

// MW-01: with masters every frozen parameter stays unchanged; without, only those of a dtype that amp does not train.
bool MasterWeightInit::is_frozen(const at::Tensor& param) const {
  return !param.requires_grad() && (session_.has_masters() || !is_amp_float(param.scalar_type()));
}

bool MasterWeightInit::is_due(const ParamGroups& groups) const {
  if (!adopted_once_ || has_gone_ || !seen_.matches(groups)) return true;
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

// Groups changed without add_param_group may hold known parameters again, by their masters or by themselves.
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
  const c10::InferenceMode off(false);  // inference tensors could not be stepped outside inference mode
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
  const auto* fused = dynamic_cast<const StepsMasters*>(&optimizer);
  const bool keeps_its_own = sharded || (fused && fused->keeps_masters_of(param.place.scalar_type()));
  if (param.is_master()) return take_master_back(optimizer, param);
  if (session_.has_masters() && is_low_precision(param.place.scalar_type()) && !keeps_its_own) {
    give_master(optimizer, param.place);
    if (param.known) table_.find_stepped(param.place)->last_grads.model = param.known->last_grads.model;
    return;
  }
  // MW-06: gradients from before the first masters are dropped, also for native parameters.
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

// The program may have edited the model's parameter in the meantime, or dropped its gradient.
void MasterWeightInit::take_master_back(torch::optim::Optimizer& optimizer, const NewParam& param) {
  rekey_param_state(optimizer, param.known->param, param.place);
  TrainedParam& entry = table_.add(param.known->param, param.place);
  entry.last_grads = param.known->last_grads;
  const at::Tensor& grad = entry.param.grad();
  const bool is_from_model = entry.last_grads.master.same_memory(entry.master.grad());
  if (is_from_model && entry.last_grads.model.was_dropped(grad)) {
    grad.defined() ? void(entry.master.mutable_grad().zero_()) : entry.drop_master_grad();
  }
  entry.seen_at = nullptr;
  entry.synced_weight = {};
}

}  // namespace apex::amp::detail
