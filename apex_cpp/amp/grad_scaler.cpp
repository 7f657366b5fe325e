#include <apex_cpp/amp/grad_scaler.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>
#include <torch/cuda.h>
#include <torch/serialize/archive.h>

#include <apex_cpp/amp/grad_scaler/unscale_grads.h>
#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>
#include <apex_cpp/amp/optimizer_classes/original_optimizer.h>
#include <apex_cpp/torch_compat/private_members.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/moved_to.h"

namespace apex::amp {
namespace {

constexpr const char* kScale = "scale";
constexpr const char* kGrowthFactor = "growth_factor";
constexpr const char* kBackoffFactor = "backoff_factor";
constexpr const char* kGrowthInterval = "growth_interval";
constexpr const char* kGrowthTracker = "_growth_tracker";

void check_scale(double scale) {
  TORCH_CHECK_VALUE(std::isnormal(static_cast<float>(scale)) && scale > 0,
                    "GradScaler: a scale must be positive and finite in float32, from 1.2e-38 to 3.4e38, got ", scale, ".");
}

// A factor of 0 or less would end training: no gradient survives such a scale.
void check_scaler_options(const GradScalerOptions& options) {
  TORCH_CHECK(options.growth_factor() > 1.0, "GradScaler: growth_factor must be above 1, got ", options.growth_factor(), ".");
  TORCH_CHECK(options.backoff_factor() < 1.0, "GradScaler: backoff_factor must be below 1, got ", options.backoff_factor(),
              ".");
  TORCH_CHECK(options.backoff_factor() > 0.0, "GradScaler: backoff_factor must be above 0, got ", options.backoff_factor(),
              ".");
  TORCH_CHECK_VALUE(options.growth_interval() >= 1, "GradScaler: growth_interval must be at least 1, got ",
                    options.growth_interval(), ".");
  check_scale(options.init_scale());
}

double entry(const GradScaler::StateDict& state, const char* key) {
  const double* value = state.find(key);
  TORCH_CHECK(value, "GradScaler::load_state_dict: the state has no '", key, "'. Give what GradScaler::state_dict returned.");
  return *value;
}

constexpr double kLargestTracker = std::numeric_limits<int32_t>::max();
constexpr double kLargestInterval = 0x1p53;  // doubles have every whole number up to here

int64_t count_in(const GradScaler::StateDict& state, const char* key, double largest) {
  const double value = entry(state, key);
  TORCH_CHECK_VALUE(value >= 0 && value <= largest && value == std::floor(value), "GradScaler::load_state_dict: '", key,
                    "' is ", value, ", which is no count. Give what GradScaler::state_dict returned.");
  return static_cast<int64_t>(value);
}

/// Stays the same when an optimizer is moved: the address of its default options, which it owns by pointer. An optimizer
/// without default options, or one that was moved from, is identified by its own address.
const void* identity_of(const torch::optim::Optimizer& optimizer) {
  const auto& defaults = torch_compat::defaults_of(optimizer);
  return defaults ? static_cast<const void*>(defaults.get()) : &optimizer;
}

/// Removes both tensors from the optimizer at the end, also after an error.
struct DropAfterStep {
  StepSupportsAmpScaling& optimizer;
  ~DropAfterStep() {
    optimizer.grad_scale = at::Tensor();
    optimizer.found_inf = at::Tensor();
  }
};

}  // namespace

GradScaler::GradScaler(const GradScalerOptions& options) : options_(options) {
  if (is_enabled() && options_.device() == c10::kCUDA && !torch::cuda::is_available()) {
    TORCH_WARN("GradScaler(\"cuda\") disables itself: there is no CUDA device. Give \"cpu\" to scale losses on the CPU.");
    options_.enabled(false);
  }
  if (is_enabled()) check_scaler_options(options_);
}

GradScaler::GradScaler(DeviceTypeArg device, double init_scale, double growth_factor, double backoff_factor,
                       int64_t growth_interval, bool enabled)
    : GradScaler(GradScalerOptions()
                     .device(device)
                     .init_scale(init_scale)
                     .growth_factor(growth_factor)
                     .backoff_factor(backoff_factor)
                     .growth_interval(growth_interval)
                     .enabled(enabled)) {}

at::Tensor GradScaler::scale(const at::Tensor& outputs) {
  if (!is_enabled()) return outputs;
  TORCH_CHECK_VALUE(outputs.defined(),
                    "GradScaler::scale: outputs must be a Tensor or a container of Tensors, got an undefined one.");
  leave_failed_iteration();
  if (!scale_.defined()) {
    const auto on_device = at::TensorOptions().device(outputs.device());
    scale_ = at::full({}, options_.init_scale(), on_device.dtype(at::kFloat));
    growth_tracker_ = at::full({}, init_growth_tracker_, on_device.dtype(at::kInt));
  }
  return outputs.mul(kernels::moved_to(outputs.device(), scale_));
}

void GradScaler::unscale_(torch::optim::Optimizer& optimizer) {
  if (!is_enabled()) return;
  check_scale_made("unscale_");
  auto& state = state_of(optimizer);
  TORCH_CHECK(state.stage != Stage::unscaled,
              "unscale_() has already been called on this optimizer since the last update(). Call it once, after the last "
              "backward of the iteration.");
  TORCH_CHECK(state.stage != Stage::stepped,
              "unscale_() is being called after step(). Call update() at the end of the iteration.");
  state.found_infs = unscale(optimizer);
  state.stage = Stage::unscaled;
}

std::vector<at::Tensor> GradScaler::unscale(torch::optim::Optimizer& optimizer) const {
  // In float64: the reciprocal of a large float32 scale may be subnormal.
  const auto inv_scale = scale_.to(at::kDouble).reciprocal().to(at::kFloat);
  return detail::unscale_grads(optimizer, inv_scale);
}

std::optional<at::Tensor> GradScaler::step(torch::optim::Optimizer& optimizer, torch::optim::Optimizer::LossClosure closure) {
  if (!is_enabled()) return optimizer.step(std::move(closure));
  TORCH_CHECK(!closure,
              "Closure use is not supported if GradScaler is enabled: it would run backward after the check for Inf. "
              "Run backward first, and call step without a closure.");
  check_scale_made("step");
  auto& state = state_of(optimizer);
  TORCH_CHECK(state.stage != Stage::stepped,
              "step() has already been called since the last update(). Call update() at the end of the iteration.");
  if (auto* scaling = dynamic_cast<StepSupportsAmpScaling*>(&optimizer)) {
    return step_with_amp_scaling(optimizer, *scaling, state);
  }
  if (state.stage == Stage::ready) state.found_infs = unscale(optimizer);
  TORCH_CHECK(!state.found_infs.empty(),
              "No inf checks were recorded for this optimizer: none of its parameters has a gradient. Call backward first, and "
              "step the optimizer that holds the model's parameters, if it was moved. Masters of amp::initialize get gradients "
              "from amp::scale_loss alone: use it in place of GradScaler.");
  state.stage = Stage::unscaled;
  bool skip = false;
  for (const auto& found_inf : state.found_infs) skip |= found_inf.item<float>() != 0;
  std::optional<at::Tensor> result;
  if (!skip) result = call_step(optimizer, state);
  state.stage = Stage::stepped;
  return result;
}

at::Tensor GradScaler::call_step(torch::optim::Optimizer& optimizer, OptimizerState& state) {
  try {
    auto loss = optimizer.step();
    state.failed = false;
    return loss;
  } catch (...) {
    state.failed = true;
    throw;
  }
}

// The gradients of the next backward pass are scaled, whatever this iteration unscaled. All states go: optimizers that did
// step would otherwise refuse each further step, and an earlier `unscale_` would leave further gradients scaled.
void GradScaler::leave_failed_iteration() {
  const auto& states = optimizer_states_;
  if (std::any_of(states.begin(), states.end(), [](const auto& item) { return item.second.failed; })) optimizer_states_.clear();
}

at::Tensor GradScaler::step_with_amp_scaling(torch::optim::Optimizer& optimizer, StepSupportsAmpScaling& scaling,
                                             OptimizerState& state) {
  const DropAfterStep drop_after_step{scaling};
  if (state.stage == Stage::ready) {
    state.found_infs = detail::check_grads(optimizer);
    scaling.grad_scale = scaling.grad_scale.defined() ? scale_.mul(scaling.grad_scale) : scale_;
  }
  scaling.found_inf = combined(state.found_infs);
  auto loss = call_step(optimizer, state);
  state.stage = Stage::stepped;
  return loss;
}

void GradScaler::update() {
  if (!is_enabled()) return;
  check_scale_made("update");
  std::vector<at::Tensor> found_infs;
  for (const auto& [optimizer, state] : optimizer_states_) {
    found_infs.insert(found_infs.end(), state.found_infs.begin(), state.found_infs.end());
  }
  TORCH_CHECK(!found_infs.empty(), "No inf checks were recorded prior to update. Call step() of at least one optimizer first.");
  if (std::exchange(tracker_may_be_past_, false)) {
    growth_tracker_.clamp_max_(std::min<int64_t>(get_growth_interval() - 1, std::numeric_limits<int32_t>::max()));
  }
  at::_amp_update_scale_(scale_, growth_tracker_, combined(found_infs), options_.growth_factor(), options_.backoff_factor(),
                         options_.growth_interval());
  optimizer_states_.clear();
}

void GradScaler::update(double new_scale) {
  if (!is_enabled()) return;
  check_scale_made("update");
  check_scale(new_scale);
  scale_.fill_(new_scale);
  optimizer_states_.clear();
}

void GradScaler::update(const at::Tensor& new_scale) {
  if (!is_enabled()) return;
  check_scale_made("update");
  TORCH_CHECK(new_scale.defined() && new_scale.device().type() == options_.device() && new_scale.numel() == 1 &&
                  !new_scale.requires_grad(),
              "GradScaler::update: new_scale should be a number, or a tensor of 1 element on ", options_.device().name(),
              " that requires no gradient, got ", new_scale.toString(), " of shape ", new_scale.sizes(), ".");
  scale_.copy_(new_scale.reshape({}));
  optimizer_states_.clear();
}

double GradScaler::get_scale() const {
  if (!is_enabled()) return 1.0;
  return scale_.defined() ? scale_.item<float>() : options_.init_scale();
}

int64_t GradScaler::get_growth_tracker() const {
  if (!is_enabled()) return 0;
  return growth_tracker_.defined() ? growth_tracker_.item<int>() : init_growth_tracker_;
}

void GradScaler::set_options(const GradScalerOptions& options) {
  if (is_enabled()) check_scaler_options(options);
  options_ = options;
}

void GradScaler::set_growth_factor(double factor) { set_options(GradScalerOptions(options_).growth_factor(factor)); }

void GradScaler::set_backoff_factor(double factor) { set_options(GradScalerOptions(options_).backoff_factor(factor)); }

void GradScaler::set_growth_interval(int64_t interval) {
  set_options(GradScalerOptions(options_).growth_interval(interval));
  tracker_may_be_past_ = true;
}

GradScaler::StateDict GradScaler::state_dict() const {
  StateDict state;
  if (!is_enabled()) return state;
  state.insert(kScale, get_scale());
  state.insert(kGrowthFactor, get_growth_factor());
  state.insert(kBackoffFactor, get_backoff_factor());
  state.insert(kGrowthInterval, static_cast<double>(get_growth_interval()));
  state.insert(kGrowthTracker, static_cast<double>(get_growth_tracker()));
  return state;
}

void GradScaler::load_state_dict(const StateDict& state) {
  if (!is_enabled()) return;
  TORCH_CHECK(!state.is_empty(),
              "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler.");
  const double scale = entry(state, kScale);
  const double growth_factor = entry(state, kGrowthFactor), backoff_factor = entry(state, kBackoffFactor);
  const int64_t growth_interval = count_in(state, kGrowthInterval, kLargestInterval);
  const int64_t growth_tracker = count_in(state, kGrowthTracker, kLargestTracker);
  GradScalerOptions options = options_;
  options.init_scale(scale).growth_factor(growth_factor).backoff_factor(backoff_factor).growth_interval(growth_interval);
  set_options(options);
  init_growth_tracker_ = growth_tracker;
  tracker_may_be_past_ = true;
  if (scale_.defined()) {
    scale_.fill_(scale);
    growth_tracker_.fill_(growth_tracker);
  }
}

torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const GradScaler& scaler) {
  const auto& states = scaler.optimizer_states_;
  TORCH_CHECK(
      std::all_of(states.begin(), states.end(), [](const auto& item) { return item.second.stage == GradScaler::Stage::ready; }),
      "A GradScaler can only be saved at the beginning of an iteration, or at its end after update().");
  for (const auto& item : scaler.state_dict()) archive.write(item.key(), c10::IValue(item.value()));
  return archive;
}

torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, GradScaler& scaler) {
  GradScaler::StateDict state;
  for (const auto& key : archive.keys()) {
    c10::IValue value;
    archive.read(key, value);
    TORCH_CHECK(value.isDouble(), "The archive's entry '", key, "' is not the state of a GradScaler.");
    state.insert(key, value.toDouble());
  }
  scaler.load_state_dict(state);
  return archive;
}

GradScaler::OptimizerState& GradScaler::state_of(const torch::optim::Optimizer& optimizer) {
  detail::check_not_original(optimizer, "GradScaler::step() or unscale_() was given");
  return optimizer_states_[identity_of(optimizer)];
}

void GradScaler::check_scale_made(const char* caller) const {
  TORCH_CHECK(scale_.defined(), "Attempted ", caller,
              " but there is no scale yet. Call scaler.scale(loss or outputs) earlier in the "
              "iteration, and backward of what it returns.");
}

at::Tensor GradScaler::combined(const std::vector<at::Tensor>& found_infs) const {
  auto sum = at::zeros({}, scale_.options());
  for (const auto& found_inf : found_infs) sum += kernels::moved_to(scale_.device(), found_inf, at::kFloat);
  return sum;
}

}  // namespace apex::amp
