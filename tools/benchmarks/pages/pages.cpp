// The gain of huge pages for large CPU tensors in a training step: weights of 64 MB, activations of 51 MB.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <apex_cpp/amp/tensors/huge_pages.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/pooling.h>

#include "../suites.h"
#include "../train/contender.h"
#include "../train/processor.h"

namespace bench {
namespace pages {
namespace {

namespace nn = torch::nn;
using train::Batch, train::Contender, train::Network, train::Task, train::Way;

constexpr int64_t kClasses = 10, kInputs = 1024, kColours = 3;
constexpr double kMillisecond = 1e6;

int64_t units(bool quick) { return quick ? 64 : 4096; }

Network large_weights(bool quick) {
  const auto width = units(quick);
  return Network(nn::Sequential(nn::Linear(kInputs, width), nn::ReLU(), nn::Linear(width, width), nn::ReLU(),
                                nn::Linear(width, kClasses)));
}

Batch features(bool) { return {at::randn({64, kInputs}), at::randint(kClasses, {64}, at::kLong)}; }

nn::Conv2d convolution(int64_t in, int64_t out) { return nn::Conv2d(nn::Conv2dOptions(in, out, 3).padding(1).bias(false)); }

Network large_activations(bool quick) {
  const int64_t width = quick ? 8 : 64;
  return Network(nn::Sequential(convolution(kColours, width), nn::BatchNorm2d(width), nn::ReLU(), convolution(width, width),
                                nn::BatchNorm2d(width), nn::ReLU(), nn::AdaptiveAvgPool2d(1), nn::Flatten(),
                                nn::Linear(width, kClasses)));
}

Batch images(bool quick) {
  const int64_t pixels = quick ? 8 : 112;
  return {at::randn({16, kColours, pixels, pixels}).contiguous(at::MemoryFormat::ChannelsLast),
          at::randint(kClasses, {16}, at::kLong)};
}

const Task kTasks[] = {{"weights", large_weights, features}, {"activations", large_activations, images}};

std::function<double()> step_in(Contender& contender, bool huge) {
  return [&contender, huge] {
    apex::amp::detail::set_huge_pages(huge);
    return contender.step();
  };
}

void compare(Runner& runner, const Task& task, const Way& way) {
  Contender contender(task, way, at::kCPU, runner.quick());
  const auto medians = runner.medians(std::string(task.name) + "/" + way.name(), at::get_num_threads(),
                                      {{"4 KB", step_in(contender, false)}, {"huge", step_in(contender, true)}});
  Result result{task.name, way.name(), at::get_num_threads(), {}};
  result.values = {{"4 KB pages ms", medians[0] / kMillisecond},
                   {"huge pages ms", medians[1] / kMillisecond},
                   {"huge/4 KB", medians[1] / medians[0]}};
  runner.add(std::move(result));
}

std::vector<Way> wanted_levels(const Runner& runner, const Task& task) {
  std::vector<Way> levels;
  for (const Way& way : train::ways()) {
    if (way.kind == way.level && way.fused && runner.wants(task.name, way.name())) levels.push_back(way);
  }
  return levels;
}

}  // namespace
}  // namespace pages

void run_pages(Runner& runner) {
  at::set_num_threads(runner.thread_counts().back());
  for (const auto& task : pages::kTasks) {
    const auto levels = pages::wanted_levels(runner, task);
    if (levels.empty()) continue;
    if (runner.results().empty()) runner.add(train::processor(at::get_num_threads()));
    runner.print_group();
    for (const auto& way : levels) pages::compare(runner, task, way);
    runner.print_group();
  }
}

}  // namespace bench
