#include <apex_cpp/amp/doctor/diagnosis.h>

#include <apex_cpp/amp/doctor/fp32_rules.h>
#include <apex_cpp/amp/scaling/loss_scaler.h>
#include "opt_levels/resolve.h"

#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

namespace apex::amp::detail {
namespace {

using opt_levels::InitializeOptions;

c10::ScalarType low_type_of(const OptLevel& level) {
  const auto properties = opt_levels::resolve(level).properties;
  if (properties.patch_torch_functions) return properties.patch_functions_type.value_or(at::kHalf);
  return properties.cast_model_type.value_or(at::kHalf);
}

bool has_float8(const OptLevel& level) { return opt_levels::resolve(level).fp8 != opt_levels::Float8Recipe::none; }

OptLevel without_float8(const OptLevel& level) { return level.with(InitializeOptions().fp8(opt_levels::Float8Recipe::none)); }

double fixed_loss_scale_of(const OptLevel& level) {
  const auto loss_scale = opt_levels::resolve(level).properties.loss_scale;
  return loss_scale.dynamic ? 1 : loss_scale.value;
}

// The largest relative error of rounding a number to this type.
double unit_roundoff(c10::ScalarType low_type) {
  const float spacing =
      low_type == at::kHalf ? std::numeric_limits<c10::Half>::epsilon() : std::numeric_limits<c10::BFloat16>::epsilon();
  return spacing / 2.0;
}

RunRecord plan_for(int64_t steps, int64_t observed_step = -1) {
  RunRecord plan;
  plan.steps = steps;
  plan.observed_step = observed_step;
  return plan;
}

// Mean over the last quarter of the first `steps` losses.
double mean_loss(const std::vector<double>& losses, size_t steps) {
  const size_t count = std::max<size_t>(1, steps / 4);
  const auto last = losses.begin() + static_cast<std::ptrdiff_t>(steps);
  return std::accumulate(last - static_cast<std::ptrdiff_t>(count), last, 0.0) / static_cast<double>(count);
}

std::vector<double> distances(const std::vector<double>& a, const std::vector<double>& b) {
  std::vector<double> distances(std::min(a.size(), b.size()));
  std::transform(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(distances.size()), b.begin(), distances.begin(),
                 [](double x, double y) { return std::abs(x - y); });
  return distances;
}

std::vector<double> losses_of_taken_steps(const RunRecord& record) {
  std::vector<double> losses;
  for (size_t i = 0; i < record.losses.size(); ++i) {
    if (!record.skipped[i]) losses.push_back(record.losses[i]);
  }
  return losses;
}

void check(const DoctorOptions& options) {
  TORCH_CHECK_VALUE(options.steps() >= 1, "Doctor: steps=", options.steps(), " is not allowed. Give 1 or more.");
  TORCH_CHECK_VALUE(options.seeds() >= 2, "Doctor: seeds=", options.seeds(),
                    " is not allowed: the spread over seeds is the tolerance. Give 2 or more.");
}

}  // namespace

LevelTrials::LevelTrials(DoctorProgram program, DoctorOptions options)
    : program_(std::move(program)), options_(std::move(options)), reference_level_(options_.reference()) {
  check(options_);
}

RunRecord LevelTrials::run(const OptLevel& level, const RunRecord& plan, uint64_t seed) {
  at::manual_seed(seed);
  const auto record = std::make_shared<RunRecord>(plan);
  DoctorRun run(record);
  program_(level.with(InitializeOptions().verbosity(0)), run);
  TORCH_CHECK(record->step >= 0,
              "Doctor: the program ended without a step. Write its loop as while (run.next()) { … run.loss(loss); }.");
  TORCH_CHECK(!record->observer && record->skipped.size() == record->losses.size(), "Doctor: the program ended after step ",
              record->step, " without calling run.next() again. End its loop when run.next() returns false.");
  return *record;
}

RunRecord LevelTrials::train(const OptLevel& level, uint64_t seed, std::optional<c10::ScalarType> perturb) {
  if (options_.on_run()) options_.on_run()("training at " + level.name());
  auto plan = plan_for(options_.steps());
  plan.perturb_weights = perturb;
  return run(level, plan, seed);
}

const LevelTrials::Reference& LevelTrials::reference_at(int64_t step, double loss_scale, c10::ScalarType low_type) {
  const auto found = references_.find({step, loss_scale});
  if (found != references_.end()) return found->second;
  if (options_.on_run()) options_.on_run()("observing " + reference_level_.name());
  const auto level = reference_level_.with(InitializeOptions().loss_scale(loss_scale));
  auto plan = plan_for(step + 1, step);
  Reference reference;
  reference.step = run(level, plan, options_.seed()).observed;
  plan.perturb_weights = low_type;
  reference.control = run(level, plan, options_.seed()).observed;
  return references_.emplace(std::pair(step, loss_scale), std::move(reference)).first->second;
}

// Lowers a dynamic loss scale until the gradients of the step do not overflow, as skipped steps would. An overflow on the way
// is not a divergence.
RunRecord LevelTrials::observe(const OptLevel& level, int64_t step) {
  if (options_.on_run()) options_.on_run()("observing " + level.name());
  const auto settings = opt_levels::resolve(level);
  auto options = InitializeOptions().skip_nonfinite(true);
  if (!settings.properties.loss_scale.dynamic) return run(level.with(options), plan_for(step + 1, step), options_.seed());
  double scale = std::min(LossScaler::kInitScale, settings.max_loss_scale);
  const double lowest = std::max(1.0, settings.min_loss_scale.value_or(1.0));
  while (true) {
    auto record = run(level.with(options.loss_scale(scale)), plan_for(step + 1, step), options_.seed());
    if (!record.skipped.back() || !std::isfinite(record.losses.back()) || scale <= lowest) return record;
    scale = std::max(lowest, scale / 4);
  }
}

Finding LevelTrials::find_in_step(const OptLevel& level, int64_t step) {
  Finding finding;
  finding.step = observe(level, step).observed;
  const auto& reference = reference_at(step, finding.step.loss_scale, low_type_of(level));
  const double min_sqnr = has_float8(level) ? std::min(options_.min_sqnr(), kFloat8Sqnr) : options_.min_sqnr();
  finding.located = first_divergence(reference.step, reference.control, finding.step, {min_sqnr, options_.min_gradient_sqnr()});
  auto& divergence = finding.located.divergence;
  divergence.step = step;
  divergence.fixed_loss_scale = fixed_loss_scale_of(level);
  return finding;
}

Finding LevelTrials::find(const OptLevel& level) {
  train_references(1);  // rules out errors that do not come from 16 bits
  auto first = find_in_step(level, 0);
  if (first.located.divergence) return first;
  const auto record = train(level, options_.seed());
  if (!record.has_failed() || record.step == 0) return first;
  // A loss that is not finite may come from weights that the step before made Inf or NaN.
  for (const int64_t step : {record.step - 1, record.step}) {
    auto later = find_in_step(level, step);
    if (later.located.divergence) return later;
  }
  return first;
}

void LevelTrials::train_references(int64_t seeds) {
  while (static_cast<int64_t>(reference_losses_.size()) < seeds) {
    const auto seed = options_.seed() + reference_losses_.size();
    const auto record = train(reference_level_, seed);
    TORCH_CHECK(!record.has_failed(), "Doctor: the program does not train at ", reference_level_.name(), " itself (seed ", seed,
                ", step ", record.step, ": ", record.failure_reason(),
                "). Another level does not help. Check the program's data, learning rate and loss, and look for tensors that "
                "it converts to 16 bits itself.");
    reference_losses_.push_back(record.losses);
  }
}

const std::vector<double>& LevelTrials::perturbed_losses(c10::ScalarType low_type) {
  if (perturbed_losses_) return *perturbed_losses_;
  const auto record = train(reference_level_, options_.seed(), low_type);
  return perturbed_losses_.emplace(record.has_failed() ? reference_losses_.front() : record.losses);
}

// If all seeds give the same run, as with weights from a file, their spread is 0, and a difference in the last bit would fail
// the level. The run from perturbed weights shows how strongly the program amplifies rounding errors. Rounding does not change
// weights that are 16-bit numbers already. The bound is therefore at least `kRoundingErrors` roundings of the loss itself.
double LevelTrials::spread_by_rounding(size_t steps, double loss, c10::ScalarType low_type) {
  const auto off = distances(reference_losses_.front(), perturbed_losses(low_type));
  return std::max(std::abs(loss) * kRoundingErrors * unit_roundoff(low_type), mean_loss(off, std::min(steps, off.size())));
}

bool LevelTrials::is_low_enough(double loss, size_t steps, c10::ScalarType low_type) {
  train_references(options_.seeds());
  double lowest = INFINITY, highest = -INFINITY;
  for (const auto& losses : reference_losses_) {
    const double of_seed = mean_loss(losses, std::min(steps, losses.size()));
    lowest = std::min(lowest, of_seed);
    highest = std::max(highest, of_seed);
  }
  return loss <= highest + (highest - lowest) || loss <= highest + spread_by_rounding(steps, highest, low_type);
}

bool LevelTrials::trains(const OptLevel& level) {
  if (find_in_step(level, 0).located.divergence) return false;
  const auto record = train(level, options_.seed());
  const auto losses = losses_of_taken_steps(record);
  const bool keeps_training = !record.has_failed() && 2 * losses.size() >= static_cast<size_t>(options_.steps());
  return keeps_training && is_low_enough(mean_loss(losses, losses.size()), losses.size(), low_type_of(level));
}

namespace {

// The number of divergences to follow before everything is kept in FP32.
constexpr size_t kMaxFollowed = 8;

// Adds the rules for the divergent call. If the list has these already, adds the rules for the nearest earlier call with new
// ones: the types of gradients depend on the types that earlier calls return in the forward pass.
bool add_rules_for(const Finding& finding, Fp32Rules& list) {
  for (size_t call = finding.located.call + 1; call-- > 0;) {
    if (append_new(rules_for(finding.step.calls[call]), list)) return true;
  }
  return false;
}

}  // namespace

const Finding& Diagnosis::finding() {
  if (!finding_) finding_ = trials_.find(level_);
  return *finding_;
}

Fp32Rules Diagnosis::follow_divergences() {
  Fp32Rules list;
  Finding now = finding();
  for (size_t i = 0; i < kMaxFollowed && now.located.divergence && add_rules_for(now, list); ++i) {
    now = trials_.find_in_step(with_rules(level_, list), now.located.divergence.step);
  }
  return list;
}

Fp32Rules Diagnosis::all_rules() {
  auto list = rules_for_step(finding().step);
  TORCH_CHECK(trials_.trains(with_rules(level_, list)), "Doctor: the program does not train even with everything in FP32 that ",
              level_.name(), " can keep in FP32 (first divergence: ", finding().located.divergence.place(),
              "). Look for a tensor that the program itself makes or converts in 16 bits, or in code that amp does not see.");
  return list;
}

OptLevel Diagnosis::minimal_bfloat16() {
  const ObservedStep& step = finding().step;
  const auto with_modules = [&](std::vector<std::string> modules) {
    modules.insert(modules.end(), step.bfloat16_modules.begin(), step.bfloat16_modules.end());
    std::sort(modules.begin(), modules.end());
    modules.erase(std::unique(modules.begin(), modules.end()), modules.end());
    return level_.with(InitializeOptions().bfloat16_modules(modules));
  };
  const auto works = [&](const std::vector<std::string>& modules) { return trials_.trains(with_modules(modules)); };
  auto modules = modules_in_float8(step);
  if (modules.empty() || !works(modules)) return without_float8(level_);
  return with_modules(minimal(std::move(modules), works));
}

OptLevel Diagnosis::minimal_float32() {
  const auto works = [&](const Fp32Rules& rules) { return trials_.trains(with_rules(level_, rules)); };
  if (!finding().located.divergence && works({})) return level_;
  if (has_float8(level_) && trials_.trains(without_float8(level_))) return minimal_bfloat16();
  auto list = follow_divergences();
  if (list.empty() || !works(list)) list = all_rules();
  return with_rules(level_, minimal(std::move(list), works));
}

}  // namespace apex::amp::detail
