#include <apex_cpp/amp/masters/master_table.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/where.h>
#include <apex_cpp/amp/casts/disable_casts.h>
#include <apex_cpp/amp/tensors/model_tensors.h>

#include <algorithm>
#include <unordered_set>
#include <utility>

namespace apex::amp::detail {
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
  after = TensorTrace(master);
  if (!can_be_put_back) forget_before();
}

void TrainedParam::mark_written() {
  note_written();
  forget_before();
}

void TrainedParam::note_written() {
  written = TensorTrace(param);
  sample = ValueSample(param);
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
  if (const GradMark* early = early_marks_.find(param)) entry.mark = *early;
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
  GradMark& mark = here ? here->mark : early_marks_.at(param);
  mark = GradMark(param.grad());
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

}  // namespace apex::amp::detail
