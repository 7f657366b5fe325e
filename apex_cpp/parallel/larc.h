#pragma once

#include <ATen/core/Tensor.h>
#include <torch/arg.h>
#include <torch/optim/optimizer.h>

#include <memory>
#include <type_traits>
#include <utility>
#include <vector>

#include <apex_cpp/amp/handles/amp_optimizer.h>
#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>
#include <apex_cpp/amp/optimizer_classes/original_optimizer.h>
#include <apex_cpp/amp/tensors/parameters.h>

namespace apex::parallel {

/// Options of LARC, with Apex's names and defaults.
struct LARCOptions {
  /// The largest step of a layer, relative to the norm of its weights.
  TORCH_ARG(double, trust_coefficient) = 0.02;
  /// Use the smaller of the layer's rate and the group's rate (LARC); false: the product of both (LARS).
  TORCH_ARG(bool, clip) = true;
  /// Added to the divisor.
  TORCH_ARG(double, eps) = 1e-8;
};

namespace detail {

/// Errors: ValueError unless trust_coefficient is positive and eps is not negative, and for a parameter in two groups.
LARCOptions checked(LARCOptions options, const torch::optim::Optimizer& optimizer);
[[noreturn]] void throw_moved_from();
[[noreturn]] void throw_closure();

/// The rates of one parameter group.
struct LarcRates {
  double lr = 0;
  double weight_decay = 0;
  at::Tensor found_inf;  // those of amp::StepSupportsAmpScaling; undefined without a loss scaler on the device
  at::Tensor grad_scale;
};

using ParamGroups = amp::detail::ParamGroups;

/// In place: unscales the gradients of all groups, adds weight decay, and multiplies them by each parameter's rate. Errors,
/// before anything is changed: RuntimeError for a sparse gradient, one of another shape or device, a parameter with gaps in
/// memory, or a dtype that is neither 16-bit nor float32; ValueError for a float16 gradient that grad_scale is to unscale.
void adapt_gradients(const ParamGroups& groups, const LARCOptions& options, const std::vector<LarcRates>& rates);
void drop_gradients(const ParamGroups& groups);

template <class Options, class = void>
struct HasWeightDecay : std::false_type {};
template <class Options>
struct HasWeightDecay<Options, std::void_t<decltype(std::declval<Options&>().weight_decay() = 0.0)>> : std::true_type {};

template <class Options>
double weight_decay_of(const torch::optim::OptimizerParamGroup& group) {
  if constexpr (HasWeightDecay<Options>::value) {
    return static_cast<const Options&>(group.options()).weight_decay();
  } else {
    return 0;
  }
}

/// Sets the weight decay of all groups to 0 during its lifetime.
template <class Options>
class WithoutWeightDecay {
 public:
  explicit WithoutWeightDecay(ParamGroups& groups) : groups_(groups) {
    for (const auto& group : groups_) values_.push_back(weight_decay_of<Options>(group));
    write(std::vector<double>(groups_.size(), 0.0));
  }
  ~WithoutWeightDecay() { write(values_); }
  WithoutWeightDecay(const WithoutWeightDecay&) = delete;
  WithoutWeightDecay& operator=(const WithoutWeightDecay&) = delete;

 private:
  void write([[maybe_unused]] const std::vector<double>& values) {
    if constexpr (HasWeightDecay<Options>::value) {
      for (size_t i = 0; i < groups_.size(); ++i) static_cast<Options&>(groups_[i].options()).weight_decay() = values[i];
    }
  }

  ParamGroups& groups_;
  std::vector<double> values_;
};

/// Makes a tensor variable undefined during its lifetime.
class WithoutTensor {
 public:
  explicit WithoutTensor(at::Tensor& place) : place_(place), value_(std::exchange(place, at::Tensor())) {}
  ~WithoutTensor() { place_ = value_; }
  WithoutTensor(const WithoutTensor&) = delete;
  WithoutTensor& operator=(const WithoutTensor&) = delete;

 private:
  at::Tensor& place_;
  at::Tensor value_;
};

/// LARC changes gradients before the step, so a fused optimizer inside it must read them from the masters, as in Apex.
template <class Opt>
class WithMasterGrads : public Opt {
 public:
  explicit WithMasterGrads(Opt&& optimizer) : Opt(std::move(optimizer)) {}
  bool materialize_master_grads() const override { return true; }
};

/// Lets amp find the class of an optimizer behind a pointer. Fused optimizers do this themselves.
template <class Opt>
class WithAmpHandle : public Opt, public amp::MakesAmpHandle {
 public:
  explicit WithAmpHandle(Opt&& optimizer) : Opt(std::move(optimizer)) {}
};
template <class Opt>
using LarcBase = std::conditional_t<std::is_base_of_v<amp::StepsMasters, Opt>, WithMasterGrads<Opt>, WithAmpHandle<Opt>>;

}  // namespace detail

/// Layer-wise adaptive rate control (You, Gitman, Ginsburg 2017) around any optimizer. Apex: `apex.parallel.LARC`.
///
///     torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9).weight_decay(1e-4));
///     apex::parallel::LARC optimizer(sgd);                                        // LARC<torch::optim::SGD>
///     auto [net, opt] = apex::amp::initialize(model, optimizer, "O2");
///
/// LARC derives from the wrapped optimizer's class and is move-constructed from it, so it has all members of that class
/// (groups, state, schedulers, `save`/`load`, `zero_grad`, `add_param_group`). The original optimizer keeps options that
/// forward to LARC, so a scheduler that was built on it still works. Do not call the original's `step`: the next step of LARC
/// detects it. Wrap before `amp::initialize`, which accepts LARC at every level; with masters, LARC adapts the masters'
/// gradients.
///
/// `step` first changes the gradients in place. For a parameter p with gradient g, both with a norm other than zero: g = (g +
/// weight_decay * p) * rate, with rate = trust_coefficient * |p| / (|g| + weight_decay * |p| + eps), and with `clip` min(rate /
/// lr, 1) instead of rate. If a norm is zero, g stays as it is, without weight decay. The wrapped optimizer then steps with
/// weight decay 0. Around an optimizer that stores masters as remainders, it changes the bfloat16 gradients and takes the norms
/// of the bfloat16 parameters. Parameters and gradients: float16, bfloat16 or float32, dense, on CPU or CUDA; float32
/// arithmetic, no synchronization.
template <class Opt>
class LARC : public detail::LarcBase<Opt> {
  static_assert(!std::is_abstract_v<Opt>,
                "LARC derives from the class of the wrapped optimizer: pass the optimizer by its own type, not as a "
                "torch::optim::Optimizer");
  static_assert(!std::is_base_of_v<amp::detail::AmpOptimizerBase, Opt>,
                "LARC must wrap the optimizer before amp::initialize: LARC larc(optimizer); amp::initialize(model, larc, …)");
  static_assert(
      !std::is_base_of_v<amp::ShardedOptimizer, Opt>,
      "LARC adapts the gradients of whole parameters, which a sharded optimizer does not have: wrap FusedAdam instead");
  using Base = detail::LarcBase<Opt>;
  using Options = typename amp::detail::OptionsOf<Opt>::type;

 public:
  /// Moves `optimizer` into this object. Lists a tied parameter once; LibTorch's `parameters()` lists it once per module.
  /// Errors, before anything is moved: ValueError unless trust_coefficient > 0 and eps >= 0, and for a parameter in two groups.
  explicit LARC(Opt& optimizer, double trust_coefficient = 0.02, bool clip = true, double eps = 1e-8)
      : LARC(optimizer, LARCOptions().trust_coefficient(trust_coefficient).clip(clip).eps(eps)) {}
  explicit LARC(Opt&& optimizer, double trust_coefficient = 0.02, bool clip = true, double eps = 1e-8)
      : LARC(optimizer, trust_coefficient, clip, eps) {}
  LARC(Opt& optimizer, const LARCOptions& options)
      : LARC(std::move(optimizer), detail::checked(options, optimizer), Checked()) {}
  LARC(Opt&& optimizer, const LARCOptions& options) : LARC(optimizer, options) {}

  LARC(LARC&& other) : Base(std::move(static_cast<Base&>(other))), options_(other.options_), tie_(std::move(other.tie_)) {
    follow(this);
  }
  LARC& operator=(LARC&& other) {
    if (this != &other) {
      follow(nullptr);
      Base::operator=(std::move(static_cast<Base&>(other)));
      options_ = other.options_;
      tie_ = std::move(other.tie_);
      follow(this);
    }
    return *this;
  }
  ~LARC() override {
    if (tie_ && tie_->handle == this) follow(nullptr);
  }

  const LARCOptions& larc_options() const { return options_; }

  /// Adapts the gradients, then steps. Returns an undefined tensor. Restores the weight decay in the options, also if the step
  /// throws. Errors, before anything is changed: RuntimeError for a closure (Apex: LARC-01), a sparse gradient, one of another
  /// shape or device, a parameter with gaps in memory, another dtype, if the wrapped optimizer was stepped, and for an object
  /// that was moved from; ValueError for a float16 gradient that a GradScaler has scaled. Errors of the class's own step come
  /// after the gradients have been adapted, and drop them, since a repeated step would adapt them again.
  torch::Tensor step(typename Opt::LossClosure closure = nullptr) override {
    if (!tie_) detail::throw_moved_from();
    if (closure) detail::throw_closure();
    tie_->check();
    unique_groups_.update(this->param_groups());
    detail::adapt_gradients(this->param_groups(), options_, rates_of_groups());
    try {
      const detail::WithoutWeightDecay<Options> no_decay(this->param_groups());
      if constexpr (kUnscales) {
        const detail::WithoutTensor unscaled(this->grad_scale);
        Base::step();
      } else {
        Base::step();
      }
    } catch (...) {
      detail::drop_gradients(this->param_groups());
      throw;
    }
    return {};
  }

  /// Adds a group. A scheduler that was built on the original optimizer sees it, too.
  void add_param_group(const torch::optim::OptimizerParamGroup& group) {
    if (tie_) tie_->forget_lost_groups();
    Base::add_param_group(group);
    if (tie_) tie_->mirror_new_groups();
  }

  const std::type_info* amp_handle_class() const override { return &typeid(LARC); }
  std::unique_ptr<torch::optim::Optimizer> make_amp_handle(const std::shared_ptr<amp::detail::Session>& session) override {
    return std::make_unique<amp::AmpOptimizer<LARC>>(std::move(*this), session);
  }

 private:
  static constexpr bool kUnscales = std::is_base_of_v<amp::StepSupportsAmpScaling, Opt>;
  struct Checked {};

  LARC(Opt&& optimizer, const LARCOptions& options, Checked)
      : Base(std::move(optimizer)), options_(options), tie_(std::make_shared<amp::detail::OriginalOptimizer>()) {
    amp::detail::tie_original_to_handle<Opt>(optimizer, *this, tie_);
    follow(this);
    unique_groups_.update(this->param_groups());
  }

  void follow(torch::optim::Optimizer* handle) {
    if (tie_) tie_->handle = handle;
  }

  std::vector<detail::LarcRates> rates_of_groups() const {
    std::vector<detail::LarcRates> rates;
    for (const auto& group : this->param_groups()) {
      rates.push_back({group.options().get_lr(), detail::weight_decay_of<Options>(group), {}, {}});
      if constexpr (kUnscales) {
        rates.back().found_inf = this->found_inf;
        rates.back().grad_scale = this->grad_scale;
      }
    }
    return rates;
  }

  LARCOptions options_;
  amp::detail::UniqueParamGroups unique_groups_;
  std::shared_ptr<amp::detail::OriginalOptimizer> tie_;  // null after a move
};

}  // namespace apex::parallel
