#include <apex_cpp/fp16_utils/fp16_optimizer.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <torch/nn/utils/clip_grad.h>

#include <apex_cpp/amp/handles/amp_optimizer.h>
#include <apex_cpp/amp/optimizer_classes/param_state.h>
#include <apex_cpp/amp/session/session.h>
#include <apex_cpp/amp/tensors/grad_kernels.h>
#include <apex_cpp/amp/tensors/listed_once.h>
#include <apex_cpp/amp/tensors/low_precision.h>
#include <apex_cpp/fp16_utils/deprecated.h>

#include <algorithm>
#include <iostream>

#include "kernels/multi_tensor.h"

namespace apex::fp16_utils {
namespace {

using amp::detail::is_low_precision;
using Tensors = std::vector<at::Tensor>;

amp::LossScaler make_scaler(const FP16_OptimizerOptions& options) {
  if (!options.dynamic_loss_scale()) {
    amp::LossScaler scaler(amp::LossScale(options.static_loss_scale()));
    scaler.restore(options.static_loss_scale(), 0);  // checks the value
    return scaler;
  }
  const DynamicLossArgs& args = options.dynamic_loss_args();
  TORCH_CHECK_VALUE(args.scale_factor() == amp::LossScaler::kScaleFactor, "FP16_Optimizer: scale_factor ", args.scale_factor(),
                    " is not supported; the loss scale moves by ", amp::LossScaler::kScaleFactor, ". Leave it out.");
  amp::LossScaler scaler("dynamic", args.min_loss_scale(), args.max_loss_scale());
  scaler.restore(std::min(args.init_scale(), args.max_loss_scale()), 0);
  scaler.set_scale_window(args.scale_window());
  return scaler;
}

void check_params(const torch::optim::Optimizer& optimizer) {
  const auto& groups = optimizer.param_groups();
  amp::detail::check_one_group_each(groups);
  for (size_t i = 0; i < groups.size(); ++i) {
    const auto& params = groups[i].params();
    for (size_t j = 0; j < params.size(); ++j) {
      const bool known = is_low_precision(params[j].scalar_type()) || params[j].scalar_type() == at::kFloat;
      TORCH_CHECK_TYPE(known || !params[j].requires_grad(), "FP16_Optimizer: parameter ", j, " of group ", i, ", of shape ",
                       params[j].sizes(), ", has dtype ", params[j].scalar_type(),
                       "; expected float16, bfloat16 or float32. Convert it, or leave it to an optimizer of its own.");
    }
  }
}

bool prints() {
  const auto session = amp::detail::current_session();
  return !session || session->settings.verbosity > 0;
}

}  // namespace

FP16_Optimizer::FP16_Optimizer(torch::optim::Optimizer& init_optimizer, FP16_OptimizerOptions options)
    : optimizer_(&init_optimizer), options_(std::move(options)), scaler_(make_scaler(options_)) {
  TORCH_CHECK(
      !dynamic_cast<amp::detail::AmpOptimizerBase*>(optimizer_),
      "FP16_Optimizer was given an optimizer that amp::initialize returned, which has masters and loss scaling already. "
      "Use one of the two: amp::initialize alone, or FP16_Optimizer around the bare optimizer.");
  check_params(init_optimizer);
  detail::warn_deprecated("FP16_Optimizer", detail::kInsteadOfMasters);
  adopt_params();
}

FP16_Optimizer::FP16_Optimizer(torch::optim::Optimizer& init_optimizer, double static_loss_scale, bool dynamic_loss_scale,
                               DynamicLossArgs dynamic_loss_args, bool verbose)
    : FP16_Optimizer(init_optimizer, FP16_OptimizerOptions()
                                         .static_loss_scale(static_loss_scale)
                                         .dynamic_loss_scale(dynamic_loss_scale)
                                         .dynamic_loss_args(std::move(dynamic_loss_args))
                                         .verbose(verbose)) {}

void FP16_Optimizer::adopt_params() {
  auto& groups = optimizer_->param_groups();
  amp::detail::list_params_once(groups);
  for (size_t i = 0; i < groups.size(); ++i) {
    for (at::Tensor& param : groups[i].params()) {
      const bool gets_master = param.requires_grad() && is_low_precision(param.scalar_type());
      if (options_.verbose()) {
        std::cout << "FP16_Optimizer: group " << i << ", " << param.scalar_type() << " parameter of shape " << param.sizes()
                  << (gets_master             ? ": gets a float32 master"
                      : param.requires_grad() ? ": stepped as it is"
                                              : ": frozen")
                  << "\n";
      }
      if (!param.requires_grad()) continue;
      if (gets_master) {
        give_master(param);
      } else {
        param.mutable_grad().reset();  // MW-06
        native_params_.push_back(param);
      }
    }
  }
  amp::detail::match_state_to_params(*optimizer_);
}

void FP16_Optimizer::give_master(at::Tensor& param) {
  const at::Tensor master = param.detach().clone().to(at::kFloat).requires_grad_();
  amp::detail::rekey_param_state(*optimizer_, param, master);
  model_params_.push_back(param);
  masters_.push_back(master);
  param = master;
}

// ---- gradients ----

void FP16_Optimizer::backward(const at::Tensor& loss, bool update_master_grads, bool retain_graph) {
  TORCH_CHECK(loss.defined(), "FP16_Optimizer::backward was given an undefined loss.");
  (loss.to(at::kFloat) * scaler_.loss_scale()).backward({}, retain_graph);
  if (update_master_grads) this->update_master_grads();
}

void FP16_Optimizer::check_gradients() const {
  for (const Tensors* params : {&model_params_, &native_params_}) {
    for (const at::Tensor& param : *params) {
      TORCH_CHECK(!param.grad().defined() || !param.grad().is_sparse(), "FP16_Optimizer: the gradient of a parameter of shape ",
                  param.sizes(), " is sparse. Make the embedding dense (sparse=false), or give it to an optimizer of its own.");
    }
  }
}

void FP16_Optimizer::update_master_grads() {
  check_gradients();
  const at::NoGradGuard no_grad;
  scaler_.clear_overflow_state();
  Tensors model_grads, master_grads, native_grads;
  for (size_t i = 0; i < masters_.size(); ++i) {
    const at::Tensor& grad = model_params_[i].grad();
    at::Tensor& master_grad = masters_[i].mutable_grad();
    if (!grad.defined()) {
      master_grad.reset();  // or an earlier iteration's would be stepped again
      continue;
    }
    if (!master_grad.defined()) master_grad = at::empty_like(masters_[i]);
    model_grads.push_back(amp::detail::in_layout_of(grad, master_grad));
    master_grads.push_back(master_grad);
  }
  for (const at::Tensor& param : native_params_) {
    at::Tensor& grad = param.mutable_grad();
    if (!grad.defined()) continue;
    grad = amp::detail::in_layout_of(grad, param);
    native_grads.push_back(grad);
  }
  scaler_.unscale(model_grads, master_grads);
  scaler_.unscale(native_grads, native_grads);
  overflow_ = scaler_.update_scale();
}

void FP16_Optimizer::zero_grad(bool set_grads_to_None) {
  for (const auto& group : optimizer_->param_groups()) {
    for (const at::Tensor& param : group.params()) amp::detail::clear_grad(param, set_grads_to_None);
  }
  for (const at::Tensor& param : model_params_) amp::detail::clear_grad(param, set_grads_to_None);
}

Tensors FP16_Optimizer::stepped_params() const { return amp::detail::params_of(optimizer_->param_groups()); }

double FP16_Optimizer::clip_master_grads(double max_norm, double norm_type) {
  return overflow_ ? -1.0 : torch::nn::utils::clip_grad_norm_(stepped_params(), max_norm, norm_type);
}

std::optional<std::vector<Tensors>> FP16_Optimizer::inspect_master_grad_data() const {
  if (overflow_) {
    TORCH_WARN(
        "FP16_Optimizer::inspect_master_grad_data was called after an overflow: the gradients are Inf or NaN in places, "
        "and step() will not use them.");
    return std::nullopt;
  }
  std::vector<Tensors> grads;
  for (const auto& group : optimizer_->param_groups()) {
    Tensors& of_group = grads.emplace_back();
    for (const at::Tensor& param : group.params()) {
      of_group.push_back(param.grad().defined() ? param.grad().detach() : at::Tensor());
    }
  }
  return grads;
}

// ---- steps ----

at::Tensor FP16_Optimizer::step(const torch::optim::Optimizer::LossClosure& closure) {
  if (overflow_) {
    if (prints()) {
      std::cout << "FP16_Optimizer: gradient overflow. Skipping step, loss scale is " << loss_scale() << std::endl;
    }
    return {};
  }
  const at::Tensor loss = closure ? run_closure(closure) : optimizer_->step();
  copy_masters_to_model();
  return loss;
}

at::Tensor FP16_Optimizer::run_closure(const torch::optim::Optimizer::LossClosure& closure) {
  bool first_call = true;
  return optimizer_->step([&] {
    if (!std::exchange(first_call, false)) copy_masters_to_model();
    at::Tensor loss = closure();
    while (overflow_) {
      const double scale = loss_scale();
      if (prints()) std::cout << "FP16_Optimizer: gradient overflow in the closure, loss scale is now " << scale << std::endl;
      loss = closure();
      TORCH_CHECK(!overflow_ || loss_scale() < scale,
                  "FP16_Optimizer::step: the closure's gradients overflow at a loss scale of ", scale,
                  ", which falls no further. Look for a loss or an activation that is not finite, lower min_loss_scale, "
                  "or call update_master_grads in the closure.");
    }
    return loss;
  });
}

void FP16_Optimizer::copy_masters_to_model() {
  const at::NoGradGuard no_grad;
  kernels::multi_tensor_copy(masters_, model_params_);
}

namespace detail {

void throw_not_for_initialize() {
  C10_THROW_ERROR(
      Error,
      "amp::initialize was given an fp16_utils::FP16_Optimizer, which keeps masters and a loss scale of its own. Pass "
      "the bare torch::optim optimizer, and train with what initialize returns.");
}

}  // namespace detail
}  // namespace apex::fp16_utils
