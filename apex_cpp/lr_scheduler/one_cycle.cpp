#include <apex_cpp/lr_scheduler/detail/numbers.h>
#include <apex_cpp/lr_scheduler/one_cycle.h>
#include <apex_cpp/optimizers.h>

#include <c10/util/Exception.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <utility>

namespace apex::lr_scheduler {
namespace {

using detail::kPi;
using detail::real;

// ---- what is cycled in the options of a group: the first of `betas`, else `momentum` ----

using torch::optim::OptimizerOptions;

template <class... Options>
struct Classes {};

using WithMomentum = Classes<torch::optim::SGDOptions, torch::optim::RMSpropOptions, optimizers::FusedSGDOptions,
                             optimizers::FusedLARSOptions, optimizers::MuonOptions>;
using WithBetas =
    Classes<torch::optim::AdamOptions, torch::optim::AdamWOptions, optimizers::FusedAdamOptions, optimizers::FusedLAMBOptions,
            optimizers::FusedLionOptions, optimizers::FusedNovoGradOptions, optimizers::FusedMixedPrecisionLambOptions>;

/// Calls `f` with `options` as the class of the list that it is, or derives from. Returns whether there is one.
template <class... Options, class F>
bool with_class_among(Classes<Options...>, OptimizerOptions& options, const F& f) {
  const auto try_class = [&](auto* as) {
    if (as) f(*as);
    return as != nullptr;
  };
  return (try_class(dynamic_cast<Options*>(&options)) || ...);
}

// None for a class of options with neither of them, or of a program's own.
std::optional<double> cycled_momentum(const OptimizerOptions& options) {
  std::optional<double> found;
  auto& mutable_options = const_cast<OptimizerOptions&>(detail::options_in_use(options));  // is only read
  with_class_among(WithBetas(), mutable_options, [&](auto& as) { found = std::get<0>(as.betas()); });
  with_class_among(WithMomentum(), mutable_options, [&](auto& as) { found = as.momentum(); });
  return found;
}

// For options that have one.
void set_cycled_momentum(OptimizerOptions& options, double value) {
  detail::write_options(options, [&](OptimizerOptions& in_use) {
    with_class_among(WithBetas(), in_use, [&](auto& as) { std::get<0>(as.betas()) = value; });
    with_class_among(WithMomentum(), in_use, [&](auto& as) { as.momentum(value); });
  });
}

int64_t positive(const char* name, int64_t value) {
  TORCH_CHECK_VALUE(value > 0, "OneCycleLR: ", name, " is ", value, ". Give a positive number.");
  return value;
}

int64_t total_steps_of(const OneCycleLROptions& options) {
  if (options.total_steps()) return positive("total_steps", *options.total_steps());
  TORCH_CHECK_VALUE(options.epochs() && options.steps_per_epoch(),
                    "OneCycleLR: the number of steps is not known. Set total_steps, or both epochs and steps_per_epoch.");
  const int64_t epochs = positive("epochs", *options.epochs());
  const int64_t steps = positive("steps_per_epoch", *options.steps_per_epoch());
  TORCH_CHECK_VALUE(epochs <= std::numeric_limits<int64_t>::max() / steps, "OneCycleLR: epochs = ", epochs,
                    " times steps_per_epoch = ", steps, " is too large a number of steps. Give fewer.");
  return epochs * steps;
}

std::vector<double> for_groups(const char* name, const std::vector<double>& values, size_t groups) {
  TORCH_CHECK_VALUE(values.size() == groups || values.size() == 1, "OneCycleLR: ", name, " has ", values.size(), " values for ",
                    groups, " parameter groups. Give one value, or one for each group.");
  for (const double value : values) {
    TORCH_CHECK_VALUE(std::isfinite(value), "OneCycleLR: ", name, " has the value ", value, ". Give finite numbers.");
  }
  return values.size() == groups ? values : std::vector<double>(groups, values.front());
}

void check_values(const OneCycleLROptions& options) {
  TORCH_CHECK_VALUE(options.pct_start() >= 0 && options.pct_start() <= 1, "OneCycleLR: pct_start is ", options.pct_start(),
                    ". Give a part of the cycle from 0 to 1.");
  TORCH_CHECK_VALUE(options.anneal_strategy() == "cos" || options.anneal_strategy() == "linear",
                    "OneCycleLR: anneal_strategy is '", options.anneal_strategy(), "'. Give \"cos\" or \"linear\".");
  for (const double divisor : {options.div_factor(), options.final_div_factor()}) {
    TORCH_CHECK_VALUE(std::isfinite(divisor) && divisor != 0, "OneCycleLR: div_factor or final_div_factor is ", divisor,
                      ". Give a finite number other than 0.");
  }
}

void check_has_momentum(torch::optim::Optimizer& optimizer) {
  const auto& groups = optimizer.param_groups();
  for (size_t i = 0; i < groups.size(); ++i) {
    TORCH_CHECK_VALUE(cycled_momentum(groups[i].options()),
                      "OneCycleLR: cycle_momentum needs options with momentum or "
                      "betas, and those of parameter group ",
                      i, " have neither that is known here. Set cycle_momentum(false).");
  }
}

}  // namespace

std::vector<OneCycleLR::Phase> OneCycleLR::phases_of(const OneCycleLROptions& options, int64_t total_steps) {
  const double total = real(total_steps), last = total - 1, peak = options.pct_start() * total - 1;
  constexpr auto kInitial = &Bounds::initial, kMax = &Bounds::max, kMin = &Bounds::min;
  if (!options.three_phase()) {
    return {{0.0, peak, kInitial, kMax, kMax, kMin}, {peak, last, kMax, kMin, kMin, kMax}};
  }
  const double back = 2 * options.pct_start() * total - 2;
  return {{0.0, peak, kInitial, kMax, kMax, kMin},
          {peak, back, kMax, kInitial, kMin, kMax},
          {back, last, kInitial, kMin, kMax, kMax}};
}

OneCycleLR::OneCycleLR(torch::optim::Optimizer& optimizer, const OneCycleLROptions& options)
    : LRScheduler(optimizer),
      total_steps_(total_steps_of(options)),
      is_cosine_(options.anneal_strategy() == "cos"),
      cycle_momentum_(options.cycle_momentum()),
      phases_(phases_of(options, total_steps_)) {
  check_values(options);
  TORCH_CHECK_VALUE(phases_.front().end_step != 0, "OneCycleLR: with pct_start = ", options.pct_start(),
                    " of total_steps = ", total_steps_,
                    " the rate would rise within 0 steps. Give another pct_start, or more steps.");
  const auto groups = optimizer.param_groups().size();
  std::vector<double> initial;
  for (const double max_lr : for_groups("max_lr", options.max_lr(), groups)) {
    initial.push_back(max_lr / options.div_factor());
    lrs_.push_back({initial.back(), max_lr, initial.back() / options.final_div_factor()});
  }
  const auto base = for_groups("base_momentum", options.base_momentum(), groups);
  const auto max = for_groups("max_momentum", options.max_momentum(), groups);
  for (size_t i = 0; i < groups; ++i) momentums_.push_back({max[i], max[i], base[i]});
  if (cycle_momentum_) check_has_momentum(optimizer);
  set_base_lrs(std::move(initial));
  step();
}

const OneCycleLR::Phase& OneCycleLR::phase() const {
  size_t i = 0;
  while (i + 1 < phases_.size() && real(epoch()) > phases_[i].end_step) ++i;
  return phases_[i];
}

// As in Python, one step more than total_steps - 1 is allowed: it goes on in the last phase's formula.
void OneCycleLR::check_step() const {
  TORCH_CHECK_VALUE(epoch() <= total_steps_ && phase().start_step != phase().end_step, "OneCycleLR: step ", epoch(),
                    " is past the end of the cycle, whose total_steps is ", total_steps_,
                    ". Give as many steps as the program makes, or stop calling step().");
  base_lrs();
}

double OneCycleLR::anneal(double start, double end, double pct) const {
  return is_cosine_ ? end + (start - end) / 2.0 * (std::cos(kPi * pct) + 1) : (end - start) * pct + start;
}

std::vector<double> OneCycleLR::get_lr() {
  const Phase& now = phase();
  const double pct = (real(epoch()) - now.start_step) / (now.end_step - now.start_step);
  auto& groups = optimizer().param_groups();
  std::vector<double> lrs;
  for (size_t i = 0; i < lrs_.size(); ++i) {
    lrs.push_back(anneal(lrs_[i].*now.start_lr, lrs_[i].*now.end_lr, pct));
    if (!cycle_momentum_) continue;
    set_cycled_momentum(groups[i].options(), anneal(momentums_[i].*now.start_momentum, momentums_[i].*now.end_momentum, pct));
  }
  return lrs;
}

void OneCycleLR::write_state(StateDict& state, const std::string& prefix) const {
  LRScheduler::write_state(state, prefix);
  if (!cycle_momentum_) return;
  std::vector<double> momentums;
  for (const auto& group : optimizer().param_groups()) momentums.push_back(*cycled_momentum(group.options()));
  detail::write_groups(state, prefix + "momentum", momentums);
}

void OneCycleLR::check_state(const StateDict& state, const std::string& prefix) const {
  LRScheduler::check_state(state, prefix);
  if (cycle_momentum_) detail::read_groups(state, prefix + "momentum", lrs_.size());
}

void OneCycleLR::read_state(const StateDict& state, const std::string& prefix) {
  LRScheduler::read_state(state, prefix);
  if (!cycle_momentum_) return;
  const auto momentums = detail::read_groups(state, prefix + "momentum", lrs_.size());
  for (size_t i = 0; i < momentums.size(); ++i) {
    set_cycled_momentum(optimizer().param_groups()[i].options(), momentums[i]);
  }
}

}  // namespace apex::lr_scheduler
