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

/// What every handle has whatever its optimizer class: the way from a `torch::optim::Optimizer&` to amp's state.
class AmpOptimizerBase {
 public:
  virtual ~AmpOptimizerBase() = default;
  /// Null once the handle was moved from.
  const std::shared_ptr<OptimizerStash>& stash() const { return stash_; }

 protected:
  AmpOptimizerBase() = default;
  AmpOptimizerBase(AmpOptimizerBase&&) = default;
  AmpOptimizerBase& operator=(AmpOptimizerBase&&) = default;

  // The parts of a handle's work that do not depend on the optimizer's class.
  void attach(std::shared_ptr<Session> session, std::shared_ptr<OriginalOptimizer> tie, torch::optim::Optimizer& handle,
              bool is_own_class);
  void follow(torch::optim::Optimizer* from, torch::optim::Optimizer* to);
  OptimizerStash& in_use(const char* caller) const;
  bool begin_step(bool has_closure);
  /// `closure` for the step that `run_step` is to run; none for none.
  torch::optim::Optimizer::LossClosure watched(torch::optim::Optimizer::LossClosure closure) const;
  /// Returns false if a watched closure found an overflow before the optimizer had changed anything: the step was skipped.
  /// Errors: RuntimeError if it found one later.
  bool run_step(const std::function<void()>& step);
  void finish_step();
  /// Returns false where amp is disabled and the optimizer's own zero_grad is to run.
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

/// The stash of the handle that `optimizer` is. Errors: RuntimeError that names `caller` and the remedy for an optimizer
/// that is no handle, or a handle that was moved from.
const std::shared_ptr<OptimizerStash>& require_stash(torch::optim::Optimizer& optimizer, const char* caller);

}  // namespace detail

/// The optimizer that `amp::initialize` returns: the user's optimizer, move-constructed, with amp around its `step`.
///
/// It holds the FP32 masters in its groups (where the level has masters) and passes as `torch::optim::Optimizer&`. It may be
/// moved and returned; amp's state follows. The optimizer that was passed in keeps options that forward to this one, so a
/// scheduler built on it before goes on working; its `step` must not be called any more.
/// `save`/`load` (hence `torch::save`/`torch::load`) include the masters, so that a resumed run continues bitwise.
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

  /// One step, or none: a step after an overflow is skipped once, which changes no bit of any parameter or state and returns an
  /// undefined tensor; so is one whose closure finds an overflow the first time, before it moves anything. With masters: steps
  /// them, then writes the 16-bit model parameters and drops the masters' gradients. Weights that the program has written into
  /// the model (`clamp_`, `copy_`, `set_data`, an initialisation, a load) go into the masters first; of writes through
  /// `weight.data()`, `amp::clear_cast_cache` says which are seen. Casts are off within a step, its closure included (Apex:
  /// INIT-20). No synchronisation beyond the optimizer's own, but for the first steps of a class of the program's own. Errors:
  /// RuntimeError for a closure where masters exist or a skip is pending (Apex: OPT-05, SL-12), or that finds an overflow after
  /// the optimizer has moved weights, inside a `scale_loss` block, after passes with `delay_unscale` only, on a handle that was
  /// moved from, or whose model was initialized again with another optimizer, in a CUDA graph with a dynamic loss scale, for a
  /// gradient that is still scaled from a block which was not given this optimizer, and, where the step reads the gradients of
  /// masters, for one in the model that no block has unscaled or that was changed after its block (clip with
  /// `amp::clip_grad_norm_`, edit those of `amp::master_params`). The last is seen without synchronising, and confirmed with.
  /// Also for a class of the program's own that writes into a model's weight and not into its master, as one does that holds
  /// another optimizer: seen in the first steps.
  torch::Tensor step(typename Opt::LossClosure closure = nullptr) override {
    if (!begin_step(static_cast<bool>(closure))) return {};
    const disable_casts casts_off;  // INIT-20
    torch::Tensor loss;
    if (!run_step([&] { loss = Opt::step(watched(std::move(closure))); })) return {};
    finish_step();
    return loss;
  }

  /// Drops (or zeroes) the gradients of the model's parameters and drops those of the masters. Frozen parameters keep theirs
  /// where the level has masters (Apex: OPT-06). `zero_grad` through `torch::optim::Optimizer&`, which is not virtual, and the
  /// model's own do as well, with one exception: the base class's does not reach scaled gradients that wait in the model for a
  /// further pass, as with `delay_unscale` or with a fused optimizer and materialize_master_grads=false.
  void zero_grad(bool set_to_none = true) {
    if (!zero_grad_with_amp(set_to_none)) Opt::zero_grad(set_to_none);
  }

  /// Adds a group; its 16-bit parameters get masters. A scheduler built on the original before `initialize` sets its rate, too:
  /// as for that scheduler, an original that still lives must be where it was. Errors, before anything is changed: TypeError
  /// for a parameter that is neither 16-bit nor FP32, RuntimeError for one that the optimizer has already (Apex: APG-01..04).
  void add_param_group(const ParamGroup& group) {
    before_new_group(group);
    Opt::add_param_group(group);
    after_new_group(group);
  }

  void save(torch::serialize::OutputArchive& archive) const override {
    Opt::save(archive);
    write_masters(archive);
  }
  /// Works before the first step too: masters are made first, so that no state is rounded to 16 bits on the way. The archive's
  /// state replaces all that is here, and where loading fails all state stays. A step that was to be skipped after an overflow
  /// is not skipped any more: the gradients are dropped instead.
  void load(torch::serialize::InputArchive& archive) override {
    const auto masters = read_masters(archive);
    detail::load_replacing_state(*this, archive, [&] { Opt::load(archive); });
    after_load(masters);
  }
};

}  // namespace apex::amp

namespace apex::amp::detail {

struct Session;

/// A handle for an optimizer whose class is known only at run time.
std::unique_ptr<torch::optim::Optimizer> erased_handle(torch::optim::Optimizer& optimizer, const std::shared_ptr<Session>&);
/// Errors: TypeError naming the class and the remedy unless it is `own_class`, by which the program holds the optimizer; where
/// that is null, it holds it as a torch::optim::Optimizer, unless `erased_handle` knows it.
void check_class(const torch::optim::Optimizer& optimizer, const std::type_info* own_class);

}  // namespace apex::amp::detail

namespace torch::optim {
class Optimizer;
}

namespace apex::amp::detail {

/// While it lives, the `save` of this optimizer's handle leaves the masters out on this thread: a checkpoint writes them
/// itself, and an archive would only hold copies of them. Any other optimizer saves as ever.
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

/// Where an optimizer handle's archive has its masters.
inline constexpr const char* kMastersKey = "amp_master_weights";
/// And in there, where their parameters stand among those of all groups.
inline constexpr const char* kPositionsKey = "positions";

}  // namespace apex::amp::detail
