#include <apex_cpp/amp/optimizer_classes/param_state.h>

#include <c10/core/ScalarType.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

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

/// Removes LBFGS's scratch tensors during its lifetime.
class WithoutScratch {
 public:
  explicit WithoutScratch(const torch::optim::Optimizer& optimizer) {
    for (const auto& item : optimizer.state()) {
      auto* state = dynamic_cast<torch::optim::LBFGSParamState*>(item.second.get());
      if (state) taken_.emplace_back(state, std::exchange(state->al(), std::nullopt));
    }
  }
  ~WithoutScratch() {
    for (auto& [state, scratch] : taken_) state->al() = std::move(scratch);
  }
  WithoutScratch(const WithoutScratch&) = delete;
  WithoutScratch& operator=(const WithoutScratch&) = delete;

 private:
  std::vector<std::pair<torch::optim::LBFGSParamState*, std::optional<std::vector<at::Tensor>>>> taken_;
};

/// Whether `archive` has entries name0, name1, … up to `size`, and no more.
bool has_list(torch::serialize::InputArchive& archive, const std::string& name, size_t size) {
  const auto has = [&](size_t i) {
    c10::IValue value;
    return archive.try_read(name + std::to_string(i), value);
  };
  return (size == 0 || has(size - 1)) && !has(size);
}

// torch's optimizers would find another size only after they have taken over the options of earlier groups.
void check_groups_fit(const torch::optim::Optimizer& optimizer, torch::serialize::InputArchive& archive) {
  torch::serialize::InputArchive saved, group;
  at::Tensor size;
  if (!archive.try_read("param_groups", saved) || !saved.try_read("param_groups/size", size)) return;
  const auto& groups = optimizer.param_groups();
  TORCH_CHECK(has_list(saved, "param_groups/", groups.size()),
              "loaded state dict has a different number of parameter groups than this optimizer, which has ", groups.size(),
              ". Add the same groups before loading.");
  for (size_t i = 0; i < groups.size(); ++i) {
    saved.read("param_groups/" + std::to_string(i), group);
    TORCH_CHECK(has_list(group, "params/", groups[i].params().size()),
                "loaded state dict contains a parameter group that has a different size than the optimizer's parameter group ",
                i, ", which has ", groups[i].params().size(),
                " parameters. Give the group the same parameters before loading.");
  }
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

void save_without_scratch(const torch::optim::Optimizer& optimizer, const std::function<void()>& save) {
  const WithoutScratch guard(optimizer);
  save();
}

void load_replacing_state(torch::optim::Optimizer& optimizer, torch::serialize::InputArchive& archive,
                          const std::function<void()>& load) {
  torch::serialize::InputArchive saved;
  if (!archive.try_read("state", saved)) return load();
  check_groups_fit(optimizer, archive);
  auto before = std::exchange(optimizer.state(), {});
  try {
    load();
  } catch (...) {
    optimizer.state() = std::move(before);
    throw;
  }
}

}  // namespace apex::amp::detail
