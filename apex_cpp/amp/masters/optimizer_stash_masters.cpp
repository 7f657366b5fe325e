// Which parameters have masters, and the masters' values and gradients (MW-*, APG-*).
#include <apex_cpp/amp/masters/optimizer_stash.h>

#include <ATen/ops/empty_like.h>

#include <apex_cpp/amp/optimizer_classes/param_state.h>
#include <apex_cpp/amp/tensors/low_precision.h>

#include "kernels/multi_tensor.h"

namespace apex::amp::detail {
namespace {

bool is_trainable(const at::Tensor& tensor) {
  return is_low_precision(tensor.scalar_type()) || tensor.scalar_type() == at::kFloat;
}

}  // namespace

void OptimizerStash::check_can_adopt(const at::Tensor& param) const {
  if (!param.requires_grad()) return;
  TORCH_CHECK_TYPE(is_trainable(param), "The optimizer's parameter ", session_->name_of(param), " has dtype ",
                   param.scalar_type(),
                   "; amp trains float32, float16 and bfloat16 parameters. Convert it to float32 before amp::initialize, or "
                   "leave it to an optimizer of its own.");
  const bool shared = session_->has_masters() && !master_of(param).defined() && session_->master_of(param).defined();
  TORCH_CHECK(!shared, "Another optimizer of this amp::initialize keeps the master weight of ", session_->name_of(param),
              ", and two masters of one parameter would write over each other. Give each parameter to one optimizer.");
}

void OptimizerStash::check_disjoint(const OptimizerStash& other) const {
  for (const auto& param : trained_params()) {
    TORCH_CHECK(!other.adopted_impls_.count(param.unsafeGetTensorImpl()),
                "amp::scale_loss was given two optimizers that both train ", session_->name_of(param),
                "; its gradient would be unscaled twice. Pass the optimizer that steps next.");
  }
}

void OptimizerStash::check_new_group(const std::vector<at::Tensor>& params) const {
  for (const auto& param : params) {
    check_can_adopt(param);
    TORCH_CHECK(!adopted_impls_.count(param.unsafeGetTensorImpl()), "add_param_group: the parameter ", session_->name_of(param),
                " is in the optimizer already.");
  }
}

// MW-01: with masters a frozen parameter stays as it is, and everywhere one of a dtype that amp does not train.
bool OptimizerStash::is_frozen(const at::Tensor& param) const {
  return !param.requires_grad() && (session_->has_masters() || !is_trainable(param));
}

std::vector<OptimizerStash::Place> OptimizerStash::new_params() {
  std::vector<Place> found;
  auto& groups = handle()->param_groups();
  adopted_.resize(groups.size());
  for (size_t i = 0; i < groups.size(); ++i) {
    auto& params = groups[i].params();
    adopted_[i].resize(params.size(), false);
    for (size_t j = 0; j < params.size(); ++j) {
      if (!adopted_[i][j] && !is_frozen(params[j])) found.push_back({i, j});
    }
  }
  return found;
}

void OptimizerStash::adopt_new_params() {
  if (!session_->enabled()) return;
  const auto places = new_params();
  auto& groups = handle()->param_groups();
  for (const auto& [group, position] : places) check_can_adopt(groups[group].params()[position]);
  for (const auto& [group, position] : places) {
    adopt(groups[group].params()[position], !adopted_once_);
    adopted_[group][position] = true;
  }
  adopted_once_ = true;
  if (places.empty() || !session_->has_masters()) return;
  match_state_to_params(*handle());
  if (fused()) describe_copies();
}

// The optimizer's view of the masters: the model params behind them, in its own groups' order.
void OptimizerStash::describe_copies() {
  const auto index = positions_of_masters();
  auto& copies = fused()->master_step.model_params;
  copies.clear();
  for (const auto& group : handle()->param_groups()) {
    copies.emplace_back(group.params().size());
    for (size_t i = 0; i < group.params().size(); ++i) {
      const auto found = index.find(group.params()[i].unsafeGetTensorImpl());
      if (found != index.end()) copies.back()[i] = model_params_[found->second];
    }
  }
}

void OptimizerStash::adopt(at::Tensor& param, bool first_time) {
  if (!adopted_impls_.insert(param.unsafeGetTensorImpl()).second) {
    // A tied parameter that stands in the groups twice: it has one master.
    if (const at::Tensor master = master_of(param); master.defined()) param = master;
    return;
  }
  if (session_->has_masters() && is_low_precision(param.scalar_type())) return give_master(param);
  // MW-06: gradients from before the masters existed are dropped with theirs.
  if (session_->has_masters() && first_time) param.mutable_grad().reset();
  native_params_.push_back(param);
  native_stash_.emplace_back();
}

void OptimizerStash::give_master(at::Tensor& param) {
  const at::Tensor master = param.detach().clone().to(at::kFloat).requires_grad_();
  rekey_param_state(*handle(), param, master);
  master_index_[param.unsafeGetTensorImpl()] = masters_.size();
  model_params_.push_back(param);
  masters_.push_back(master);
  model_grad_marks_.emplace_back();
  spare_grads_.emplace_back();
  param = master;
}

at::Tensor OptimizerStash::master_of(const at::Tensor& param) const {
  const auto found = master_index_.find(param.unsafeGetTensorImpl());
  return found == master_index_.end() ? at::Tensor() : masters_[found->second];
}

std::unordered_map<const at::TensorImpl*, size_t> OptimizerStash::positions_of_masters() const {
  std::unordered_map<const at::TensorImpl*, size_t> positions;
  for (size_t i = 0; i < masters_.size(); ++i) positions[masters_[i].unsafeGetTensorImpl()] = i;
  return positions;
}

std::vector<size_t> OptimizerStash::masters_by_group() const {
  auto index = positions_of_masters();
  std::vector<size_t> order;
  for (const auto& group : left_behind_->handle->param_groups()) {
    for (const auto& param : group.params()) {
      const auto found = index.find(param.unsafeGetTensorImpl());
      if (found == index.end()) continue;
      order.push_back(found->second);
      index.erase(found);
    }
  }
  return order;
}

std::vector<at::Tensor> OptimizerStash::masters() const {
  std::vector<at::Tensor> masters;
  for (const size_t i : masters_by_group()) masters.push_back(masters_[i]);
  return masters;
}

std::vector<at::Tensor> OptimizerStash::model_params() const {
  std::vector<at::Tensor> params;
  for (const size_t i : masters_by_group()) params.push_back(model_params_[i]);
  return params;
}

std::vector<at::Tensor> OptimizerStash::trained_params() const {
  std::vector<at::Tensor> params = model_params_;
  params.insert(params.end(), native_params_.begin(), native_params_.end());
  return params;
}

void OptimizerStash::check_masters_fit(const std::vector<at::Tensor>& values) const {
  const auto order = masters_by_group();
  TORCH_CHECK(values.size() == order.size(), "The saved optimizer has ", values.size(), " master weights, this one has ",
              order.size(), ". Load it into an optimizer over the same parameters at the same opt level.");
  for (size_t i = 0; i < values.size(); ++i) {
    const at::Tensor& master = masters_[order[i]];
    TORCH_CHECK(values[i].sizes() == master.sizes(), "The saved master weight of ", session_->name_of(model_params_[order[i]]),
                " has shape ", values[i].sizes(), ", expected ", master.sizes(), ".");
  }
}

void OptimizerStash::load_masters(const std::vector<at::Tensor>& values) {
  at::NoGradGuard no_grad;
  const auto order = masters_by_group();
  for (size_t i = 0; i < values.size(); ++i) masters_[order[i]].copy_(values[i]);
}

void OptimizerStash::copy_masters_to_model() {
  at::NoGradGuard no_grad;
  kernels::multi_tensor_copy(masters_, model_params_);
}

void OptimizerStash::drop_master_grads() {
  for (size_t i = 0; i < masters_.size(); ++i) {
    const at::Tensor grad = std::exchange(masters_[i].mutable_grad(), at::Tensor());
    if (is_spare(grad, masters_[i])) spare_grads_[i] = grad;
  }
}

// On a CPU fresh memory costs more than the pass that writes it. Elsewhere torch's allocator has it at hand, for others too.
bool OptimizerStash::is_spare(const at::Tensor& grad, const at::Tensor& master) {
  return grad.defined() && grad.is_cpu() && grad.use_count() == 1 && grad.storage().use_count() == 1 &&
         grad.scalar_type() == at::kFloat && grad.sizes() == master.sizes() && grad.strides() == master.strides();
}

at::Tensor OptimizerStash::new_master_grad(size_t i) {
  const at::Tensor spare = std::exchange(spare_grads_[i], at::Tensor());
  return spare.defined() ? spare : at::empty_like(masters_[i]);
}

}  // namespace apex::amp::detail
