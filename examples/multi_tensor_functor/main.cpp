// Fits a straight line to noisy points with a custom optimizer functor: multi_tensor_functor [cpu|cuda].
#include <ATen/ATen.h>
#include <apex_cpp/amp_C.h>

#include <cstdio>
#include <exception>
#include <string>

#include "lion.h"

namespace {

constexpr float kLossScale = 1024;

// The gradients of the mean squared error times the loss scale, in float16.
std::vector<at::Tensor> scaled_grads(const at::Tensor& x, const at::Tensor& y, const at::Tensor& slope,
                                     const at::Tensor& offset) {
  const at::Tensor error = (x * slope + offset - y) * (2 * kLossScale);
  return {(error * x).mean().reshape({1}).to(at::kHalf), error.mean().reshape({1}).to(at::kHalf)};
}

void fit(at::Device device) {
  TORCH_CHECK(!device.is_cuda() || at::hasCUDA(), "cuda needs a GPU, and LibTorch finds none");
  at::manual_seed(0);
  const at::Tensor x = at::randn({1000}, device);
  const at::Tensor y = 3 * x - 2 + 0.01 * at::randn({1000}, device);
  const auto options = at::TensorOptions(device).dtype(at::kFloat);
  const std::vector<at::Tensor> params = {at::zeros({1}, options), at::zeros({1}, options)};
  const std::vector<at::Tensor> exp_avgs = {at::zeros({1}, options), at::zeros({1}, options)};
  const std::vector<at::Tensor> grads = {at::empty({1}, options), at::empty({1}, options)};
  const at::Tensor overflow = at::zeros({1}, options.dtype(at::kInt));

  constexpr int kSteps = 1000;
  for (int step = 0; step < kSteps; ++step) {
    const float lr = 0.02f * static_cast<float>(kSteps - step) / kSteps;
    overflow.zero_();
    // Unscales and checks for Inf and NaN. The functor reads the flag on the device and skips the step after an overflow.
    multi_tensor_scale_cuda(65536, overflow, {scaled_grads(x, y, params[0], params[1]), grads}, 1 / kLossScale);
    multi_tensor_lion_cuda(65536, overflow, {grads, params, exp_avgs}, lr, 0.9f, 0.99f, 0.0f);
  }
  std::printf("slope %.2f, offset %.2f\n", params[0].item<double>(), params[1].item<double>());
}

}  // namespace

int main(int argc, char** argv) try {
  const std::string device = argc > 1 ? argv[1] : "cpu";
  if (device == "--help") return std::puts("usage: multi_tensor_functor [cpu|cuda]"), 0;
  fit(at::Device(device));
} catch (const c10::Error& error) {
  std::fprintf(stderr, "%s\n", error.what_without_backtrace());
  return 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
