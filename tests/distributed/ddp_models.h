#pragma once
// Models with small integers as weights, and each rank's share of a batch.
#include <apex_cpp/parallel/distributed_data_parallel.h>
#include <torch/torch.h>

#include "tests/amp/support.h"
#include "tests/distributed/ranks.h"

namespace apex::testing {

/// Two linear layers with a ReLU, and a buffer.
struct WholeNumbersImpl : torch::nn::Module {
  WholeNumbersImpl() {
    fc1 = register_module("fc1", torch::nn::Linear(4, 3));
    fc2 = register_module("fc2", torch::nn::Linear(3, 2));
    counter = register_buffer("counter", torch::full({}, 7, torch::kLong));
    const torch::NoGradGuard no_grad;
    for (auto& param : parameters()) param.copy_(torch::arange(param.numel()).remainder(5).sub(2).view(param.sizes()));
  }
  torch::Tensor forward(const torch::Tensor& x) { return fc2(torch::relu(fc1(x))); }
  torch::nn::Linear fc1{nullptr}, fc2{nullptr};
  torch::Tensor counter;
};
TORCH_MODULE(WholeNumbers);

/// Two branches in either order, or the first alone.
struct TwoBranchesImpl : torch::nn::Module {
  TwoBranchesImpl() {
    first = register_module("first", torch::nn::Linear(torch::nn::LinearOptions(4, 3).bias(false)));
    second = register_module("second", torch::nn::Linear(torch::nn::LinearOptions(4, 5).bias(false)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    if (without_second) return first(x).sum();
    const torch::Tensor early = first_branch_first ? first(x).sum() : second(x).sum();
    return early + (first_branch_first ? second(x).sum() : first(x).sum());
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
  bool first_branch_first = true, without_second = false;
};
TORCH_MODULE(TwoBranches);

/// One weight with two names.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    in = register_module("in", torch::nn::Linear(torch::nn::LinearOptions(3, 3).bias(false)));
    register_parameter("weight_of_out", in->weight);
  }
  torch::Tensor forward(const torch::Tensor& x) { return torch::linear(in(x), in->weight); }
  torch::nn::Linear in{nullptr};
};
TORCH_MODULE(Tied);

/// Three samples per rank, different in each pass.
inline torch::Tensor part_of_batch(int pass, int of_rank) {
  return torch::arange(12, torch::kFloat).add(5 * of_rank + 7 * pass).remainder(9).sub(4).view({3, 4});
}
inline torch::Tensor part_of_batch(int pass) { return part_of_batch(pass, rank()); }
/// All ranks' samples.
inline torch::Tensor joined_batch(int pass) {
  std::vector<torch::Tensor> parts;
  for (int other = 0; other < world_size(); ++other) parts.push_back(part_of_batch(pass, other));
  return torch::cat(parts);
}

}  // namespace apex::testing

// For the tests of DistributedDataParallel, which are in apex::parallel.
namespace apex::parallel {
using namespace apex::testing;
using apex::test::bytes_of;
using apex::test::contains;
using apex::test::message_of;
using apex::test::quiet;
using torch::Tensor;
using Options = DistributedDataParallelOptions;
}  // namespace apex::parallel
