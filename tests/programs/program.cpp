#include "tests/programs/program.h"

#include <algorithm>
#include <cmath>

namespace apex::test::programs {
namespace {

constexpr int kSeeds = 8;

template <class Run>
Run run(const std::function<void(Run&)>& program, Run run, int seed) {
  amp::reset();
  at::set_num_threads(1);  // with tensors this small, waking a second one costs more than it does
  torch::manual_seed(seed);
  const std::string error = message_of([&] { program(run); });
  EXPECT_EQ(error.substr(0, error.find('\n')), "");
  amp::reset();
  return run;
}

/// Where plain runs end.
struct Spread {
  double mean = 0, deviation = 0;
};

Spread spread_of(const std::vector<double>& values) {
  Spread spread;
  for (const double value : values) spread.mean += value / values.size();
  for (const double value : values) spread.deviation += std::pow(value - spread.mean, 2) / (values.size() - 1);
  spread.deviation = std::sqrt(spread.deviation);
  return spread;
}

/// The largest allowed distance of a 16-bit run's result from the mean of the plain runs. In most programs the run follows the
/// plain run with the same seed. In one that magnifies every rounding, such as a GAN, it is another sample from their
/// distribution. For eight seeds that lies within t * sqrt(1 + 1 / 8) = 5 deviations, where t = 4.8 is Student's quantile for 7
/// degrees of freedom and 99.8 %. If all seeds end alike, the floor applies: the result is computed from outputs that are
/// rounded at their initial size, a few roundings deep. At O6 products have 16 terms or more, each with two roundings of at
/// most 2^-4: their sum is off by about 2^-4 sqrt(2 / 16) < 2^-5. O3, which may diverge, must reach four fifths of the
/// improvement.
double tolerance(const Spread& spread, const std::string& level, double first) {
  const double epsilon = level == "O0" ? 0.0 : std::ldexp(1.0, level == "O6" ? -5 : level >= "O4" ? -8 : -11);
  const double allowed = 5 * spread.deviation + 4 * epsilon * std::abs(first);
  return level == "O3" ? std::max(allowed, (first - spread.mean) / 5) : allowed;
}

bool has_masters(const std::string& level) { return level == "O2" || level >= "O5"; }

torch::ScalarType parameter_type(const torch::nn::Module& module, const std::string& level) {
  const bool batch_norm =
      module.as<torch::nn::BatchNorm1d>() || module.as<torch::nn::BatchNorm2d>() || module.as<torch::nn::BatchNorm3d>();
  if (level == "O3") return torch::kHalf;
  if (!has_masters(level) || batch_norm) return torch::kFloat;
  return level == "O2" ? torch::kHalf : torch::kBFloat16;
}

/// amp leaves what is neither FP32 nor 16-bit alone.
bool is_cast(const Tensor& tensor) { return tensor.is_floating_point() && tensor.scalar_type() != torch::kDouble; }

/// Of a parameter and its gradient, if it has one.
void expect_type(const Tensor& parameter, torch::ScalarType type, const std::string& name) {
  if (!is_cast(parameter)) return;
  EXPECT_EQ(parameter.scalar_type(), type) << name;
  EXPECT_EQ((parameter.grad().defined() ? parameter.grad() : parameter).scalar_type(), type) << name;
}

void expect_types(const torch::nn::Module& module, const std::string& level) {
  module.apply([&](const torch::nn::Module& part) {
    for (const auto& item : part.named_parameters(/*recurse=*/false)) {
      expect_type(item.value(), parameter_type(part, level), part.name() + " " + item.key());
    }
  });
}

}  // namespace

Tensor real_points() { return torch::randn({32, 2}) * 0.3 + torch::tensor({2.0, -1.0}); }

Tensor distance_from_real(const Tensor& points) {
  return (points.detach().to(torch::kFloat).mean(0) - torch::tensor({2.0, -1.0})).norm();
}

double Plain::clip_grad_norm_(torch::optim::Optimizer& optimizer, double max_norm) {
  std::vector<Tensor> parameters;
  for (const auto& group : optimizer.param_groups()) {
    parameters.insert(parameters.end(), group.params().begin(), group.params().end());
  }
  return torch::nn::utils::clip_grad_norm_(parameters, max_norm);
}

void WithAmp::backward(const Tensor& loss, const amp::OptimizerList& optimizers, const amp::ScaleLossOptions& options) {
  {
    auto scaled_loss = amp::scale_loss(loss, optimizers, options);
    scaled_loss.backward();
  }
  expect_promised_dtypes(optimizers, !options.delay_unscale());
}

void WithAmp::output(const Tensor& output) const {
  if (level_ == "O1" || level_ == "O4") return;
  EXPECT_EQ(output.scalar_type(), torch::kFloat);
}

void WithAmp::expect_promised_dtypes(const amp::OptimizerList& optimizers, bool unscaled) const {
  for (const auto& each : modules_) {
    if (!each.is_shared || !each.owners.expired()) expect_types(*each.module, level_);
  }
  if (!unscaled || !has_masters(level_)) return;
  for (auto* optimizer : optimizers) {
    for (const auto& master : amp::master_params(*optimizer)) {
      if (master.requires_grad()) expect_type(master, torch::kFloat, "master");  // one that is frozen has none
    }
  }
}

void expect_trains_as_without_amp(const Program& program, const std::vector<std::string>& levels, bool exact) {
  std::vector<double> ends;
  for (int seed = 0; seed < kSeeds; ++seed) ends.push_back(run(program.plain, Plain(), seed).last());
  const Spread spread = spread_of(ends);
  for (const auto& level : levels) {
    SCOPED_TRACE(level);
    const WithAmp report = run(program.with_amp, WithAmp(level), /*seed=*/0);
    if (level == "O0" && exact) {
      EXPECT_EQ(report.last(), ends[0]);
    }
    const double allowed = tolerance(spread, level, report.first());
    EXPECT_NEAR(report.last(), spread.mean, allowed) << "plain runs end at " << ::testing::PrintToString(ends);
    // What learns nothing must not pass.
    EXPECT_GT(report.first(), spread.mean + allowed) << "plain runs end at " << ::testing::PrintToString(ends);
  }
}

}  // namespace apex::test::programs
