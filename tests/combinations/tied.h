#pragma once
// A network with tied parameters, and every optimizer over its `parameters()`, which lists them twice.
#include <torch/torch.h>

#include <vector>

#include "tests/combinations/support.h"

namespace apex::test::combinations {

/// A layer over the weight of another one.
struct TiedHeadImpl : torch::nn::Module {
  explicit TiedHeadImpl(const Tensor& tied);
  Tensor forward(const Tensor& x);
  Tensor weight;
};

/// A linear layer and a batch norm that are registered twice, and a head over the linear layer's weight: 4 parameters, of which
/// `parameters()` lists 9. Those of the batch norm are float32 at O2 and O5.
struct TiedImpl : torch::nn::Module {
  TiedImpl();
  Tensor forward(const Tensor& x);
  torch::nn::Linear fc{nullptr};
  torch::nn::BatchNorm1d bn{nullptr};
  std::shared_ptr<TiedHeadImpl> head;
};
TORCH_MODULE(Tied);
constexpr size_t kTiedParams = 4, kTiedListed = 9;

/// Which parameters the optimizer is given: all that are listed, or each once, as Python's `parameters()` has them.
enum class Listing { all, once };
std::vector<Tensor> params_of(const torch::nn::Module& model, Listing listing);

/// torch's optimizers but for LBFGS.
const std::vector<Kind>& torch_kinds();
/// The fused ones in both orders of gradients, and LARC around one of either sort.
const std::vector<Kind>& own_kinds();
std::vector<Kind> all_kinds();

Tensor tied_input(int step);  // [4, 6]

}  // namespace apex::test::combinations
