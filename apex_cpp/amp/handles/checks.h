#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <apex_cpp/amp/session/amp_session.h>

#include <apex_cpp/amp/tensors/tensor_version.h>

#include <string>
#include <utility>
#include <vector>

// The argument checks of `initialize` (CHK-*, OPT-01). They change nothing.
namespace apex::amp::detail {

/// Errors: RuntimeError with the name of a parameter or buffer that is 16-bit already (CHK-08, CHK-10), or of a parameter that
/// a DistributedDataParallel holds (CHK-07).
void check_model(const torch::nn::Module& module, const Session& session);

/// Errors, if the models are cast to 16 bits: RuntimeError with the names of two parameters or buffers that share memory in
/// different layouts, such as a matrix and its transpose.
void check_ties(const std::vector<torch::nn::Module*>& models, const Session& session);

/// Errors: RuntimeError for a handle (OPT-01), and for an optimizer whose groups an earlier call has moved into a handle.
void check_not_initialized(const torch::optim::Optimizer& optimizer);

/// Errors: RuntimeError for an optimizer without any parameter of the models, and for LBFGS with master weights; TypeError for
/// a parameter dtype that amp does not train; ValueError for a parameter in two groups.
void check_optimizer(torch::optim::Optimizer& optimizer, const Session& session);

/// Errors, with master weights: RuntimeError with the name of a parameter that two optimizers train.
void check_one_master_each(const std::vector<torch::optim::Optimizer*>& optimizers, const Session& session);

/// Warns if the model has float64 parameters, with the name of the first.
void warn_of_float64(const torch::nn::Module& module);

// Warnings about models after the cast.

/// The memory of parameters and buffers before the cast, to find views of it afterwards.
class ViewsOfBefore {
 public:
  explicit ViewsOfBefore(const std::vector<torch::nn::Module*>& models);
  /// Warns about parameters and buffers that the cast to `dtype` has moved to new memory while views of the old memory exist.
  void warn_of_those_left(c10::ScalarType dtype) const;

 private:
  std::vector<std::pair<std::pair<std::string, at::Tensor>, TensorVersion>> tensors_;
};

/// The names of 16-bit buffers with one element that is a whole number: probably counters. Synchronizes.
std::vector<std::string> low_precision_counters(const torch::nn::Module& module);
/// Warns about these buffers, if any: `dtype` has no whole numbers beyond some limit, so a counter stops there.
void warn_of_counters(const std::vector<std::string>& names, c10::ScalarType dtype);

}  // namespace apex::amp::detail
