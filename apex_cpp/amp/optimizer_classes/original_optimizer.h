#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <apex_cpp/torch_compat/private_members.h>

#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/lbfgs.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <memory>
#include <type_traits>
#include <vector>

namespace apex::amp {

/// Which options type an optimizer class reads, found by overload on the class or its nearest base. For an optimizer of your
/// own, declare `MyOptions options_of(const MyOptimizer*);` in its namespace; no definition is needed.
torch::optim::SGDOptions options_of(const torch::optim::SGD*);
torch::optim::AdamOptions options_of(const torch::optim::Adam*);
torch::optim::AdamWOptions options_of(const torch::optim::AdamW*);
torch::optim::RMSpropOptions options_of(const torch::optim::RMSprop*);
torch::optim::AdagradOptions options_of(const torch::optim::Adagrad*);
torch::optim::LBFGSOptions options_of(const torch::optim::LBFGS*);

namespace detail {

template <class Opt, class = void>
struct OptionsOf {
  static_assert(!sizeof(Opt*),
                "amp::initialize does not know the options type of this optimizer: declare "
                "`MyOptions options_of(const MyOptimizer*);` in the optimizer's namespace");
};
template <class Opt>
struct OptionsOf<Opt, std::void_t<decltype(options_of(std::declval<const Opt*>()))>> {
  using type = decltype(options_of(std::declval<const Opt*>()));
};

/// Options that stand in the optimizer that was passed to `initialize`, once its parameters have moved to the handle.
class OriginalOptions {
 public:
  virtual ~OriginalOptions() = default;
  /// Carries what was written into these options since the last call over to the handle's, and takes over what the handle's
  /// have become: whatever is written next differs from it, or changes nothing.
  virtual void agree_with_handle() = 0;
};

/// The tie between the optimizer the user passed in and the handle that replaced it: a learning rate set on the original
/// reaches the handle, groups added to the handle show in the original, and a `step` or `zero_grad` called on the original by
/// mistake is noticed.
class OriginalOptimizer {
 public:
  /// The handle, kept up to date when it moves; null once it is gone.
  torch::optim::Optimizer* handle = nullptr;
  /// Adds a group to the original for the handle's group of this index.
  std::function<void(size_t)> show_group;

  /// The handle's options of a group; null where it has no such group any more.
  torch::optim::OptimizerOptions* find(size_t group) const;
  torch::optim::OptimizerOptions& target(size_t group) const;
  void add(OriginalOptions* options) { options_.push_back(options); }
  void remove(OriginalOptions* options);
  /// A parameter for a group of the original: `step` and `zero_grad` leave a trace on it.
  at::Tensor make_trap();
  /// Groups that the handle has got show in the original, too, so that a scheduler built on it sets their rates. Nothing where
  /// the original is gone. One that still has its groups must be where it was, as a scheduler needs it to be.
  void show_new_groups();
  /// Has options and groups agree. Errors: RuntimeError if the original optimizer was stepped or zeroed since `initialize`.
  void check();

 private:
  struct Trap {
    at::Tensor param;
    int64_t param_version;
    int64_t grad_version;
    /// Versions show most changes; SGD and Adagrad write around them, and show in the value.
    bool sprung() const;
  };
  std::vector<OriginalOptions*> options_;
  std::vector<Trap> traps_;
};

/// Throws RuntimeError: the original was `used` so ("step() was called on"), and what to do in place.
[[noreturn]] void refuse_original(const char* used);

template <class Options, class = void>
inline constexpr bool kIsComparable = false;
template <class Options>
inline constexpr bool
    kIsComparable<Options, std::void_t<decltype(std::declval<const Options&>() == std::declval<const Options&>())>> = true;
/// Whether the options have a learning rate: the base class's `get_lr` throws.
template <class Options>
inline constexpr bool kHasLr = !std::is_same_v<decltype(&Options::get_lr), double (torch::optim::OptimizerOptions::*)() const>;

/// Of options without `operator==` only the learning rate is carried over.
template <class Options>
class ForwardingOptions final : public Options, public OriginalOptions {
 public:
  ForwardingOptions(const Options& options, std::shared_ptr<OriginalOptimizer> tie, size_t group)
      : Options(options), seen_(options), tie_(std::move(tie)), group_(group) {
    tie_->add(this);
  }
  ForwardingOptions(const ForwardingOptions&) = delete;
  ForwardingOptions& operator=(const ForwardingOptions&) = delete;
  ~ForwardingOptions() override { tie_->remove(this); }

  double get_lr() const override { return tie_->handle ? tie_->target(group_).get_lr() : Options::get_lr(); }

  void set_lr(const double lr) override {
    Options::set_lr(lr);
    seen_.set_lr(lr);
    if (tie_->handle) tie_->target(group_).set_lr(lr);
  }

  using Options::serialize;
  /// Of the original nothing is left to save.
  void serialize(torch::serialize::OutputArchive&) const override { refuse_original("torch::save was given"); }

  void agree_with_handle() override {
    auto* target = dynamic_cast<Options*>(tie_->find(group_));
    if (!target) return;
    if constexpr (kIsComparable<Options>) {
      agree_on_all(*target);
    } else if constexpr (kHasLr<Options>) {
      agree_on_lr(*target);
    }
  }

 private:
  void agree_on_all(Options& target) {
    Options& mine = *this;
    if (!(mine == seen_)) {
      const double lr = Options::get_lr() != seen_.get_lr() ? Options::get_lr() : target.get_lr();
      target = mine;
      target.set_lr(lr);
    }
    if (!(mine == target)) mine = target;
    if (!(seen_ == target)) seen_ = target;
  }

  void agree_on_lr(Options& target) {
    if (Options::get_lr() != seen_.get_lr()) target.set_lr(Options::get_lr());
    Options::set_lr(target.get_lr());
    seen_.set_lr(target.get_lr());
  }

  Options seen_;
  std::shared_ptr<OriginalOptimizer> tie_;
  size_t group_;
};

/// The defaults of an optimizer whose groups have moved: to be read, not for a group of its own.
template <class Options>
class ReadOnlyDefaults final : public Options {
 public:
  explicit ReadOnlyDefaults(const Options& options) : Options(options) {}
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override { refuse_original("add_param_group() was called on"); }
};

/// Refills `original`, whose groups were moved into the handle, with forwarding options and traps, group by group. What is
/// added to the handle later goes the same way.
template <class Opt>
void leave_behind(torch::optim::Optimizer& original, torch::optim::Optimizer& handle,
                  const std::shared_ptr<OriginalOptimizer>& tie) {
  using Options = typename OptionsOf<Opt>::type;
  original.state().clear();
  if (const auto* defaults = dynamic_cast<const Options*>(torch_compat::defaults_of(handle).get()))
    torch_compat::defaults_of(original) = std::make_unique<ReadOnlyDefaults<Options>>(*defaults);
  original.param_groups().clear();
  tie->handle = &handle;
  const torch::optim::OptimizerParamGroup* memory = original.param_groups().data();
  tie->show_group = [&original, memory, weak_tie = std::weak_ptr<OriginalOptimizer>(tie)](size_t group) mutable {
    auto& groups = original.param_groups();
    if (groups.size() != group || groups.data() != memory) return;  // it was moved from
    const auto owner = weak_tie.lock();
    const auto& options = static_cast<const Options&>(owner->target(group));
    groups.emplace_back(std::vector<at::Tensor>{owner->make_trap()},
                        std::make_unique<ForwardingOptions<Options>>(options, owner, group));
    memory = groups.data();
  };
  for (size_t i = 0; i < handle.param_groups().size(); ++i) tie->show_group(i);
}

}  // namespace detail
}  // namespace apex::amp
