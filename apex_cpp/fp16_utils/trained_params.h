#pragma once

#include <ATen/core/Tensor.h>
#include <torch/optim/optimizer.h>

#include <unordered_map>
#include <vector>

#include <apex_cpp/amp/tensors/listed_once.h>

namespace apex::fp16_utils::detail {

/// A parameter that is trained, and what the optimizer steps: its float32 master in its place, or the parameter itself.
struct TrainedParam {
  at::Tensor param, stepped;

  bool has_master() const { return !stepped.is_same(param); }
};

/// The parameters that FP16_Optimizer trains, each once, in the order of the wrapped optimizer's groups (FP16O-01).
class TrainedParams {
 public:
  using Tensors = std::vector<at::Tensor>;

  /// Takes in parameters that are new in the groups, or no longer frozen: 16-bit ones get masters, with what state they had.
  /// Errors, before anything is changed: TypeError for one that is not float16, bfloat16 or float32, ValueError for a 16-bit
  /// one with gaps in memory, and for one in two groups.
  void adopt_new(torch::optim::Optimizer& optimizer);
  /// Errors: RuntimeError for a gradient of a parameter that is yet to be taken in.
  void check_no_new_grads(const torch::optim::Optimizer& optimizer) const;

  /// By the model's parameter or what is stepped; null for others.
  const TrainedParam* find(const at::Tensor& tensor) const;
  /// The 16-bit parameters and their masters, matched by index.
  const Tensors& model_params() const { return model_params_; }
  const Tensors& masters() const { return masters_; }
  /// Those of float32.
  const Tensors& native() const { return native_; }

 private:
  using ParamGroups = amp::detail::ParamGroups;

  bool is_new(const at::Tensor& param) const { return param.requires_grad() && find(param) == nullptr; }
  template <class Groups, class F>
  void for_each_new(Groups& groups, const F& f) const;
  void list_once(ParamGroups& groups);
  void adopt(torch::optim::Optimizer& optimizer, at::Tensor& param);
  void sort_by(const ParamGroups& groups);

  std::unordered_map<const at::TensorImpl*, TrainedParam> by_tensor_;
  amp::detail::ListedOnce listed_once_;
  Tensors model_params_, masters_, native_;
};

}  // namespace apex::fp16_utils::detail
