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

/// Options of LARC, under Apex's names and with its defaults.
struct LARCOptions {
  /// How far a layer may move in one step, as a part of its weights' norm.
  TORCH_ARG(double, trust_coefficient) = 0.02;
  /// Take the smaller of the layer's own rate and the group's (LARC); otherwise the product of both (LARS).
  TORCH_ARG(bool, clip) = true;
  /// Keeps the divisor away from zero.
  TORCH_ARG(double, eps) = 1e-8;
};

namespace detail {

/// Errors: ValueError unless trust_coefficient is positive and eps is not negative, and for a parameter in two groups.
LARCOptions checked(LARCOptions options, const torch::optim::Optimizer& optimizer);
[[noreturn]] void throw_moved_from();
[[noreturn]] void throw_closure();

/// What one group's gradients are adapted with.
struct LarcRates {
  double lr = 0;
  double weight_decay = 0;
  at::Tensor found_inf;  // as amp::StepSupportsAmpScaling has them; undefined without a loss scaler on the device
  at::Tensor grad_scale;
};

using ParamGroups = amp::detail::ParamGroups;

/// Unscales the gradients of all groups, adds weight decay to them and multiplies them by each parameter's rate, in place.
/// Errors, before anything is changed: RuntimeError for a sparse gradient or a dtype that is neither 16-bit nor float32.
void adapt_gradients(const ParamGroups& groups, const LARCOptions& options, const std::vector<LarcRates>& rates);

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

/// Takes the weight decay out of all groups while it lives.
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

/// Takes a tensor out of its place while it lives.
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

/// LARC rewrites the gradients that are stepped, so a fused optimizer below it gets them in the masters, as Apex has it.
template <class Opt>
class WithMasterGrads : public Opt {
 public:
  explicit WithMasterGrads(Opt&& optimizer) : Opt(std::move(optimizer)) {}
  bool materialize_master_grads() const override { return true; }
};

/// Fused optimizers tell amp their class behind a pointer; around any other one, LARC does.
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
/// It is the optimizer: of the wrapped class, move-constructed from it, with all that this class has (groups, state,
/// schedulers, `save`/`load`, `zero_grad`, `add_param_group`). The optimizer that was passed in keeps options that forward to
/// this one, so a scheduler built on it before goes on working; its `step` must not be called any more, which the next step
/// here notices. Wrap before `amp::initialize`, which accepts it at every level; masters are what is stepped then.
///
/// `step` first rewrites the gradients in place. For a parameter p with gradient g, both with a norm other than zero:
/// g = (g + weight_decay * p) * rate with rate = trust_coefficient * |p| / (|g| + weight_decay * |p| + eps), and with `clip`
/// min(rate / lr, 1) for rate. Where a norm is zero g stays, without any decay. The wrapped optimizer steps with weight decay
/// 0. Parameters and gradients: float16, bfloat16 or float32, dense, on CPU or CUDA; float32 arithmetic, no synchronisation.
template <class Opt>
class LARC : public detail::LarcBase<Opt> {
  static_assert(
      !std::is_abstract_v<Opt>,
      "LARC becomes an optimizer of the wrapped one's class: pass it by its own type, not as a torch::optim::Optimizer");
  static_assert(!std::is_base_of_v<amp::detail::AmpOptimizerBase, Opt>,
                "LARC goes around the optimizer before amp::initialize: LARC larc(optimizer); amp::initialize(model, larc, …)");
  static_assert(
      !std::is_base_of_v<amp::ShardedOptimizer, Opt>,
      "LARC adapts the gradients of whole parameters, which a sharded optimizer does not have: put it around FusedAdam");
  using Base = detail::LarcBase<Opt>;
  using Options = typename amp::detail::OptionsOf<Opt>::type;

 public:
  /// Takes over `optimizer`. Tied parameters, which LibTorch's `parameters()` lists once for each module that has them, are
  /// listed once from then on. Errors, before anything is moved: ValueError unless trust_coefficient > 0 and eps >= 0, and for
  /// a parameter in two groups.
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

  /// Adapts the gradients and steps. Answers an undefined tensor. Weight decay is back in the options afterwards, also when the
  /// step throws. Errors, before anything is changed: RuntimeError for a closure (Apex: LARC-01), a sparse gradient, another
  /// dtype, the wrapped optimizer used in between, or an object that was moved from.
  torch::Tensor step(typename Opt::LossClosure closure = nullptr) override {
    if (!tie_) detail::throw_moved_from();
    if (closure) detail::throw_closure();
    tie_->check();
    unique_groups_.update(this->param_groups());
    detail::adapt_gradients(this->param_groups(), options_, rates_of_groups());
    const detail::WithoutWeightDecay<Options> no_decay(this->param_groups());
    if constexpr (kUnscales) {
      const detail::WithoutTensor unscaled(this->grad_scale);
      Base::step();
    } else {
      Base::step();
    }
    return {};
  }

  /// Adds a group, which a scheduler built on the wrapped optimizer before sees, too.
  void add_param_group(const torch::optim::OptimizerParamGroup& group) {
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
  std::shared_ptr<amp::detail::OriginalOptimizer> tie_;  // null once moved from
};

}  // namespace apex::parallel
