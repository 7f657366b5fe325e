#include <apex_cpp/fp16_utils/param_lists.h>

#include <apex_cpp/amp/optimizer_classes/param_state.h>
#include <apex_cpp/amp/tensors/convert_network.h>
#include <apex_cpp/amp/tensors/gradients.h>
#include <apex_cpp/amp/tensors/parameters.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <ostream>

namespace apex::fp16_utils::detail {
namespace {

using amp::detail::is_low_precision;

// Names a parameter by its position in an optimizer.
struct Place {
  const at::Tensor& param;
  size_t group, position;
};

std::ostream& operator<<(std::ostream& out, const Place& place) {
  return out << "parameter " << place.position << " of group " << place.group << ", of shape " << place.param.sizes();
}

void check_supported(const Place& place) {
  const at::Tensor& param = place.param;
  const bool is_16bit = is_low_precision(param.scalar_type());
  TORCH_CHECK_TYPE(is_16bit || param.scalar_type() == at::kFloat, "FP16_Optimizer: ", place, ", has dtype ",
                   param.scalar_type(),
                   "; expected float16, bfloat16 or float32. Convert it, or leave it to an optimizer of its own, and divide "
                   "its gradients by the loss scale before its step, which must be left out if they are not finite.");
  TORCH_CHECK_VALUE(!is_16bit || param.is_non_overlapping_and_dense(), "FP16_Optimizer: ", place, " and strides ",
                    param.strides(),
                    ", has gaps or repeats in memory, and its master could not be copied back. Make it contiguous().");
}

// A parameter that is listed twice is no tie.
void check_not_tied(const Place& place, const std::vector<at::Tensor>& others) {
  const at::Tensor& param = place.param;
  const auto is_tied = [&](const at::Tensor& other) { return !other.is_same(param) && amp::detail::are_tied(param, other); };
  TORCH_CHECK_VALUE(
      !is_low_precision(param.scalar_type()) || std::none_of(others.begin(), others.end(), is_tied), "FP16_Optimizer: ", place,
      ", shares its memory with another one, as set_data ties them, and their masters would overwrite each "
      "other. Register one parameter in both modules, or train with amp::initialize and torch::optim, which keep ties.");
}

}  // namespace

at::Tensor TrainedParam::edited_master() const {
  const at::Tensor exact = stepped.detach(), values = param.detach();
  if (!is_edited()) return exact;
  return amp::detail::exact_where_rounded(values, exact, values.to(at::kFloat), dtype);
}

// Kernels walk the memory of a parameter and its master together.
void TrainedParam::take_edits() {
  if (!is_edited()) return;
  stepped.detach().copy_(edited_master());
  if (stepped.strides() != param.strides()) stepped.set_data(amp::detail::in_layout_of(stepped.detach(), param));
  mark_synced();
}

template <class Groups, class F>
void TrainedParams::for_each_new(Groups& groups, const F& f) const {
  for (size_t group = 0; group < groups.size(); ++group) {
    auto& params = groups[group].params();
    for (size_t i = 0; i < params.size(); ++i) {
      if (is_new(params[i])) f(params[i], Place{params[i], group, i});
    }
  }
}

void TrainedParams::add_new(torch::optim::Optimizer& optimizer) {
  auto& groups = optimizer.param_groups();
  Tensors fresh;
  for_each_new(groups, [&](const at::Tensor& param, const Place& place) {
    check_supported(place);
    check_not_tied(place, model_params_);
    check_not_tied(place, fresh);
    fresh.push_back(param);
  });
  list_again(groups);
  const size_t before = by_tensor_.size();
  for_each_new(groups, [&](at::Tensor& param, const Place&) { add(optimizer, param); });
  if (by_tensor_.size() == before) return;
  sort_by(groups);
  amp::detail::match_state_to_params(optimizer, /*has_masters=*/true);
}

void TrainedParams::follow_groups(torch::optim::Optimizer& optimizer) {
  auto& groups = optimizer.param_groups();
  for_each_new(groups, [](const at::Tensor& param, const Place& place) {
    TORCH_CHECK(!param.grad().defined(), "FP16_Optimizer::step: ", place,
                ", was added or unfrozen after the backward pass, and its gradient may carry the loss scale. Add and unfreeze "
                "parameters before backward(), or call zero_grad() and backward() again.");
  });
  list_again(groups);
}

void TrainedParams::take_edits() {
  for (const at::Tensor& master : masters_) find(master)->take_edits();
}

void TrainedParams::mark_synced() {
  for (const at::Tensor& master : masters_) find(master)->mark_synced();
}

TrainedParam* TrainedParams::find(const at::Tensor& tensor) const {
  const auto found = by_tensor_.find(tensor.unsafeGetTensorImpl());
  return found == by_tensor_.end() ? nullptr : found->second;
}

// If a known parameter is added to a group again, its master replaces it. A parameter that was removed must leave the lists:
// another optimizer may train it, and each step here would overwrite it with its old master.
void TrainedParams::list_again(ParamGroups& groups) {
  if (!unique_groups_.is_due(groups)) return;
  ParamGroups listed;
  for (const auto& group : groups) {
    Tensors& params = listed.emplace_back(group.params()).params();
    for (at::Tensor& param : params) {
      if (const TrainedParam* here = find(param)) param = here->stepped;
    }
  }
  unique_groups_.update(listed);
  for (size_t i = 0; i < groups.size(); ++i) groups[i].params() = listed[i].params();
  sort_by(groups);
}

void TrainedParams::add(torch::optim::Optimizer& optimizer, at::Tensor& param) {
  TrainedParam taken;
  taken.param = taken.stepped = param;
  taken.dtype = param.scalar_type();
  if (is_low_precision(param.scalar_type())) {
    taken.stepped = param.detach().clone().to(at::kFloat).requires_grad_();
    taken.mark_synced();
    amp::detail::rekey_param_state(optimizer, param, taken.stepped);
  }
  param = taken.stepped;
  TrainedParam& entry = entries_.emplace_back(std::move(taken));
  by_tensor_[entry.param.unsafeGetTensorImpl()] = by_tensor_[entry.stepped.unsafeGetTensorImpl()] = &entry;
}

std::vector<TrainedParam*> TrainedParams::trained_in(const ParamGroups& groups) const {
  std::vector<TrainedParam*> found;
  amp::detail::FirstSeen is_first;  // the groups may hold a parameter beside its master
  for (const at::Tensor& tensor : amp::detail::params_of(groups)) {
    TrainedParam* here = find(tensor);
    if (here && is_first(here->stepped)) found.push_back(here);
  }
  return found;
}

void TrainedParams::sort_by(const ParamGroups& groups) {
  for (Tensors* list : {&model_params_, &masters_, &native_}) list->clear();
  for (const TrainedParam* each : trained_in(groups)) {
    (each->has_master() ? masters_ : native_).push_back(each->stepped);
    if (each->has_master()) model_params_.push_back(each->param);
  }
}

}  // namespace apex::fp16_utils::detail

namespace apex::fp16_utils {
namespace {

using Tensors = std::vector<at::Tensor>;

void check_defined(const char* caller, const char* list, const Tensors& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    TORCH_CHECK(tensors[i].defined(), "fp16_utils::", caller, ": ", list, "[", i,
                "] is undefined. Pass the lists that prep_param_lists returned.");
  }
}

void check_shapes(const char* caller, const Tensors& model, const Tensors& masters) {
  for (size_t i = 0; i < model.size(); ++i) {
    TORCH_CHECK(masters[i].sizes() == model[i].sizes(), "fp16_utils::", caller, ": master_params[", i, "] has shape ",
                masters[i].sizes(), ", and model_params[", i, "] has ", model[i].sizes(),
                ". Pass the lists that prep_param_lists returned, in their order.");
  }
}

void check_flat_shape(const char* caller, const Tensors& model, const at::Tensor& master) {
  int64_t elements = 0;
  for (const auto& param : model) elements += param.numel();
  TORCH_CHECK(master.dim() == 1 && master.numel() == elements, "fp16_utils::", caller, ": the flat master has shape ",
              master.sizes(), ", and the model parameters have ", elements,
              " elements together. Pass the lists that prep_param_lists returned.");
}

void check_lists(const char* caller, const Tensors& model, const Tensors& masters, bool flat) {
  const size_t expected = flat && !model.empty() ? 1 : model.size();
  TORCH_CHECK(masters.size() == expected, "fp16_utils::", caller, " was given ", model.size(), " model parameters and ",
              masters.size(), " masters. Pass the lists that prep_param_lists returned, with the same flat_master.");
  check_defined(caller, "model_params", model);
  check_defined(caller, "master_params", masters);
  if (!flat) return check_shapes(caller, model, masters);
  if (!model.empty()) check_flat_shape(caller, model, masters.front());
}

void check_grads(const Tensors& params, bool flat) {
  for (size_t i = 0; i < params.size(); ++i) {
    const at::Tensor& grad = params[i].grad();
    TORCH_CHECK(grad.defined() || !flat, "fp16_utils::model_grads_to_master_grads: model_params[", i, "], of shape ",
                params[i].sizes(), ", has no gradient, which a flat master cannot express. Use flat_master=false.");
    TORCH_CHECK(!grad.defined() || grad.layout() == at::kStrided, "fp16_utils::model_grads_to_master_grads: the gradient of ",
                "model_params[", i, "], of shape ", params[i].sizes(), ", has layout ", grad.layout(),
                ". Make the embedding dense (sparse=false), or leave the parameter out of both lists.");
  }
}

/// Calls f(parameter, part) with each model parameter and its part of `flat`, in the parameter's shape.
template <class F>
void for_each_part(const Tensors& params, const at::Tensor& flat, F&& f) {
  int64_t offset = 0;
  for (const auto& param : params) {
    f(param, flat.narrow(0, offset, param.numel()).view(param.sizes()));
    offset += param.numel();
  }
}

at::Tensor flat_master_of(const Tensors& params) {
  Tensors pieces;
  for (const auto& param : params) {
    TORCH_CHECK_TYPE(param.scalar_type() == params.front().scalar_type(),
                     "fp16_utils::prep_param_lists: flat_master needs parameters of one dtype, found ",
                     params.front().scalar_type(), " and ", param.scalar_type(),
                     ". Use flat_master=false, or a network without float32 batch norm.");
    pieces.push_back(param.detach().reshape(-1));
  }
  at::Tensor master = at::cat(pieces).to(at::kFloat).requires_grad_();
  master.mutable_grad() = at::empty_like(master);
  return master;
}

}  // namespace

std::pair<Tensors, Tensors> prep_param_lists(const torch::nn::Module& model, bool flat_master) {
  Tensors params, masters;
  for (const auto& param : amp::detail::unique_tensors(model.parameters())) {
    if (param.requires_grad()) params.push_back(param);
  }
  if (flat_master) {
    if (!params.empty()) masters.push_back(flat_master_of(params));
  } else {
    for (const auto& param : params) masters.push_back(param.detach().clone().to(at::kFloat).requires_grad_());
  }
  return {params, masters};
}

void model_grads_to_master_grads(const Tensors& model_params, const Tensors& master_params, bool flat_master) {
  check_lists("model_grads_to_master_grads", model_params, master_params, flat_master);
  check_grads(model_params, flat_master);
  if (model_params.empty()) return;
  at::NoGradGuard no_grad;
  if (flat_master) {
    at::Tensor& grad = master_params.front().mutable_grad();
    if (!grad.defined()) grad = at::empty_like(master_params.front());
    for_each_part(model_params, grad, [](const at::Tensor& param, at::Tensor part) { part.copy_(param.grad()); });
    return;
  }
  for (size_t i = 0; i < model_params.size(); ++i) {
    at::Tensor& grad = master_params[i].mutable_grad();
    if (!model_params[i].grad().defined()) {
      grad.reset();
      continue;
    }
    if (!grad.defined()) grad = at::empty_like(master_params[i]);
    grad.copy_(model_params[i].grad());
  }
}

void master_params_to_model_params(const Tensors& model_params, const Tensors& master_params, bool flat_master) {
  check_lists("master_params_to_model_params", model_params, master_params, flat_master);
  if (model_params.empty()) return;
  at::NoGradGuard no_grad;
  if (flat_master) {
    for_each_part(model_params, master_params.front().detach(),
                  [](at::Tensor param, const at::Tensor& part) { param.copy_(part); });
    return;
  }
  for (size_t i = 0; i < model_params.size(); ++i) at::Tensor(model_params[i]).copy_(master_params[i]);
}

}  // namespace apex::fp16_utils
