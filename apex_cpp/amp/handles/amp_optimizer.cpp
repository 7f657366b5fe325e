#include <apex_cpp/amp/handles/amp_optimizer.h>

#include <apex_cpp/amp/masters/optimizer_stash.h>
#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>
#include <apex_cpp/amp/optimizer_classes/param_state.h>
#include <apex_cpp/amp/tensors/parameters.h>

#include <c10/util/Type.h>

#include <string>
#include <typeinfo>
#include <utility>

namespace apex::amp::detail {
namespace {

thread_local const torch::optim::Optimizer* saved_without_masters = nullptr;

}  // namespace

SaveWithoutMasters::SaveWithoutMasters(const torch::optim::Optimizer& optimizer)
    : outer_(std::exchange(saved_without_masters, &optimizer)) {}

SaveWithoutMasters::~SaveWithoutMasters() { saved_without_masters = outer_; }

bool SaveWithoutMasters::applies_to(const torch::optim::Optimizer* handle) { return saved_without_masters == handle; }

void AmpOptimizerBase::attach(std::shared_ptr<Session> session, std::shared_ptr<OriginalOptimizer> tie,
                              torch::optim::Optimizer& handle, bool is_own_class) {
  if (session->enabled()) list_params_once(handle.param_groups());
  stash_ = std::make_shared<OptimizerStash>(session, std::move(tie), is_own_class);
  stash_->mark_grads_as_preexisting(params_of(handle.param_groups()));
  session->optimizers.push_back(stash_);
  keep_casts();
}

// Casts of the weights that this optimizer trains may be cached: amp learns of every change to them.
void AmpOptimizerBase::keep_casts() const {
  const auto& rules = stash_->session().cast_rules;
  if (!rules || !stash_->session().patches_functions()) return;
  for (const auto& group : stash_->original_optimizer().handle->param_groups()) {
    for (const auto& param : group.params()) rules->cache().keep(param);
  }
}

void AmpOptimizerBase::follow(torch::optim::Optimizer* from, torch::optim::Optimizer* to) {
  if (stash_ && stash_->original_optimizer().handle == from) stash_->original_optimizer().handle = to;
}

OptimizerStash& AmpOptimizerBase::in_use(const char* caller) const {
  TORCH_CHECK(stash_, caller, "() was called on an optimizer handle that was moved from. Use the one it was moved into.");
  return *stash_;
}

bool AmpOptimizerBase::begin_step(bool has_closure) {
  OptimizerStash& stash = in_use("step");
  check_captured_step(stash);
  return stash.begin_step(has_closure);
}

namespace {

struct StepSkipped {};

// Version counters of the parameters. They show all writes except those through data().
std::vector<int64_t> versions_of(const torch::optim::Optimizer& optimizer) {
  std::vector<int64_t> versions;
  for (const at::Tensor& param : params_of(optimizer.param_groups())) versions.push_back(param._version());
  return versions;
}

}  // namespace

torch::optim::Optimizer::LossClosure AmpOptimizerBase::watched(torch::optim::Optimizer::LossClosure closure) const {
  if (!closure) return closure;
  return [stash = stash_, closure = std::move(closure), is_first = true, versions = versions_of(*stash_->handle())]() mutable {
    at::Tensor loss = closure();
    if (!stash->skips_next_step()) {
      stash->check_unscaled("step");
      is_first = false;
      return loss;
    }
    TORCH_CHECK(is_first && versions == versions_of(*stash->handle()),
                "step(closure): gradients overflowed in the closure after the optimizer had changed the weights, so the step "
                "can no longer be skipped. Use a fixed loss scale: InitializeOptions().loss_scale(1.0).");
    throw StepSkipped();
  };
}

bool AmpOptimizerBase::run_step(const std::function<void()>& step) {
  try {
    step();
    return true;
  } catch (const StepSkipped&) {
    return begin_step(/*has_closure=*/false);
  }
}

void AmpOptimizerBase::finish_step() {
  stash_->finish_step();
  stash_->session().clear_cast_cache();  // some optimizers write to weights without a new version
}

void AmpOptimizerBase::change_weights(const char* caller, const std::function<void()>& change) {
  in_use(caller).change_weights(change);
  stash_->session().clear_cast_cache();
}

bool AmpOptimizerBase::zero_grad_with_amp(bool set_to_none) {
  auto& stash = in_use("zero_grad");
  stash.check_in_use();
  stash.session().clear_cast_cache();
  if (!stash.session().has_masters()) {
    stash.forget_passes();
    return false;
  }
  stash.zero_grad(set_to_none);
  return true;
}

void AmpOptimizerBase::before_new_group(const torch::optim::OptimizerParamGroup& group) {
  auto& stash = in_use("add_param_group");
  stash.original_optimizer().forget_lost_groups();
  if (!stash.session().enabled()) return;
  stash.adopt_new_params();
  stash.check_new_group(group.params());
  stash.announce_masters(group.params());
}

void AmpOptimizerBase::after_new_group(const torch::optim::OptimizerParamGroup& group) {
  stash_->adopt_new_params();
  stash_->mark_grads_as_preexisting(group.params());
  stash_->original_optimizer().mirror_new_groups();
  keep_casts();
}

void AmpOptimizerBase::write_masters(torch::serialize::OutputArchive& archive) const {
  const auto& stash = in_use("save");
  if (SaveWithoutMasters::applies_to(stash.handle())) return;
  const auto& masters = stash.masters();
  if (masters.empty()) return;
  torch::serialize::OutputArchive masters_archive(archive.compilation_unit());
  masters_archive.write("size", c10::IValue(static_cast<int64_t>(masters.size())));
  for (size_t i = 0; i < masters.size(); ++i) masters_archive.write(std::to_string(i), masters[i].detach());
  masters_archive.write(kPositionsKey, c10::IValue(stash.master_positions()));
  archive.write(kMastersKey, masters_archive);
}

std::vector<at::Tensor> AmpOptimizerBase::read_masters(torch::serialize::InputArchive& archive) {
  auto& stash = in_use("load");
  stash.adopt_new_params();
  torch::serialize::InputArchive masters_archive;
  if (!stash.session().has_masters() || !archive.try_read(kMastersKey, masters_archive)) return {};
  c10::IValue size, positions;
  masters_archive.read("size", size);
  std::vector<at::Tensor> masters(static_cast<size_t>(size.toInt()));
  for (size_t i = 0; i < masters.size(); ++i) masters_archive.read(std::to_string(i), masters[i]);
  if (masters_archive.try_read(kPositionsKey, positions))
    masters = stash.arrange_saved_masters(masters, positions.toIntVector());
  stash.check_masters_fit(masters);
  return masters;
}

void AmpOptimizerBase::after_load(const std::vector<at::Tensor>& masters) {
  if (!stash_->session().enabled()) return;
  match_state_to_params(*stash_->handle(), stash_->session().has_masters());
  if (!masters.empty()) stash_->load_masters(masters);
  stash_->forget_skip();
}

const std::shared_ptr<OptimizerStash>& require_stash(torch::optim::Optimizer& optimizer, const char* caller) {
  auto* handle = dynamic_cast<AmpOptimizerBase*>(&optimizer);
  TORCH_CHECK(handle || current_session(), "amp::", caller,
              " was called before amp::initialize. Call amp::initialize and pass the optimizer that it returns.");
  TORCH_CHECK(handle, "amp::", caller,
              " was given an optimizer that amp::initialize did not return. Pass the handle from "
              "`auto [net, opt] = amp::initialize(model, optimizer, …)`, not the original optimizer, and not a variable of the "
              "optimizer's own class that the handle was assigned to.");
  TORCH_CHECK(handle->stash(), "amp::", caller,
              " was given an optimizer handle that was moved from. Pass the handle it was moved into.");
  return handle->stash();
}

namespace {

using torch::optim::Optimizer;
using HandlePtr = std::unique_ptr<Optimizer>;

/// Calls `f` with a null pointer of the optimizer's dynamic class, if this is a class of torch::optim. Returns whether it is.
template <class... Opts, class F>
bool with_class_among(OptimizerClasses<Opts...>, const Optimizer& optimizer, F&& f) {
  return ((typeid(optimizer) == typeid(Opts) ? (f(static_cast<Opts*>(nullptr)), true) : false) || ...);
}

template <class F>
bool with_class(const Optimizer& optimizer, F&& f) {
  return with_class_among(TorchOptimizers(), optimizer, f);
}

}  // namespace

void check_class(const Optimizer& optimizer, const std::type_info* own_class) {
  if (dynamic_cast<const AmpOptimizerBase*>(&optimizer)) return;  // check_not_initialized reports it
  const auto* maker = dynamic_cast<const MakesAmpHandle*>(&optimizer);
  if (maker && !own_class) own_class = maker->amp_handle_class();
  const bool known = own_class ? typeid(optimizer) == *own_class : maker || with_class(optimizer, [](auto*) {});
  const std::string name = c10::demangle(typeid(optimizer).name());
  TORCH_CHECK_TYPE(
      known, "amp::initialize was given a ", name, " as a ",
      c10::demangle(own_class ? own_class->name() : typeid(Optimizer).name()),
      ", from which it cannot tell how to move it into a handle. Hold an optimizer class of your own by its own type: "
      "std::unique_ptr<",
      name, ">, or static_cast<", name, "&>(*optimizer).");
}

HandlePtr erased_handle(Optimizer& optimizer, const std::shared_ptr<Session>& session) {
  if (auto* maker = dynamic_cast<MakesAmpHandle*>(&optimizer)) return maker->make_amp_handle(session);
  HandlePtr handle;
  with_class(optimizer, [&](auto* of_class) {
    using Opt = std::remove_pointer_t<decltype(of_class)>;
    handle = std::make_unique<AmpOptimizer<Opt>>(std::move(static_cast<Opt&>(optimizer)), session);
  });
  return handle;
}

}  // namespace apex::amp::detail
