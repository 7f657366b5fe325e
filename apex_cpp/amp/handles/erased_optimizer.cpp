#include <apex_cpp/amp/handles/erased_optimizer.h>

#include <apex_cpp/amp/handles/amp_optimizer.h>
#include <apex_cpp/amp/optimizer_classes/makes_amp_handle.h>

#include <c10/util/Type.h>

#include <typeinfo>

namespace apex::amp::detail {
namespace {

using torch::optim::Optimizer;
using HandlePtr = std::unique_ptr<Optimizer>;

/// Calls `f` with a null pointer of the optimizer's dynamic class, if it is one of torch::optim's; answers whether it was.
template <class... Opts, class F>
bool with_class_among(const Optimizer& optimizer, F&& f) {
  return ((typeid(optimizer) == typeid(Opts) ? (f(static_cast<Opts*>(nullptr)), true) : false) || ...);
}

template <class F>
bool with_class(const Optimizer& optimizer, F&& f) {
  using namespace torch::optim;
  return with_class_among<SGD, Adam, AdamW, RMSprop, Adagrad, LBFGS>(optimizer, f);
}

}  // namespace

void check_erased_class(const Optimizer& optimizer) {
  TORCH_CHECK_TYPE(
      dynamic_cast<const MakesAmpHandle*>(&optimizer) || with_class(optimizer, [](auto*) {}),
      "amp::initialize was given a pointer to a ", c10::demangle(typeid(optimizer).name()),
      ", a class it does not know. Pass an optimizer of your own by its own type, not as a torch::optim::Optimizer.");
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
