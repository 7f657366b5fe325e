// What the weight gradient of a convolution takes in BF16 on one CPU thread and on all, beside LibTorch's in BF16 and in FP32.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "../suites.h"
#include "common/user_error.h"
#include "kernels/convolution/weight_grad.h"

namespace bench {
namespace convolution {
namespace {

constexpr const char* kGroup = "weight gradient";
constexpr double kSeconds = 0.01;  // for one measurement, if a call does not take longer

struct Shape {
  int64_t images, input, output, size, kernel, stride;

  std::string name() const {
    const auto times = [](int64_t a) { return std::to_string(a) + "x" + std::to_string(a); };
    return std::to_string(images) + " of " + times(size) + ", " + std::to_string(input) + " to " + std::to_string(output) +
           ", " + times(kernel) + (stride > 1 ? ", stride " + std::to_string(stride) : "");
  }
};

// A residual network for small images, and the shapes of a ResNet-50.
constexpr Shape kShapes[] = {{32, 32, 32, 32, 3, 1}, {32, 64, 64, 16, 3, 1},  {32, 128, 128, 8, 3, 1},
                             {32, 32, 64, 32, 3, 2}, {32, 64, 128, 16, 3, 2}, {32, 32, 64, 32, 1, 2},
                             {8, 64, 64, 56, 3, 1},  {8, 256, 256, 14, 3, 1}, {8, 512, 512, 7, 3, 1},
                             {8, 256, 64, 56, 1, 1}, {8, 64, 256, 56, 1, 1},  {8, 1024, 256, 14, 1, 1}};

struct Operands {
  at::Tensor grad_output, input, weight;

  Operands to(at::ScalarType type) const { return {grad_output.to(type), input.to(type), weight.to(type)}; }
};

Operands random(const Shape& s) {
  const auto values = [](at::IntArrayRef sizes) { return at::randn(sizes).contiguous(at::MemoryFormat::ChannelsLast); };
  const int64_t padding = s.kernel / 2, size = (s.size + 2 * padding - s.kernel) / s.stride + 1;
  return {values({s.images, s.output, size, size}), values({s.images, s.input, s.size, s.size}),
          values({s.output, s.input, s.kernel, s.kernel})};
}

double products(const Shape& s, const Operands& operands) {
  return static_cast<double>(operands.grad_output.numel() * s.input * s.kernel * s.kernel);
}

Variant timed(const std::string& name, const std::function<void()>& call) {
  const int calls = calls_in(call, kSeconds);
  return {name, [call, calls] { return nanoseconds_per_call(call, calls); }};
}

Variant by_torch(const std::string& name, const Shape& s, const Operands& t) {
  return timed(name, [s, t] {
    at::convolution_backward(t.grad_output, t.input, t.weight, at::OptionalIntArrayRef(), {s.stride, s.stride},
                             {s.kernel / 2, s.kernel / 2}, {1, 1}, false, {0, 0}, 1, {false, true, false});
  });
}

Variant by_kernel(const Shape& s, const Operands& t) {
  const int64_t padding = s.kernel / 2;
  const apex::kernels::ConvolutionSteps steps{{s.stride, s.stride}, {padding, padding}, {1, 1}};
  return timed("ours", [steps, t] { apex::kernels::convolution_weight_grad(t.grad_output, t.input, t.weight, steps, false); });
}

Result measure(Runner& runner, const Shape& shape, int threads) {
  const Operands float32 = random(shape), bfloat16 = float32.to(at::kBFloat16);
  const auto medians =
      runner.medians(std::string(kGroup) + "/" + shape.name(), threads,
                     {by_kernel(shape, bfloat16), by_torch("torch", shape, bfloat16), by_torch("torch FP32", shape, float32)});
  return {kGroup,
          shape.name(),
          threads,
          {{"ours us", medians[0] / 1000},
           {"torch us", medians[1] / 1000},
           {"torch FP32 us", medians[2] / 1000},
           {"ours GFLOP/s", 2 * products(shape, bfloat16) / medians[0]},
           {"torch/ours", medians[1] / medians[0]},
           {"torch FP32/ours", medians[2] / medians[0]}}};
}

}  // namespace
}  // namespace convolution

void run_convolution(Runner& runner) {
  if (!apex::kernels::has_convolution_weight_grad()) {
    throw common::UserError("the kernel for weight gradients of convolutions needs a processor with AVX512-BF16.");
  }
  const at::NoGradGuard no_grad;
  for (const int threads : runner.thread_counts()) {
    for (const auto& shape : convolution::kShapes) {
      if (runner.wants(convolution::kGroup, shape.name())) runner.add(convolution::measure(runner, shape, threads));
    }
  }
  runner.print_group();
}

}  // namespace bench
