#pragma once

#include <functional>
#include <memory>
#include <type_traits>
#include <typeinfo>
#include <utility>

#include <apex_cpp/amp/handles/model.h>

// The forms in which a program holds its model, and the handle that answers each.
namespace apex::amp::detail {

/// A module to set casts on, and what makes the program's own holder point to it.
struct PatchedModel {
  std::shared_ptr<CastsForward> module;
  std::function<void()> repoint;
  const std::type_info* held_elsewhere = nullptr;  ///< the class of a module that was copied and has other holders
};

/// Says, in a warning, that a class may own what its destructor frees, and was copied.
void warn_of_own_copy_or_destructor(const std::type_info& copied);
template <class Impl>
void warn_of_copying() {
  if constexpr (kDeclaresCopyOrDestructor<Impl>) warn_of_own_copy_or_destructor(typeid(Impl));
}

/// The shared_ptr inside a model, to a holder's module or the model itself.
template <class Net>
const auto& pointer_of(const Net& net) {
  if constexpr (kIsSharedPtr<Net>) {
    TORCH_CHECK(net, "amp::initialize was given a null model.");
    return net;
  } else {
    return net.ptr();
  }
}

template <class Net>
torch::nn::Module& module_of(Net& net) {
  static_assert(check_model_type<std::remove_const_t<Net>>());
  if constexpr (kIsModule<Net>) {
    return net;
  } else {
    return *pointer_of(net);
  }
}

/// Makes the program's holder or pointer, unless it is const, the same object as its handle.
template <class Net, class Impl>
void repoint(Net& net, const std::shared_ptr<Impl>& module) {
  if constexpr (!std::is_const_v<Net> && std::is_constructible_v<Net, std::shared_ptr<Impl>>) net = Net(module);
}

/// What a handle holds for the module at `pointer`: that itself if it is patched already, as by an earlier call.
template <class Impl>
auto patched_for(const std::shared_ptr<Impl>& pointer) {
  using PatchedImpl = typename Patched<Impl>::type;
  if constexpr (can_be_amped<Impl>()) {
    auto patched = std::dynamic_pointer_cast<PatchedImpl>(pointer);
    return patched ? patched : std::make_shared<PatchedImpl>(PatchOf{}, pointer);
  } else {
    return std::make_shared<PatchedImpl>(pointer);
  }
}

/// The handle for one model. `patched` gets what is to be done to it once nothing can fail any more.
template <class Net>
auto patch(Net& net, PatchedModel& patched) {
  using User = std::remove_const_t<Net>;
  using Impl = ModuleClassT<User>;
  if constexpr (kIsModule<User>) {
    auto module = std::make_shared<Amped<User>>(PatchOf{}, net);
    warn_of_copying<User>();
    patched.module = module;
    return Model<User>(std::move(module));
  } else if constexpr (kIsAmped<Impl>) {  // AMP_MODULE, or a handle of an earlier call: patched in place
    patched.module = pointer_of(net);
    return User(net);
  } else {
    const bool is_held_elsewhere = pointer_of(net).use_count() > 1;
    auto module = patched_for<Impl>(pointer_of(net));
    patched.module = module;
    const torch::nn::Module* of_handle = module_of_handle(module).get();
    const bool is_copied = of_handle != pointer_of(net).get();
    if (is_copied) warn_of_copying<Impl>();
    if (is_held_elsewhere && is_copied) patched.held_elsewhere = &typeid(Impl);
    if (!module->amp_stands_for_another()) {
      patched.repoint = [&net, patched = std::shared_ptr<Impl>(module_of_handle(module))] { repoint(net, patched); };
    }
    return Model<std::conditional_t<kIsHolder<User>, User, Impl>>(std::move(module));
  }
}

}  // namespace apex::amp::detail
