#include "casts.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <apex_cpp/amp/initialize.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <vector>

#include "../suites.h"

namespace bench {
namespace casts {

double nanoseconds_when_warm(const std::function<void()>& call, int calls) {
  constexpr int kWarmUp = 10;
  for (int i = 0; i < kWarmUp; ++i) call();
  return nanoseconds_per_call(call, calls);
}

namespace {

/// Every tensor that `weight` has returned.
std::vector<at::Tensor>& weights() {
  static std::vector<at::Tensor> made;
  return made;
}

}  // namespace

at::Tensor random(at::IntArrayRef shape, c10::ScalarType dtype) { return at::randn(shape).to(dtype); }
at::Tensor weight(at::IntArrayRef shape) { return weights().emplace_back(at::randn(shape).requires_grad_()); }
at::Tensor cast_leaf(const at::Tensor& weight) { return weight.detach().to(at::kBFloat16).requires_grad_(); }

void switch_on() {
  static torch::nn::Linear any_model(1, 1);  // must outlive the casts
  std::vector<at::Tensor> trained = any_model->parameters();
  trained.insert(trained.end(), weights().begin(), weights().end());
  torch::optim::SGD sgd(trained, 0.01);
  [[maybe_unused]] const auto amp = apex::amp::initialize(any_model, sgd, "O4", apex::amp::InitializeOptions().verbosity(0));
}

}  // namespace casts

void run_casts(Runner& runner) {
  casts::run_off(runner);
  casts::run_ops(runner);
  casts::run_training(runner);
}

}  // namespace bench
