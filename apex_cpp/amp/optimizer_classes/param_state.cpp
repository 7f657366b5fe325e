#include <apex_cpp/amp/optimizer_classes/param_state.h>

#include <c10/core/ScalarType.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>

#include <utility>

namespace apex::amp::detail {
namespace {

using torch::optim::OptimizerParamState;

void cast(at::Tensor& tensor, c10::ScalarType dtype) {
  if (tensor.defined() && tensor.is_floating_point()) tensor = tensor.to(dtype);
}

template <class State>
void cast_adam(State& state, c10::ScalarType dtype) {
  cast(state.exp_avg(), dtype);
  cast(state.exp_avg_sq(), dtype);
  cast(state.max_exp_avg_sq(), dtype);
}

}  // namespace

void cast_param_state(OptimizerParamState& state, c10::ScalarType dtype) {
  if (auto* sgd = dynamic_cast<torch::optim::SGDParamState*>(&state)) {
    cast(sgd->momentum_buffer(), dtype);
  } else if (auto* adam = dynamic_cast<torch::optim::AdamParamState*>(&state)) {
    cast_adam(*adam, dtype);
  } else if (auto* adamw = dynamic_cast<torch::optim::AdamWParamState*>(&state)) {
    cast_adam(*adamw, dtype);
  } else if (auto* rmsprop = dynamic_cast<torch::optim::RMSpropParamState*>(&state)) {
    cast(rmsprop->square_avg(), dtype);
    cast(rmsprop->momentum_buffer(), dtype);
    cast(rmsprop->grad_avg(), dtype);
  } else if (auto* adagrad = dynamic_cast<torch::optim::AdagradParamState*>(&state)) {
    cast(adagrad->sum(), dtype);
  } else if (auto* lbfgs = dynamic_cast<torch::optim::LBFGSParamState*>(&state)) {
    for (at::Tensor* each : {&lbfgs->d(), &lbfgs->H_diag(), &lbfgs->prev_flat_grad()}) cast(*each, dtype);
    for (auto* history : {&lbfgs->old_dirs(), &lbfgs->old_stps(), &lbfgs->ro()}) {
      for (at::Tensor& each : *history) cast(each, dtype);
    }
  } else if (auto* castable = dynamic_cast<CastableParamState*>(&state)) {
    castable->cast_to(dtype);
  }
}

void rekey_param_state(torch::optim::Optimizer& optimizer, const at::Tensor& from, const at::Tensor& to) {
  if (auto* fused = dynamic_cast<StepsMasters*>(&optimizer)) fused->param_was_replaced(from, to);
  auto& states = optimizer.state();
  const auto found = states.find(from.unsafeGetTensorImpl());
  if (found == states.end()) return;
  // Take the state out before the insertion, which may rehash the flat map.
  auto state = std::move(found->second);
  states.erase(found);
  states[to.unsafeGetTensorImpl()] = std::move(state);
}

void match_state_to_params(torch::optim::Optimizer& optimizer, bool has_masters) {
  const auto* fused = dynamic_cast<const StepsMasters*>(&optimizer);
  for (auto& group : optimizer.param_groups()) {
    for (const auto& param : group.params()) {
      if (has_masters && !param.requires_grad()) continue;
      const auto found = optimizer.state().find(param.unsafeGetTensorImpl());
      if (found == optimizer.state().end() || found->second == nullptr) continue;  // a program's state()[key] inserts a null
      const bool has_own_master = fused && fused->keeps_masters_of(param.scalar_type());
      auto dtype = has_own_master ? at::kFloat : param.scalar_type();
      if (dynamic_cast<const torch::optim::LBFGSParamState*>(found->second.get())) {  // of all gradients in one vector
        for (const auto& each : group.params()) dtype = c10::promoteTypes(dtype, each.scalar_type());
      }
      cast_param_state(*found->second, dtype);
    }
  }
}

void load_replacing_state(torch::optim::Optimizer& optimizer, torch::serialize::InputArchive& archive,
                          const std::function<void()>& load) {
  torch::serialize::InputArchive saved;
  if (!archive.try_read("state", saved)) return load();
  auto before = std::exchange(optimizer.state(), {});
  try {
    load();
  } catch (...) {
    optimizer.state() = std::move(before);
    throw;
  }
}

}  // namespace apex::amp::detail
