// apex::optimizers for the registry. Their options and states name their own members.
#include <apex_cpp/optimizers.h>

#include <ATen/ops/stack.h>

#include <type_traits>

#include "tests/oracle/reading/case_file.h"
#include "tests/oracle/session/optimizers.h"

namespace oracle {
namespace {

namespace optimizers = apex::optimizers;

void assign(double& member, const Json& value) { member = value.as_double(); }
void assign(bool& member, const Json& value) { member = value.as_bool(); }
void assign(int64_t& member, const Json& value) { member = value.as_int(); }
void assign(optimizers::Betas& member, const Json& value) {
  member = {value.items().at(0).as_double(), value.items().at(1).as_double()};
}
void assign(std::optional<at::ScalarType>& member, const Json& value) { member = dtype_from_name(value); }

template <class Options>
bool set_member(Options& options, const std::string& name, const Json& value) {
  bool found = false;
  optimizers::detail::for_each_member(options, [&](const std::string& key, auto& member) {
    if (key != name) return;
    assign(member, value);
    found = true;
  });
  return found;
}

template <class State>
std::vector<StateEntry> entries_of(const State& state) {
  std::vector<StateEntry> entries;
  optimizers::detail::for_each_member(state, [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined()) entries.push_back({name, tensor});
  });
  return entries;
}

// Apex keeps NovoGrad's norms in two tensors: of float16 parameters and of float32 ones, each in the group's order.
at::Tensor norms_by_dtype(const optimizers::FusedNovoGrad& optimizer, size_t group, at::ScalarType dtype) {
  const auto& params = optimizer.param_groups()[group].params();
  const at::Tensor norms = optimizer.exp_avg_sq(group);
  std::vector<at::Tensor> chosen;
  for (size_t i = 0; i < params.size(); ++i) {
    if (params[i].scalar_type() == dtype) chosen.push_back(norms[static_cast<int64_t>(i)]);
  }
  return chosen.empty() ? at::Tensor() : at::stack(chosen);
}

// For FusedSGD, whose learning rate has no default.
constexpr double kNoRate = 0.0;

template <class Opt, class Options, class State>
OptimizerType fused(bool steps_like_sign) {
  OptimizerType type;
  type.defaults = [] {
    if constexpr (std::is_default_constructible_v<Options>)
      return std::make_unique<Options>();
    else
      return std::make_unique<Options>(kNoRate);
  };
  type.make = [](OptimizerType::Groups groups,
                 const OptimizerType::Options& options) -> std::unique_ptr<torch::optim::Optimizer> {
    return std::make_unique<Opt>(std::move(groups), static_cast<const Options&>(options));
  };
  type.in_larc = make_larc<Opt>;
  type.set_option = [](OptimizerType::Options& options, const std::string& name, const Json& value) {
    return set_member(static_cast<Options&>(options), name, value);
  };
  type.read_state = [](const torch::optim::OptimizerParamState& state) { return entries_of(static_cast<const State&>(state)); };
  type.read_group_state = [](const torch::optim::Optimizer& optimizer, size_t group) {
    const auto& own = dynamic_cast<const Opt&>(optimizer);
    std::vector<StateEntry> entries = {{"step", {}, static_cast<double>(own.steps_taken(group))}};
    if constexpr (std::is_same_v<Opt, optimizers::FusedNovoGrad>) {
      entries.push_back({"exp_avg_sq0", norms_by_dtype(own, group, at::kHalf)});
      entries.push_back({"exp_avg_sq1", norms_by_dtype(own, group, at::kFloat)});
    }
    return entries;
  };
  type.steps_like_sign = steps_like_sign;
  return type;
}

}  // namespace

void add_fused_optimizers(std::map<std::string, OptimizerType>& registry) {
  using namespace apex::optimizers;
  registry["FusedSGD"] = fused<FusedSGD, FusedSGDOptions, FusedSGDParamState>(false);
  registry["FusedAdam"] = fused<FusedAdam, FusedAdamOptions, FusedAdamParamState>(true);
  registry["FusedLAMB"] = fused<FusedLAMB, FusedLAMBOptions, FusedLAMBParamState>(true);
  registry["FusedNovoGrad"] = fused<FusedNovoGrad, FusedNovoGradOptions, FusedNovoGradParamState>(true);
  registry["FusedAdagrad"] = fused<FusedAdagrad, FusedAdagradOptions, FusedAdagradParamState>(true);
  registry["FusedMixedPrecisionLamb"] =
      fused<FusedMixedPrecisionLamb, FusedMixedPrecisionLambOptions, FusedMixedPrecisionLambParamState>(true);
}

}  // namespace oracle
