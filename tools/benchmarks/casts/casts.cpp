#include "casts.h"

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <apex_cpp/amp/initialize.h>
#include <torch/nn/modules/linear.h>

#include "../suites.h"

namespace bench {
namespace casts {

double nanoseconds_when_warm(const std::function<void()>& call, int calls) {
  constexpr int kWarmUp = 10;
  for (int i = 0; i < kWarmUp; ++i) call();
  return nanoseconds_per_call(call, calls);
}

at::Tensor random(at::IntArrayRef shape, c10::ScalarType dtype) { return at::randn(shape).to(dtype); }
at::Tensor weight(at::IntArrayRef shape) { return at::randn(shape).requires_grad_(); }
at::Tensor cast_leaf(const at::Tensor& weight) { return weight.detach().to(at::kBFloat16).requires_grad_(); }

void switch_on() {
  static torch::nn::Linear any_model(1, 1);  // lives as long as its rules may be in force
  [[maybe_unused]] const auto net = apex::amp::initialize(any_model, "O4", apex::amp::InitializeOptions().verbosity(0));
}

}  // namespace casts

void run_casts(Runner& runner) {
  casts::run_off(runner);
  casts::run_ops(runner);
  casts::run_training(runner);
}

}  // namespace bench
