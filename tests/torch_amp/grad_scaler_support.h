#pragma once
// Shared by the GradScaler tests: devices, caught warnings, fused optimizers.
#include <apex_cpp/amp.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/amp/support.h"
#include "tests/needs_gpus.h"

namespace apex::test {

/// Runs for "cpu" and "cuda"; the latter skips where there is no GPU.
class OnDevice : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (device().is_cuda()) {
      APEX_CPP_NEEDS_GPUS(1);
    }
    torch::manual_seed(3);
  }
  torch::Device device() const { return torch::Device(GetParam()); }
  torch::TensorOptions options(torch::ScalarType dtype = torch::kFloat) const {
    return torch::TensorOptions().dtype(dtype).device(device());
  }
  amp::GradScalerOptions scaler_options() const { return amp::GradScalerOptions().device(GetParam()); }
};
inline const auto kDevices = ::testing::Values("cpu", "cuda");

inline amp::GradScalerOptions cpu() { return amp::GradScalerOptions().device("cpu"); }

/// Makes the scale, as the first output does.
inline void start(amp::GradScaler& scaler, torch::Device device = torch::kCPU) { scaler.scale(torch::ones({1}, device)); }

inline float item(const torch::Tensor& tensor) { return tensor.item<float>(); }

/// A parameter with a gradient of these values.
inline torch::Tensor param_with_grad(const torch::Tensor& grad) {
  auto param = torch::zeros(grad.sizes(), grad.options().layout(torch::kStrided)).requires_grad_();
  param.mutable_grad() = grad;
  return param;
}

inline torch::optim::SGD sgd(std::vector<torch::Tensor> params, double lr = 1.0) {
  return torch::optim::SGD(std::move(params), torch::optim::SGDOptions(lr));
}

/// AdamW on torch's fused kernel: unscales and skips on the device, as `amp::StepSupportsAmpScaling` asks.
class FusedAdamW : public torch::optim::AdamW, public amp::StepSupportsAmpScaling {
 public:
  using AdamW::AdamW;

  torch::Tensor step(LossClosure = nullptr) override {
    const torch::NoGradGuard no_grad;
    ++steps_called;
    saw_scale = grad_scale.defined();
    auto& group = param_groups()[0];
    const auto& options = static_cast<torch::optim::AdamWOptions&>(group.options());
    std::vector<torch::Tensor> params, grads;
    for (auto& param : group.params()) {
      if (!param.grad().defined()) continue;
      params.push_back(param);
      grads.push_back(param.grad());
    }
    make_state(params);
    for (auto& count : counts_) count += found_inf.defined() ? 1 - found_inf : torch::ones_like(count);
    at::_fused_adamw_(params, grads, means_, squares_, options.amsgrad() ? maxima_ : std::vector<torch::Tensor>{}, counts_,
                      options.get_lr(), std::get<0>(options.betas()), std::get<1>(options.betas()), options.weight_decay(),
                      options.eps(), options.amsgrad(), /*maximize=*/false, optional(grad_scale), optional(found_inf));
    return {};
  }

  int steps_called = 0;
  bool saw_scale = false;

 private:
  static std::optional<torch::Tensor> optional(const torch::Tensor& tensor) {
    return tensor.defined() ? std::optional<torch::Tensor>(tensor) : std::nullopt;
  }

  void make_state(const std::vector<torch::Tensor>& params) {
    if (!counts_.empty()) return;
    for (const auto& param : params) {
      for (auto* list : {&means_, &squares_, &maxima_}) list->push_back(torch::zeros_like(param));
      counts_.push_back(torch::zeros({}, param.options().dtype(torch::kFloat)));
    }
  }

  std::vector<torch::Tensor> means_, squares_, maxima_, counts_;
};

/// Plain SGD on torch's fused kernel.
class FusedSgd : public torch::optim::SGD, public amp::StepSupportsAmpScaling {
 public:
  using SGD::SGD;

  torch::Tensor step(LossClosure = nullptr) override {
    const torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> params = param_groups()[0].params(), grads;
    for (const auto& param : params) grads.push_back(param.grad());
    const double lr = param_groups()[0].options().get_lr();
    at::_fused_sgd_(params, grads, {}, 0.0, 0.0, lr, 0.0, false, false, true,
                    grad_scale.defined() ? std::optional<torch::Tensor>(grad_scale) : std::nullopt,
                    found_inf.defined() ? std::optional<torch::Tensor>(found_inf) : std::nullopt);
    return {};
  }
};

}  // namespace apex::test
