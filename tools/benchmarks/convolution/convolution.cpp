// BF16 convolutions, their input gradients and their weight gradients, on one CPU thread and on all, compared with LibTorch in
// BF16 and in FP32.
#include <ATen/Functions.h>
#include <ATen/core/grad_mode.h>

#include "../suites.h"
#include "common/user_error.h"
#include "kernels/convolution/convolution.h"

namespace bench {
namespace convolution {
namespace {

constexpr double kSeconds = 0.01;  // per measurement, unless one call takes longer

struct Shape {
  int64_t images, input, output, size, kernel, stride;

  std::string name() const {
    const auto times = [](int64_t a) { return std::to_string(a) + "x" + std::to_string(a); };
    return std::to_string(images) + " of " + times(size) + ", " + std::to_string(input) + " to " + std::to_string(output) +
           ", " + times(kernel) + (stride > 1 ? ", stride " + std::to_string(stride) : "");
  }
};

// A residual network for small images, then shapes of a ResNet-50.
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

struct Problem {
  Shape shape;
  Operands operands;

  apex::kernels::ConvolutionSteps steps() const {
    const int64_t padding = shape.kernel / 2;
    return {{shape.stride, shape.stride}, {padding, padding}, {1, 1}};
  }
  Problem to(at::ScalarType type) const { return {shape, operands.to(type)}; }
};

void gradient_by_torch(const Problem& p, std::array<bool, 3> needs) {
  const auto steps = p.steps();
  at::convolution_backward(p.operands.grad_output, p.operands.input, p.operands.weight, at::OptionalIntArrayRef(), steps.stride,
                           steps.padding, steps.dilation, false, {0, 0}, 1, needs);
}

struct Kind {
  const char* name;
  bool (*is_taken)(const Problem&);
  void (*by_kernel)(const Problem&);
  void (*by_torch)(const Problem&);
};

// clang-format off
const Kind kKinds[] = {
    {"forward",
     [](const Problem& p) {
       return apex::kernels::takes_convolution_forward(p.operands.input, p.operands.weight, std::nullopt, p.steps());
     },
     [](const Problem& p) {
       apex::kernels::convolution_forward(p.operands.input, p.operands.weight, std::nullopt, p.steps());
     },
     [](const Problem& p) {
       const auto steps = p.steps();
       at::convolution(p.operands.input, p.operands.weight, std::nullopt, steps.stride, steps.padding, steps.dilation, false,
                       {0, 0}, 1);
     }},
    {"input gradient",
     [](const Problem& p) {
       const Operands& t = p.operands;
       return apex::kernels::takes_convolution_input_grad(t.grad_output, t.input, t.weight, p.steps());
     },
     [](const Problem& p) {
       const Operands& t = p.operands;
       apex::kernels::convolution_input_grad(t.grad_output, t.input, t.weight, p.steps());
     },
     [](const Problem& p) { gradient_by_torch(p, {true, false, false}); }},
    {"weight gradient",
     [](const Problem& p) {
       const Operands& t = p.operands;
       return apex::kernels::takes_convolution_weight_grad(t.grad_output, t.input, t.weight);
     },
     [](const Problem& p) {
       const Operands& t = p.operands;
       apex::kernels::convolution_weight_grad(t.grad_output, t.input, t.weight, p.steps(), false);
     },
     [](const Problem& p) { gradient_by_torch(p, {false, true, false}); }},
};
// clang-format on

Variant timed(const std::string& name, void (*call)(const Problem&), const Problem& problem) {
  const std::function<void()> run = [call, problem] { call(problem); };
  const int calls = calls_in(run, kSeconds);
  return {name, [run, calls] { return nanoseconds_per_call(run, calls); }};
}

Result measure(Runner& runner, const Kind& kind, const Problem& bfloat16, int threads) {
  const std::string shape = bfloat16.shape.name();
  const auto medians = runner.medians(std::string(kind.name) + "/" + shape, threads,
                                      {timed("apex_cpp", kind.by_kernel, bfloat16), timed("torch", kind.by_torch, bfloat16),
                                       timed("torch FP32", kind.by_torch, bfloat16.to(at::kFloat))});
  return {kind.name,
          shape,
          threads,
          {{"apex_cpp us", medians[0] / 1000},
           {"torch us", medians[1] / 1000},
           {"torch FP32 us", medians[2] / 1000},
           {"apex_cpp GFLOP/s", 2 * products(bfloat16.shape, bfloat16.operands) / medians[0]},
           {"torch/apex_cpp", medians[1] / medians[0]},
           {"torch FP32/apex_cpp", medians[2] / medians[0]}}};
}

void measure_kind(Runner& runner, const Kind& kind, int threads) {
  for (const Shape& shape : kShapes) {
    if (!runner.wants(kind.name, shape.name())) continue;
    const Problem problem{shape, random(shape).to(at::kBFloat16)};
    if (kind.is_taken(problem)) runner.add(measure(runner, kind, problem, threads));
  }
}

}  // namespace
}  // namespace convolution

void run_convolution(Runner& runner) {
  if (!apex::kernels::has_convolutions()) {
    throw common::UserError("the kernels for convolutions need a processor with AVX512-BF16.");
  }
  const at::NoGradGuard no_grad;
  for (const auto& kind : convolution::kKinds) {
    for (const int threads : runner.thread_counts()) convolution::measure_kind(runner, kind, threads);
    runner.print_group();
  }
}

}  // namespace bench
