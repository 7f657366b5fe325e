#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <utility>
#include <vector>

// FP32 masters kept by hand, as programs from before `amp` do. Tensors may be on any device; nothing synchronises.
namespace apex::fp16_utils {

/// The model's trainable parameters, a tied one once, and FP32 masters for them: detached copies that require gradients.
///
/// With `flat_master` there is one master, all parameters end to end, with a gradient that is allocated but not filled; none
/// where there is no parameter.
/// Errors: TypeError naming the dtypes if `flat_master` meets parameters of several dtypes.
/// Apex: `fp16_utils.prep_param_lists` (FP16U-06).
std::pair<std::vector<at::Tensor>, std::vector<at::Tensor>> prep_param_lists(const torch::nn::Module& model,
                                                                             bool flat_master = false);

/// Copies the model parameters' gradients into those of the masters, converting. A parameter without a gradient leaves its
/// master without one. Errors, before anything is changed: RuntimeError unless the lists fit together as those of
/// `prep_param_lists` do (each parameter has a master of its shape, or with `flat_master` all have one of all their elements),
/// for a sparse gradient, and if `flat_master` and a parameter has no gradient. Apex: `fp16_utils.model_grads_to_master_grads`
/// (FP16U-07).
void model_grads_to_master_grads(const std::vector<at::Tensor>& model_params, const std::vector<at::Tensor>& master_params,
                                 bool flat_master = false);

/// Copies the masters back into the model's parameters, rounding. Errors, before anything is changed: RuntimeError unless the
/// lists fit together. Apex: `fp16_utils.master_params_to_model_params` (FP16U-08).
void master_params_to_model_params(const std::vector<at::Tensor>& model_params, const std::vector<at::Tensor>& master_params,
                                   bool flat_master = false);

}  // namespace apex::fp16_utils
