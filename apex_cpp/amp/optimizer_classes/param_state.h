#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <functional>

namespace apex::amp::detail {

/// Casts the floating-point tensors of one parameter's optimizer state (momentum, moments, …) to `dtype`, in place. Supports
/// the states of torch::optim and classes derived from CastableParamState; leaves others unchanged.
void cast_param_state(torch::optim::OptimizerParamState& state, c10::ScalarType dtype);

/// Moves the state of parameter `from`, if any, to the key of parameter `to`, and tells an optimizer that keeps more.
void rekey_param_state(torch::optim::Optimizer& optimizer, const at::Tensor& from, const at::Tensor& to);

/// Casts every parameter's state in `optimizer` to the parameter's dtype, as PyTorch's load_state_dict does. `has_masters`: the
/// state of a frozen parameter keeps its dtype, for the master that the parameter gets when it is trained.
void match_state_to_params(torch::optim::Optimizer& optimizer, bool has_masters);

/// Calls `save`, which saves `optimizer`, without LBFGS's scratch tensors: each step writes them before it reads them, and
/// torch cannot save them while fewer than `history_size` are in use.
void save_without_scratch(const torch::optim::Optimizer& optimizer, const std::function<void()>& save);

/// Clears the optimizer's state and calls `load`, which loads `archive`: torch's optimizers would keep old state of parameters
/// that the archive has none for. If `load` throws, the old state comes back. An archive without torch's "state" entry has a
/// custom layout; then only calls `load`. Errors, before anything is changed: RuntimeError for other numbers of groups or of
/// parameters in a group.
void load_replacing_state(torch::optim::Optimizer& optimizer, torch::serialize::InputArchive& archive,
                          const std::function<void()>& load);

}  // namespace apex::amp::detail
