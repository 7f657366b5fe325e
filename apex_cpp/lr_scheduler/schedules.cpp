#include <apex_cpp/lr_scheduler/detail/numbers.h>
#include <apex_cpp/lr_scheduler/schedules.h>

#include <c10/util/Exception.h>

#include <cmath>
#include <utility>

// Python's formulas, with its order of operations: the bits of the rates depend on it. A Python float is a double, `**` is
// std::pow, and an integer in an expression with floats is converted first.
namespace apex::lr_scheduler {
namespace {

using detail::kPi;
using detail::real;

void check_finite(const char* scheduler, const char* name, double value) {
  TORCH_CHECK_VALUE(std::isfinite(value), scheduler, ": ", name, " is ", value, ". Give a finite number.");
}

void check_positive(const char* scheduler, const char* name, int64_t value) {
  TORCH_CHECK_VALUE(value > 0, scheduler, ": ", name, " is ", value, ". Give a positive number of steps.");
}

void check_not_negative(const char* scheduler, const char* name, int64_t value) {
  TORCH_CHECK_VALUE(value >= 0, scheduler, ": ", name, " is ", value, ". Give a number of steps that is not negative.");
}

void check_factor(const char* scheduler, const char* name, double value) {
  TORCH_CHECK_VALUE(value >= 0 && value <= 1, scheduler, ": ", name, " is ", value,
                    ". Give a factor from 0 to 1; to raise rates, give the optimizer the highest one.");
}

std::vector<double> times(std::vector<double> lrs, double factor) {
  for (double& lr : lrs) lr *= factor;
  return lrs;
}

}  // namespace

LambdaLR::LambdaLR(torch::optim::Optimizer& optimizer, const Lambda& lr_lambda)
    : LambdaLR(optimizer, std::vector<Lambda>(optimizer.param_groups().size(), lr_lambda)) {}

LambdaLR::LambdaLR(torch::optim::Optimizer& optimizer, std::vector<Lambda> lr_lambdas)
    : LRScheduler(optimizer), lr_lambdas_(std::move(lr_lambdas)) {
  const auto groups = optimizer.param_groups().size();
  TORCH_CHECK_VALUE(lr_lambdas_.size() == groups, "LambdaLR: ", lr_lambdas_.size(), " functions were given for ", groups,
                    " parameter groups. Give one function, or one for each group.");
  for (size_t i = 0; i < groups; ++i) {
    TORCH_CHECK_VALUE(lr_lambdas_[i], "LambdaLR: the function of group ", i,
                      " is empty. Give one that returns a factor; [](int64_t) { return 1.0; } keeps the rate.");
  }
  step();
}

void LambdaLR::check_step() const { base_lrs(); }

std::vector<double> LambdaLR::get_lr() {
  auto lrs = base_lrs();
  for (size_t i = 0; i < lrs.size(); ++i) lrs[i] *= lr_lambdas_[i](epoch());
  return lrs;
}

StepLR::StepLR(torch::optim::Optimizer& optimizer, int64_t step_size, double gamma)
    : LRScheduler(optimizer), step_size_(step_size), gamma_(gamma) {
  check_positive("StepLR", "step_size", step_size);
  check_finite("StepLR", "gamma", gamma);
  step();
}

std::vector<double> StepLR::get_lr() {
  return epoch() == 0 || epoch() % step_size_ != 0 ? get_current_lrs() : scaled_lrs(gamma_);
}

MultiStepLR::MultiStepLR(torch::optim::Optimizer& optimizer, const std::vector<int64_t>& milestones, double gamma)
    : LRScheduler(optimizer), gamma_(gamma) {
  check_finite("MultiStepLR", "gamma", gamma);
  for (const int64_t milestone : milestones) ++milestones_[milestone];
  step();
}

double MultiStepLR::factor() const { return std::pow(gamma_, real(milestones_.at(epoch()))); }

std::vector<double> MultiStepLR::get_lr() { return milestones_.count(epoch()) > 0 ? scaled_lrs(factor()) : get_current_lrs(); }

std::vector<double> MultiStepLR::first_lr() {
  int64_t reached = 0;
  for (const auto& [milestone, count] : milestones_) reached += milestone <= 0 ? count : 0;
  return times(base_lrs(), std::pow(gamma_, real(reached)));
}

ConstantLR::ConstantLR(torch::optim::Optimizer& optimizer, double factor, int64_t total_iters)
    : LRScheduler(optimizer), factor_(factor), total_iters_(total_iters) {
  check_factor("ConstantLR", "factor", factor);
  check_not_negative("ConstantLR", "total_iters", total_iters);
  step();
}

void ConstantLR::check_step() const {
  TORCH_CHECK_VALUE(factor_ != 0 || epoch() == 0 || epoch() != total_iters_, "ConstantLR: after total_iters = ", total_iters_,
                    " steps the factor 0 cannot be undone. Give a small factor above 0, or end it in SequentialLR.");
}

std::vector<double> ConstantLR::get_lr() {
  if (epoch() == 0) return scaled_lrs(factor_);
  return epoch() == total_iters_ ? scaled_lrs(1.0 / factor_) : get_current_lrs();
}

std::vector<double> ConstantLR::first_lr() {
  return times(base_lrs(), factor_ + (total_iters_ == 0 ? 1.0 : 0.0) * (1 - factor_));
}

LinearLR::LinearLR(torch::optim::Optimizer& optimizer, double start_factor, double end_factor, int64_t total_iters)
    : LRScheduler(optimizer), start_factor_(start_factor), end_factor_(end_factor), total_iters_(total_iters) {
  TORCH_CHECK_VALUE(start_factor > 0 && start_factor <= 1, "LinearLR: start_factor is ", start_factor,
                    ". Give a factor above 0, up to 1; to raise rates, give the optimizer the highest one.");
  check_factor("LinearLR", "end_factor", end_factor);
  check_not_negative("LinearLR", "total_iters", total_iters);
  step();
}

std::vector<double> LinearLR::get_lr() {
  if (epoch() == 0) return scaled_lrs(start_factor_);
  if (epoch() > total_iters_) return get_current_lrs();
  const double rise = end_factor_ - start_factor_;
  const double before = real(total_iters_) * start_factor_ + real(epoch() - 1) * rise;
  return scaled_lrs(1.0 + rise / before);
}

std::vector<double> LinearLR::first_lr() { return times(base_lrs(), start_factor_); }

ExponentialLR::ExponentialLR(torch::optim::Optimizer& optimizer, double gamma) : LRScheduler(optimizer), gamma_(gamma) {
  check_finite("ExponentialLR", "gamma", gamma);
  step();
}

std::vector<double> ExponentialLR::get_lr() { return epoch() == 0 ? get_current_lrs() : scaled_lrs(gamma_); }

PolynomialLR::PolynomialLR(torch::optim::Optimizer& optimizer, int64_t total_iters, double power)
    : LRScheduler(optimizer), total_iters_(total_iters), power_(power) {
  check_positive("PolynomialLR", "total_iters", total_iters);
  TORCH_CHECK_VALUE(std::isfinite(power) && power >= 0, "PolynomialLR: power is ", power,
                    ". Give a finite power that is not negative.");
  step();
}

std::vector<double> PolynomialLR::get_lr() {
  if (epoch() == 0 || epoch() > total_iters_) return get_current_lrs();
  const double total = real(total_iters_);
  return scaled_lrs(std::pow((1.0 - real(epoch()) / total) / (1.0 - real(epoch() - 1) / total), power_));
}

CosineAnnealingLR::CosineAnnealingLR(torch::optim::Optimizer& optimizer, int64_t T_max, double eta_min)
    : LRScheduler(optimizer), t_max_(T_max), eta_min_(eta_min) {
  check_positive("CosineAnnealingLR", "T_max", T_max);
  check_finite("CosineAnnealingLR", "eta_min", eta_min);
  step();
}

bool CosineAnnealingLR::turns() const { return epoch() > 0 && (epoch() - 1 - t_max_) % (2 * t_max_) == 0; }

void CosineAnnealingLR::check_step() const {
  if (turns()) base_lrs();
}

std::vector<double> CosineAnnealingLR::get_lr() {
  auto lrs = get_current_lrs();
  if (epoch() == 0) return lrs;
  const double total = real(t_max_);
  if (turns()) {
    const auto& base = base_lrs();
    for (size_t i = 0; i < lrs.size(); ++i) lrs[i] += (base[i] - eta_min_) * (1 - std::cos(kPi / total)) / 2;
    return lrs;
  }
  const double factor = (1 + std::cos(kPi * real(epoch()) / total)) / (1 + std::cos(kPi * real(epoch() - 1) / total));
  for (double& lr : lrs) lr = factor * (lr - eta_min_) + eta_min_;
  return lrs;
}

std::vector<double> CosineAnnealingLR::first_lr() {
  auto lrs = base_lrs();
  for (double& lr : lrs) lr = eta_min_ + (lr - eta_min_) * 2.0 / 2.0;  // 1 + the cosine of 0
  return lrs;
}

}  // namespace apex::lr_scheduler
