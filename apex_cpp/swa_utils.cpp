#include <apex_cpp/amp/casts.h>
#include <apex_cpp/amp/handles/amp_optimizer.h>
#include <apex_cpp/amp/masters/optimizer_stash.h>
#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>
#include <apex_cpp/amp/optimizer_classes/original_optimizer.h>
#include <apex_cpp/amp/tensors/convert_network.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/swa_utils.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/_foreach_lerp.h>
#include <ATen/ops/zeros.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <string>
#include <unordered_map>
#include <utility>

namespace apex::swa_utils {
namespace {

at::ScalarType dtype_of_average(const at::Tensor& weight) {
  const auto dtype = weight.scalar_type();
  return amp::detail::is_low_precision(dtype) ? at::kFloat : dtype;
}

/// amp's state of the optimizer; null without amp.
amp::detail::OptimizerStash* stash_of(torch::optim::Optimizer& optimizer) {
  TORCH_CHECK(!amp::detail::is_original(optimizer),
              "ExponentialMovingAverage was given an optimizer that amp::initialize has replaced. Pass the handle from `auto "
              "[net, opt] = amp::initialize(model, optimizer, …)`, not the original optimizer.");
  TORCH_CHECK(!dynamic_cast<amp::ShardedOptimizer*>(&optimizer),
              "ExponentialMovingAverage was given a sharded optimizer, whose masters no single process has. Use FusedAdam.");
  const auto* handle = dynamic_cast<amp::detail::AmpOptimizerBase*>(&optimizer);
  if (!handle) return nullptr;
  TORCH_CHECK(handle->stash(),
              "ExponentialMovingAverage was given an optimizer handle that was moved from. Pass the handle it was moved into.");
  handle->stash()->check_in_use();
  return handle->stash().get();
}

/// The weights in the dtypes of their averages.
std::vector<at::Tensor> converted(const std::vector<at::Tensor>& weights, const std::vector<at::Tensor>& averages) {
  std::vector<at::Tensor> result;
  for (size_t i = 0; i < weights.size(); ++i) result.push_back(weights[i].detach().to(averages[i].scalar_type()));
  return result;
}

std::string name_of_average(size_t position) { return "average_" + std::to_string(position); }

}  // namespace

ExponentialMovingAverage::ExponentialMovingAverage(torch::optim::Optimizer& optimizer,
                                                   const ExponentialMovingAverageOptions& options)
    : Module("ExponentialMovingAverage"), optimizer_(optimizer), options_(options) {
  TORCH_CHECK_VALUE(options.decay() >= 0 && options.decay() <= 1, "ExponentialMovingAverage: decay is ", options.decay(),
                    ". Give a number from 0 to 1, such as 0.999.");
  const at::NoGradGuard no_grad;
  const amp::disable_casts casts_off;
  const auto now = weights();
  params_ = now.in_model;
  const auto tensors = values_of(now.stepped);
  TORCH_CHECK(!tensors.empty(), "ExponentialMovingAverage: the optimizer has no parameters. Add them before it is made.");
  n_averaged_ = register_buffer("n_averaged", at::zeros({}, at::kLong));
  for (size_t i = 0; i < tensors.size(); ++i) {
    auto average = tensors[i].detach().to(dtype_of_average(tensors[i]), /*non_blocking=*/false, /*copy=*/true);
    averages_.push_back(register_buffer(name_of_average(i), std::move(average)));
  }
}

int64_t ExponentialMovingAverage::n_averaged() const { return n_averaged_.item<int64_t>(); }

ExponentialMovingAverage::Weights ExponentialMovingAverage::weights() const {
  auto* stash = stash_of(optimizer_);
  if (stash) stash->update_masters_from_edits();
  Weights weights;
  weights.stepped = weights.in_model = amp::detail::params_of(optimizer_.param_groups());
  if (!stash) return weights;
  std::unordered_map<const at::TensorImpl*, at::Tensor> behind_master;
  const auto masters = stash->masters(), model = stash->model_params();
  for (size_t i = 0; i < masters.size(); ++i) behind_master.emplace(masters[i].unsafeGetTensorImpl(), model[i]);
  for (auto& param : weights.in_model) {
    const auto found = behind_master.find(param.unsafeGetTensorImpl());
    if (found != behind_master.end()) param = found->second;
  }
  return weights;
}

// The program may have moved parameters within and between groups.
ExponentialMovingAverage::Weights ExponentialMovingAverage::averaged_weights() const {
  const Weights now = weights();
  TORCH_CHECK_VALUE(now.in_model.size() == params_.size(), "ExponentialMovingAverage: the optimizer has ", now.in_model.size(),
                    " parameters, but there are averages of ", params_.size(),
                    ". Make a new ExponentialMovingAverage after parameters were added or removed.");
  std::unordered_map<const at::TensorImpl*, size_t> positions;
  for (size_t i = 0; i < now.in_model.size(); ++i) positions.emplace(now.in_model[i].unsafeGetTensorImpl(), i);
  Weights arranged;
  for (size_t i = 0; i < params_.size(); ++i) {
    const auto found = positions.find(params_[i].unsafeGetTensorImpl());
    TORCH_CHECK_VALUE(found != positions.end() && params_[i].sizes() == averages_[i].sizes(),
                      "ExponentialMovingAverage: the parameter of average ", i, ", of shape ", averages_[i].sizes(),
                      ", is not in the optimizer, or has another shape. Make a new ExponentialMovingAverage after parameters "
                      "were replaced.");
    arranged.stepped.push_back(now.stepped[found->second]);
    arranged.in_model.push_back(params_[i]);
  }
  return arranged;
}

std::vector<at::Tensor> ExponentialMovingAverage::values_of(std::vector<at::Tensor> stepped) const {
  const auto* fused = dynamic_cast<const amp::StepsMasters*>(&optimizer_);
  for (auto& tensor : stepped) {
    const at::Tensor master = fused ? fused->kept_master_of(tensor) : at::Tensor();
    if (master.defined()) tensor = master;
  }
  return stepped;
}

void ExponentialMovingAverage::check_not_applied(const char* caller) const {
  TORCH_CHECK(!applied_, "ExponentialMovingAverage::", caller,
              " was called while the model has the averages. Call it after the block of average_parameters().");
}

double ExponentialMovingAverage::next_decay() const {
  const auto n = static_cast<double>(n_averaged());
  return options_.use_num_updates() ? std::min(options_.decay(), (1 + n) / (10 + n)) : options_.decay();
}

void ExponentialMovingAverage::update() {
  check_not_applied("update");
  const auto* stash = stash_of(optimizer_);
  if (stash && stash->result().skipped) return;
  const at::NoGradGuard no_grad;
  const amp::disable_casts casts_off;
  const auto tensors = values_of(averaged_weights().stepped);
  if (n_averaged() == 0) {
    at::_foreach_copy_(averages_, tensors);
  } else {
    const auto values = converted(tensors, averages_);
    std::vector<at::Tensor> averages, weights;
    for (size_t i = 0; i < values.size(); ++i) {
      if (averages_[i].is_floating_point() || averages_[i].is_complex()) {
        averages.push_back(averages_[i]);
        weights.push_back(values[i]);
      } else {
        averages_[i].copy_(values[i]);  // nothing trains integers
      }
    }
    if (!averages.empty()) at::_foreach_lerp_(averages, weights, 1 - next_decay());
  }
  n_averaged_.add_(1);
}

AveragedParameters ExponentialMovingAverage::average_parameters() {
  check_not_applied("average_parameters");
  return AveragedParameters(*this);
}

void ExponentialMovingAverage::load(torch::serialize::InputArchive& archive) {
  check_not_applied("load");
  std::vector<std::pair<at::Tensor, at::Tensor>> loaded;
  for (const auto& buffer : named_buffers()) {
    at::Tensor value;
    archive.read(buffer.key(), value, /*is_buffer=*/true);
    TORCH_CHECK_VALUE(value.sizes() == buffer.value().sizes(), "ExponentialMovingAverage::load: '", buffer.key(),
                      "' has shape ", value.sizes(), " in the archive and ", buffer.value().sizes(),
                      " here. Load it into an average of the same model.");
    loaded.emplace_back(buffer.value(), value);
  }
  const at::NoGradGuard no_grad;
  for (auto& [buffer, value] : loaded) buffer.copy_(value);
}

AveragedParameters::AveragedParameters(ExponentialMovingAverage& average) : average_(&average) {
  const at::NoGradGuard no_grad;
  const amp::disable_casts casts_off;
  params_ = average.averaged_weights().in_model;
  if (auto* stash = stash_of(average.optimizer_))
    stash->copy_written_masters();  // after the writes below amp could not tell these masters from old ones
  for (const auto& param : params_) weights_.push_back(param.detach().clone());
  try {
    at::_foreach_copy_(params_, average.averages_);
  } catch (...) {  // no destructor runs, and the first parameters may have averages
    at::_foreach_copy_(params_, weights_);
    throw;
  }
  average.applied_ = true;
}

void AveragedParameters::restore() {
  if (!average_) return;
  const at::NoGradGuard no_grad;
  const amp::disable_casts casts_off;
  std::exchange(average_, nullptr)->applied_ = false;
  for (size_t i = 0; i < params_.size(); ++i) {
    TORCH_CHECK(params_[i].sizes() == weights_[i].sizes(), "a parameter had shape ", weights_[i].sizes(),
                " when its average was written to it, and has ", params_[i].sizes(),
                " now. Load a checkpoint, and do not replace parameters while the model has averages.");
  }
  at::_foreach_copy_(params_, weights_);
}

AveragedParameters::~AveragedParameters() {
  try {
    restore();
  } catch (const std::exception& error) {
    TORCH_WARN("ExponentialMovingAverage could not restore the weights, and the model keeps averages: ", error.what(),
               " Do not replace parameters while the model has averages.");
  }
}

}  // namespace apex::swa_utils
