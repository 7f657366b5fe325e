#include <apex_cpp/amp/handles/erased_optimizer.h>

#include <apex_cpp/amp/handles/amp_optimizer.h>
#include <apex_cpp/amp/optimizer_classes/makes_amp_handle.h>
#include <apex_cpp/amp/optimizer_classes/own_class.h>

#include <c10/util/Type.h>

#include <string>
#include <typeinfo>

namespace apex::amp::detail {
namespace {

using torch::optim::Optimizer;
using HandlePtr = std::unique_ptr<Optimizer>;

/// Calls `f` with a null pointer of the optimizer's dynamic class, if it is one of torch::optim's; answers whether it was.
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
  if (dynamic_cast<const AmpOptimizerBase*>(&optimizer)) return;  // another error
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
