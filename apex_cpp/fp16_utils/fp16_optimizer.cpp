#include <apex_cpp/fp16_utils/fp16_optimizer.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <torch/nn/utils/clip_grad.h>

#include <apex_cpp/amp/handles/amp_optimizer.h>
#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>
#include <apex_cpp/amp/optimizer_classes/original_optimizer.h>
#include <apex_cpp/amp/session/amp_session.h>
#include <apex_cpp/amp/tensors/gradients.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/fp16_utils/networks.h>

#include <algorithm>
#include <iostream>

#include "kernels/multi_tensor.h"

namespace apex::fp16_utils {
namespace {

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

void print_param(size_t group, const at::Tensor& param, const detail::TrainedParam* trained) {
  std::cout << "FP16_Optimizer: group " << group << ", " << (trained ? trained->param : param).scalar_type()
            << " parameter of shape " << param.sizes()
            << (!trained                ? ": frozen"
                : trained->has_master() ? ": gets a float32 master"
                                        : ": stepped as it is")
            << "\n";
}

bool prints() {
  const auto session = amp::detail::current_session();
  return !session || session->settings.verbosity > 0;
}

bool has_16_bit_params(const torch::optim::Optimizer& optimizer) {
  const auto params = amp::detail::params_of(optimizer.param_groups());
  return std::any_of(params.begin(), params.end(),
                     [](const at::Tensor& param) { return amp::detail::is_low_precision(param.scalar_type()); });
}

}  // namespace

FP16_Optimizer::FP16_Optimizer(torch::optim::Optimizer& init_optimizer, FP16_OptimizerOptions options)
    : optimizer_(&init_optimizer), options_(std::move(options)), scaler_(make_scaler(options_)) {
  TORCH_CHECK(!dynamic_cast<amp::detail::AmpOptimizerBase*>(optimizer_),
              "FP16_Optimizer was given an optimizer that amp::initialize returned, which already has masters and loss "
              "scaling. Use only one: amp::initialize alone, or FP16_Optimizer around the bare optimizer.");
  amp::detail::check_not_original(init_optimizer, "FP16_Optimizer was given");
  const auto* fused = dynamic_cast<const amp::StepsMasters*>(optimizer_);
  TORCH_CHECK(!fused || !fused->changes_params_between_steps() || !has_16_bit_params(init_optimizer),
              "FP16_Optimizer was given an optimizer whose train() and eval() change what it steps: they would change the "
              "masters alone, and the model would keep its weights of training. Give it to amp::initialize(model, optimizer, "
              "\"O2\").");
  TORCH_CHECK(!dynamic_cast<const amp::ShardedOptimizer*>(optimizer_),
              "FP16_Optimizer was given a sharded optimizer, which keeps masters of its own and takes gradients out of the "
              "model. Give it to amp::initialize(model, optimizer, \"O2\").");
  params_.add_new(init_optimizer);
  for (const at::Tensor& param : params_.native()) param.mutable_grad().reset();  // MW-06
  detail::warn_deprecated("FP16_Optimizer", detail::kInsteadOfMasters);
  if (options_.verbose()) print_params();
}

FP16_Optimizer::FP16_Optimizer(torch::optim::Optimizer& init_optimizer, double static_loss_scale, bool dynamic_loss_scale,
                               DynamicLossArgs dynamic_loss_args, bool verbose)
    : FP16_Optimizer(init_optimizer, FP16_OptimizerOptions()
                                         .static_loss_scale(static_loss_scale)
                                         .dynamic_loss_scale(dynamic_loss_scale)
                                         .dynamic_loss_args(std::move(dynamic_loss_args))
                                         .verbose(verbose)) {}

void FP16_Optimizer::print_params() const {
  const auto& groups = optimizer_->param_groups();
  for (size_t i = 0; i < groups.size(); ++i) {
    for (const at::Tensor& param : groups[i].params()) print_param(i, param, params_.find(param));
  }
}

// ---- gradients ----

void FP16_Optimizer::backward(const at::Tensor& loss, bool update_master_grads, bool retain_graph) {
  TORCH_CHECK(loss.defined(), "FP16_Optimizer::backward was given an undefined loss.");
  params_.add_new(*optimizer_);
  (loss.to(at::kFloat) * scaler_.loss_scale()).backward({}, retain_graph);
  if (update_master_grads) this->update_master_grads();
}

void FP16_Optimizer::check_gradients() const {
  for (const Tensors* params : {&params_.model_params(), &params_.native()}) {
    for (const at::Tensor& param : *params) {
      const at::Tensor& grad = param.grad();
      if (!grad.defined()) continue;
      TORCH_CHECK(!grad.is_sparse(), "FP16_Optimizer: the gradient of a parameter of shape ", param.sizes(),
                  " is sparse. Make the embedding dense (sparse=false), or give it to an optimizer of its own, and divide its "
                  "gradients by the loss scale before its step, which must be left out if they are not finite.");
      TORCH_CHECK(amp::detail::fits(grad, param) && grad.is_floating_point(), "FP16_Optimizer: a parameter of shape ",
                  param.sizes(), " on ", param.device(), " has a gradient of shape ", grad.sizes(), " and dtype ",
                  grad.scalar_type(), " on ", grad.device(), ". Drop it with zero_grad(true), and run backward again.");
      TORCH_CHECK(!amp::detail::has_unreduced_grad(param), "FP16_Optimizer: the gradient of a parameter of shape ",
                  param.sizes(),
                  " is not summed over the ranks: all backward passes since the last reduction were within no_sync(), or after "
                  "disable_allreduce(). Call backward(loss, update_master_grads=false) there and run the last pass outside, or "
                  "drop the gradients with zero_grad().");
    }
  }
}

void FP16_Optimizer::update_master_grads() {
  params_.add_new(*optimizer_);
  check_gradients();
  const at::NoGradGuard no_grad;
  scaler_.clear_overflow_state();
  Tensors model_grads, master_grads, native_grads;
  for (size_t i = 0; i < params_.masters().size(); ++i) {
    const at::Tensor& master = params_.masters()[i];
    const at::Tensor& grad = params_.model_params()[i].grad();
    at::Tensor& master_grad = master.mutable_grad();
    if (!grad.defined()) {
      master_grad.reset();  // an old gradient must not be stepped again
      continue;
    }
    if (!master_grad.defined()) master_grad = at::empty_like(master);
    model_grads.push_back(amp::detail::in_layout_of(grad, master_grad));
    master_grads.push_back(master_grad);
  }
  amp::detail::separate_grads(params_.native());
  for (const at::Tensor& param : params_.native()) {
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
  for (const at::Tensor& param : stepped_params()) {
    amp::detail::clear_grad(param, set_grads_to_None);
    const detail::TrainedParam* trained = params_.find(param);
    if (trained && trained->has_master()) amp::detail::clear_grad(trained->param, set_grads_to_None);
  }
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
  if (overflow_ && !closure) {
    if (prints()) {
      std::cout << "FP16_Optimizer: gradient overflow. Skipping step, loss scale is " << loss_scale() << std::endl;
    }
    return {};
  }
  closure ? params_.add_new(*optimizer_) : params_.follow_groups(*optimizer_);
  params_.take_edits();
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
                  ", which is the lowest allowed. Look for a loss or an activation that is not finite, lower min_loss_scale, "
                  "or call update_master_grads in the closure.");
    }
    params_.take_edits();
    return loss;
  });
}

void FP16_Optimizer::copy_masters_to_model() {
  const at::NoGradGuard no_grad;
  kernels::multi_tensor_copy(params_.masters(), params_.model_params());
  params_.mark_synced();
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
