#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <apex_cpp/amp/session/amp_session.h>

#include <apex_cpp/amp/tensors/tensor_version.h>

#include <string>
#include <utility>
#include <vector>

// The argument checks of `initialize` (CHK-*, OPT-01). None changes anything.
namespace apex::amp::detail {

/// Errors: RuntimeError naming the parameter or buffer that came in 16 bits (CHK-08, CHK-10), or a parameter that
/// DistributedDataParallel holds (CHK-07).
void check_model(const torch::nn::Module& module, const Session& session);

/// Errors: RuntimeError naming two parameters or buffers that have memory in common in different layouts, as a matrix and its
/// transpose do, where the models are cast to 16 bits.
void check_ties(const std::vector<torch::nn::Module*>& models, const Session& session);

/// Errors: RuntimeError for a handle (OPT-01), an optimizer none of whose parameters belongs to the models, LBFGS with master
/// weights; TypeError for a parameter dtype that amp does not train; ValueError for a parameter in two groups.
void check_optimizer(torch::optim::Optimizer& optimizer, const Session& session);

/// Errors: RuntimeError naming a parameter that two optimizers train, where there are master weights.
void check_one_master_each(const std::vector<torch::optim::Optimizer*>& optimizers, const Session& session);

/// Says, in a warning, that the model has float64 parameters, and names the first.
void warn_of_float64(const torch::nn::Module& module);

// What is reported of models once they are cast.

/// Memory that parameters and buffers have before the cast, to find views of it afterwards.
class ViewsOfBefore {
 public:
  explicit ViewsOfBefore(const std::vector<torch::nn::Module*>& models);
  /// Says, in a warning, which parameters and buffers the cast to `dtype` has moved away from views of them.
  void warn_of_those_left(c10::ScalarType dtype) const;

 private:
  std::vector<std::pair<std::pair<std::string, at::Tensor>, TensorVersion>> tensors_;
};

/// The buffers of one element in 16 bits with a whole number in it. Synchronises.
std::vector<std::string> low_precision_counters(const torch::nn::Module& module);
/// Says, in a warning, that these buffers, if there are any, count no further than `dtype` has whole numbers.
void warn_of_counters(const std::vector<std::string>& names, c10::ScalarType dtype);

}  // namespace apex::amp::detail
