#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <functional>

namespace apex::amp::detail {

/// Casts the floating tensors of one parameter's optimizer state (momentum, moments, …) to `dtype`, in place. Knows the states
/// of torch::optim's optimizers and those that say themselves how they are cast; a state of another type is left as it is.
void cast_param_state(torch::optim::OptimizerParamState& state, c10::ScalarType dtype);

/// Moves the state kept for parameter `from` to the key of `to`, if there is any.
void rekey_param_state(torch::optim::Optimizer& optimizer, const at::Tensor& from, const at::Tensor& to);

/// Gives every parameter's state in `optimizer` the parameter's own dtype, as Python's load_state_dict does. `has_masters`:
/// state of a frozen parameter stays as it is, for the master that the parameter has once it is trained.
void match_state_to_params(torch::optim::Optimizer& optimizer, bool has_masters);

/// Calls `load`, which is to load `archive`, with no state in its way: torch's optimizers keep that of a parameter for which an
/// archive has none. Where loading fails, all state stays. An archive in a layout of the class's own is left to the class.
void load_replacing_state(torch::optim::Optimizer& optimizer, torch::serialize::InputArchive& archive,
                          const std::function<void()>& load);

}  // namespace apex::amp::detail
