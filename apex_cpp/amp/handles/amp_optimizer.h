#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <apex_cpp/amp/casts.h>
#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>
#include <apex_cpp/amp/optimizer_classes/original_optimizer.h>
#include <apex_cpp/amp/optimizer_classes/param_state.h>

#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <functional>
#include <memory>
#include <typeinfo>
#include <utility>

namespace apex::amp {

namespace detail {

class OptimizerStash;
struct Session;

/// The base of all optimizer handles, independent of the optimizer's class: leads from a `torch::optim::Optimizer&` to amp's
/// state.
class AmpOptimizerBase {
 public:
  virtual ~AmpOptimizerBase() = default;
  /// Null after the handle was moved from.
  const std::shared_ptr<OptimizerStash>& stash() const { return stash_; }
  /// Calls `change`, which writes what the optimizer steps, and its copies in the model, outside of a step. Values that the
  /// program wrote into the model go into the masters before. Errors: RuntimeError with `caller` for a handle that was moved
  /// from; those of OptimizerStash::check_in_use.
  void change_weights(const char* caller, const std::function<void()>& change);

 protected:
  AmpOptimizerBase() = default;
  AmpOptimizerBase(AmpOptimizerBase&&) = default;
  AmpOptimizerBase& operator=(AmpOptimizerBase&&) = default;

  // The steps of AmpOptimizer that do not depend on the optimizer's class.
  void attach(std::shared_ptr<Session> session, std::shared_ptr<OriginalOptimizer> tie, torch::optim::Optimizer& handle,
              bool is_own_class);
  void follow(torch::optim::Optimizer* from, torch::optim::Optimizer* to);
  OptimizerStash& in_use(const char* caller) const;
  bool begin_step(bool has_closure);
  /// Wraps the `closure` of a step for `run_step`; none if there is no closure.
  torch::optim::Optimizer::LossClosure watched(torch::optim::Optimizer::LossClosure closure) const;
  /// Returns false if the closure found an overflow before the optimizer changed anything: the step is skipped. Errors:
  /// RuntimeError if the closure found an overflow later.
  bool run_step(const std::function<void()>& step);
  void finish_step();
  /// Returns false if amp is disabled; the caller then runs the optimizer's own zero_grad.
  bool zero_grad_with_amp(bool set_to_none);
  void before_new_group(const torch::optim::OptimizerParamGroup& group);
  void after_new_group(const torch::optim::OptimizerParamGroup& group);
  void keep_casts() const;
  void write_masters(torch::serialize::OutputArchive& archive) const;
  std::vector<at::Tensor> read_masters(torch::serialize::InputArchive& archive);
  void after_load(const std::vector<at::Tensor>& masters);

 private:
  std::shared_ptr<OptimizerStash> stash_;
};

/// The stash of the handle `optimizer`. Errors: RuntimeError with `caller` and the remedy if `optimizer` is not a handle, or
/// was moved from.
const std::shared_ptr<OptimizerStash>& require_stash(torch::optim::Optimizer& optimizer, const char* caller);

}  // namespace detail

/// The optimizer that `amp::initialize` returns: the user's optimizer, move-constructed, with amp around its `step`.
///
/// If the level has masters, the handle's groups hold the FP32 masters. The handle converts to `torch::optim::Optimizer&`. It
/// can be moved and returned. The original optimizer keeps options that forward to the handle, so a scheduler that was built on
/// the original still works; do not call the original's `step`. `save` and `load` (and so `torch::save` and `torch::load`)
/// include the masters: a resumed run continues bitwise.
template <class Opt>
class AmpOptimizer : public Opt, public detail::AmpOptimizerBase {
 public:
  using ParamGroup = torch::optim::OptimizerParamGroup;

  /// Made by `amp::initialize`.
  AmpOptimizer(Opt&& original, std::shared_ptr<detail::Session> session) : Opt(std::move(original)) {
    auto tie = std::make_shared<detail::OriginalOptimizer>();
    detail::tie_original_to_handle<Opt>(original, *this, tie);
    attach(std::move(session), std::move(tie), *this, detail::kIsCustomOptimizer<Opt>);
  }
  AmpOptimizer(AmpOptimizer&& other) : Opt(std::move(static_cast<Opt&>(other))), AmpOptimizerBase(std::move(other)) {
    follow(&other, this);
  }
  AmpOptimizer& operator=(AmpOptimizer&& other) {
    if (this != &other) {
      follow(this, nullptr);
      Opt::operator=(std::move(static_cast<Opt&>(other)));
      AmpOptimizerBase::operator=(std::move(other));
      follow(&other, this);
    }
    return *this;
  }
  ~AmpOptimizer() override { follow(this, nullptr); }

  /// Runs one step. With masters: steps the masters, writes the 16-bit model parameters, then drops the masters' gradients.
  ///
  /// A step after an overflow is skipped once: no bit of a parameter or state changes, and the result is an undefined tensor. A
  /// step is also skipped if its closure finds an overflow before the optimizer has changed anything.
  ///
  /// Values that the program wrote into the model (`clamp_`, `copy_`, `set_data`, an initialization, a load) first go into the
  /// masters; `amp::clear_cast_cache` says which writes through `weight.data()` are seen. Casts are off during a step and its
  /// closure (Apex: INIT-20). There is no synchronization beyond the optimizer's own, except in the first steps of a class that
  /// the program defines.
  ///
  /// Errors: RuntimeError
  /// - for a closure if masters exist or a skip is pending (Apex: OPT-05, SL-12), or if it finds an overflow after the
  ///   optimizer has changed weights;
  /// - inside a `scale_loss` block, and after passes with `delay_unscale` only, also of the closure;
  /// - for a handle that was moved from, or whose model was initialized again with another optimizer;
  /// - in a CUDA graph with a dynamic loss scale;
  /// - for a gradient that is still scaled by a block which did not get this optimizer, or that a parameter had when it was
  ///   added after the block;
  /// - if the step reads the gradients of masters: for a gradient of the model that no block has unscaled, or that was changed
  ///   after its block. Clip with `amp::clip_grad_norm_`; edit the gradients of `amp::master_params`. This is detected without
  ///   synchronization, and confirmed with it;
  /// - in the first steps of a class that the program defines: if it writes to a model's weight instead of its master, as an
  ///   optimizer that wraps another one does.
  torch::Tensor step(typename Opt::LossClosure closure = nullptr) override {
    if (!begin_step(static_cast<bool>(closure))) return {};
    const disable_casts casts_off;  // INIT-20
    torch::Tensor loss;
    if (!run_step([&] { loss = Opt::step(watched(std::move(closure))); })) return {};
    finish_step();
    return loss;
  }

  /// Drops (or zeroes) the gradients of the model's parameters, also of frozen ones, and drops those of the masters (OPT-06).
  /// The model's own `zero_grad` does the same, and so does `zero_grad` through `torch::optim::Optimizer&`, which is not
  /// virtual, with one exception: it does not drop scaled gradients that wait in the model for another pass, as with
  /// `delay_unscale`, or with a fused optimizer and materialize_master_grads=false. Call these two before a scale_loss block:
  /// inside of it earlier gradients are put aside, where these may not find them.
  void zero_grad(bool set_to_none) {
    if (!zero_grad_with_amp(set_to_none)) Opt::zero_grad(set_to_none);
  }
  /// The same without an argument. If the level has masters, it drops the gradients. Otherwise the class decides: torch's
  /// classes drop them, and a fused optimizer does what its option set_grad_none says.
  void zero_grad() {
    if (!zero_grad_with_amp(/*set_to_none=*/true)) Opt::zero_grad();
  }

  /// Adds a group; its 16-bit parameters get masters. A scheduler that was built on the original optimizer also sets the rate
  /// of the new group, if the original is still at the same address. Errors, before anything is changed: TypeError for a
  /// parameter that is neither 16-bit nor FP32; RuntimeError for a parameter that the optimizer already has (Apex: APG-01..04).
  void add_param_group(const ParamGroup& group) {
    before_new_group(group);
    Opt::add_param_group(group);
    after_new_group(group);
  }

  void save(torch::serialize::OutputArchive& archive) const override {
    detail::save_without_scratch(*this, [&] { Opt::save(archive); });
    write_masters(archive);
  }
  /// Replaces the whole state by the archive's; if loading fails, the old state stays. Also works before the first step:
  /// masters are made first, so that no state is rounded to 16 bits. If the next step was to be skipped after an overflow,
  /// `load` drops the gradients instead, and the step is not skipped.
  void load(torch::serialize::InputArchive& archive) override {
    const auto masters = read_masters(archive);
    detail::load_replacing_state(*this, archive, [&] { Opt::load(archive); });
    after_load(masters);
  }
};

}  // namespace apex::amp

namespace apex::amp::detail {

struct Session;

/// Makes a handle for an optimizer whose class is known only at run time.
std::unique_ptr<torch::optim::Optimizer> erased_handle(torch::optim::Optimizer& optimizer, const std::shared_ptr<Session>&);
/// `own_class`: the class by which the program holds the optimizer; null if it holds a torch::optim::Optimizer. Errors:
/// TypeError with the class and the remedy if the optimizer's class is another one, or with null, one that `erased_handle` does
/// not know.
void check_class(const torch::optim::Optimizer& optimizer, const std::type_info* own_class);

}  // namespace apex::amp::detail

namespace torch::optim {
class Optimizer;
}

namespace apex::amp::detail {

/// During its lifetime, `save` of this optimizer's handle leaves the masters out on the calling thread: a checkpoint writes the
/// masters itself. Other optimizers are not affected.
class SaveWithoutMasters {
 public:
  explicit SaveWithoutMasters(const torch::optim::Optimizer& optimizer);
  ~SaveWithoutMasters();
  SaveWithoutMasters(const SaveWithoutMasters&) = delete;
  SaveWithoutMasters& operator=(const SaveWithoutMasters&) = delete;

  static bool applies_to(const torch::optim::Optimizer* handle);

 private:
  const torch::optim::Optimizer* outer_;
};

/// The key of the masters in an optimizer handle's archive.
inline constexpr const char* kMastersKey = "amp_master_weights";
/// The key, among the masters, of the positions of their parameters, counted over all groups.
inline constexpr const char* kPositionsKey = "positions";

}  // namespace apex::amp::detail
