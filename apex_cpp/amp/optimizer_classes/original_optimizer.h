#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <apex_cpp/torch_compat/private_members.h>

#include <ATen/ops/full.h>
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

/// The options type of an optimizer class, found by overload resolution on the class or its nearest base. For a custom
/// optimizer, declare `MyOptions options_of(const MyOptimizer*);` in its namespace; no definition is needed.
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

/// A group's options in the original optimizer, after its parameters have moved to the handle.
class OriginalOptions {
 public:
  virtual ~OriginalOptions() = default;
  /// Copies what the program wrote into these options since the last call to the handle's options, then copies the handle's
  /// options back, so that the next write is detected as a difference.
  virtual void sync_with_handle() = 0;
  /// The handle's options; null if the handle or the group is gone.
  virtual const torch::optim::OptimizerOptions* target() const = 0;
};

/// Connects the optimizer that the program passed to `initialize` with the handle that replaced it. A learning rate set on the
/// original reaches the handle, groups added to the handle appear in the original, and a mistaken `step`, `zero_grad` or
/// clipping of gradients on the original is detected.
class OriginalOptimizer {
 public:
  /// The handle, updated when it is moved; null once it is destroyed.
  torch::optim::Optimizer* handle = nullptr;
  /// Adds a group to the original for the handle's group at this index.
  std::function<void(size_t)> mirror_group;

  /// The handle's options of the original's group; null if the handle or the group is gone. A group is known by its options,
  /// since groups before it may have been taken out of the handle. Those that are gone give their places to new groups, in
  /// order.
  torch::optim::OptimizerOptions* find(size_t group) const;
  /// The same. Errors: RuntimeError if the handle is gone.
  torch::optim::OptimizerOptions& target(size_t group) const;
  /// `group`: its index in the handle, and in the original.
  void add(OriginalOptions* options, size_t group);
  void remove(OriginalOptions* options);
  /// Before a group is added to the handle: its options may get the memory of those that are gone.
  void forget_lost_groups();
  /// A parameter for a group of the original. `step`, `zero_grad` and clipping on the original change it or its gradient, which
  /// `check` detects.
  at::Tensor make_sentinel();
  /// Adds the handle's new groups to the original, so that a learning-rate scheduler built on the original sets their rates
  /// too. No-op if the original is destroyed. The original must not have moved, as schedulers require too.
  void mirror_new_groups();
  /// Synchronises options and groups. Errors: RuntimeError if `step` or `zero_grad` was called on the original, or
  /// its gradients were clipped.
  void check();

 private:
  struct Sentinel {
    at::Tensor param;
    int64_t param_version;
    int64_t grad_version;
    /// Compares versions and values: SGD, Adagrad and clipping write without changing the version.
    bool was_touched() const;
  };
  bool is_lost(const torch::optim::OptimizerOptions* target) const;

  std::vector<OriginalOptions*> options_;
  std::vector<const torch::optim::OptimizerOptions*> targets_;  // the handle's options of each group; null if gone
  std::vector<Sentinel> sentinels_;
};

/// Throws RuntimeError. `used` says how the original was used, such as "step() was called on".
[[noreturn]] void throw_original_used(const char* used);
/// Whether `optimizer` is an original, whose parameters have moved to a handle.
bool is_original(const torch::optim::Optimizer& optimizer);
/// Throws the same for an original.
void check_not_original(const torch::optim::Optimizer& optimizer, const char* used);

template <class Options, class = void>
inline constexpr bool kIsComparable = false;
template <class Options>
inline constexpr bool
    kIsComparable<Options, std::void_t<decltype(std::declval<const Options&>() == std::declval<const Options&>())>> = true;
/// Whether the options class overrides `get_lr`; the base class's throws.
template <class Options>
inline constexpr bool kHasLr = !std::is_same_v<decltype(&Options::get_lr), double (torch::optim::OptimizerOptions::*)() const>;

/// The original's options of one group, which forward to the handle's. Without `operator==` only the learning rate is
/// forwarded.
template <class Options>
class ForwardingOptions final : public Options, public OriginalOptions {
 public:
  ForwardingOptions(const Options& options, std::shared_ptr<OriginalOptimizer> tie, size_t group)
      : Options(options), seen_(options), tie_(std::move(tie)), group_(group) {
    tie_->add(this, group);
  }
  ForwardingOptions(const ForwardingOptions&) = delete;
  ForwardingOptions& operator=(const ForwardingOptions&) = delete;
  ~ForwardingOptions() override { tie_->remove(this); }

  double get_lr() const override {
    const auto* in_use = tie_->find(group_);
    return in_use ? in_use->get_lr() : Options::get_lr();
  }

  void set_lr(const double lr) override {
    Options::set_lr(lr);
    seen_.set_lr(lr);
    if (auto* in_use = tie_->find(group_)) in_use->set_lr(lr);
  }

  using Options::serialize;
  /// Errors: RuntimeError: the original has nothing to save.
  void serialize(torch::serialize::OutputArchive&) const override { throw_original_used("torch::save was given"); }

  void sync_with_handle() override {
    auto* options = dynamic_cast<Options*>(tie_->find(group_));
    if (!options) return;
    if constexpr (kIsComparable<Options>) {
      sync_all(*options);
    } else if constexpr (kHasLr<Options>) {
      sync_lr(*options);
    }
  }

  const torch::optim::OptimizerOptions* target() const override { return tie_->find(group_); }

 private:
  void sync_all(Options& target) {
    Options& mine = *this;
    if (!(mine == seen_)) {
      const double lr = Options::get_lr() != seen_.get_lr() ? Options::get_lr() : target.get_lr();
      target = mine;
      target.set_lr(lr);
    }
    if (!(mine == target)) mine = target;
    if (!(seen_ == target)) seen_ = target;
  }

  void sync_lr(Options& target) {
    if (Options::get_lr() != seen_.get_lr()) target.set_lr(Options::get_lr());
    Options::set_lr(target.get_lr());
    seen_.set_lr(target.get_lr());
  }

  Options seen_;
  std::shared_ptr<OriginalOptimizer> tie_;
  size_t group_;
};

/// The defaults of the original optimizer: readable, but not usable for a new group.
template <class Options>
class ReadOnlyDefaults final : public Options {
 public:
  explicit ReadOnlyDefaults(const Options& options) : Options(options) {}
  std::unique_ptr<torch::optim::OptimizerOptions> clone() const override {
    throw_original_used("add_param_group() was called on");
  }
};

/// Gives `original`, whose groups were moved into the handle, groups with forwarding options and sentinel parameters. Groups
/// added to the handle later are mirrored in the same way.
template <class Opt>
void tie_original_to_handle(torch::optim::Optimizer& original, torch::optim::Optimizer& handle,
                            const std::shared_ptr<OriginalOptimizer>& tie) {
  using Options = typename OptionsOf<Opt>::type;
  original.state().clear();
  if (const auto* defaults = dynamic_cast<const Options*>(torch_compat::defaults_of(handle).get()))
    torch_compat::defaults_of(original) = std::make_unique<ReadOnlyDefaults<Options>>(*defaults);
  original.param_groups().clear();
  tie->handle = &handle;
  const torch::optim::OptimizerParamGroup* memory = original.param_groups().data();
  tie->mirror_group = [&original, memory, weak_tie = std::weak_ptr<OriginalOptimizer>(tie)](size_t group) mutable {
    auto& groups = original.param_groups();
    if (groups.size() != group || groups.data() != memory) return;  // the original was moved
    const auto owner = weak_tie.lock();
    const auto& options = static_cast<const Options&>(owner->target(group));
    groups.emplace_back(std::vector<at::Tensor>{owner->make_sentinel()},
                        std::make_unique<ForwardingOptions<Options>>(options, owner, group));
    memory = groups.data();
  };
  try {
    for (size_t i = 0; i < handle.param_groups().size(); ++i) tie->mirror_group(i);
  } catch (...) {
    tie->handle = nullptr;  // is not made
    throw;
  }
}

}  // namespace detail
}  // namespace apex::amp
