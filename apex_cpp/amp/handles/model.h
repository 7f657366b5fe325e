#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <apex_cpp/amp/handles/model_kinds.h>

#include <ATen/core/Tensor.h>
#include <torch/nn/pimpl.h>

#include <functional>
#include <memory>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace apex::amp {

namespace detail {

/// Calls `module.save(archive)`, and widens entries that `amp::initialize` has cast to 16 bits to float32 (MODEL-08).
void save_module(const torch::nn::Module& module, torch::serialize::OutputArchive& archive);
/// Calls `module.load(archive)`. Rounds FP32 entries into weights that `amp::initialize` has cast, and loads the masters.
void load_module(torch::nn::Module& module, torch::serialize::InputArchive& archive);

/// Refers to a module whose class Amped cannot derive from: an abstract class with more pure virtual functions than `forward`.
template <class Impl>
class AmpedReference : public CastsForward {
 public:
  explicit AmpedReference(std::shared_ptr<Impl> module) : module_(std::move(module)) {}

  const std::shared_ptr<Impl>& module() const { return module_; }
  template <class... Args>
  decltype(auto) call_with_amp_casts(Args&&... args) {
    return call_with_casts(
        amp_casts(),
        [this](auto&&... each) -> decltype(auto) { return module_->forward(static_cast<decltype(each)>(each)...); },
        std::forward<Args>(args)...);
  }
  void set_amp_casts(ForwardCasts casts) override {
    if (auto* patched = dynamic_cast<CastsForward*>(module_.get())) patched->set_amp_casts(casts);
    CastsForward::set_amp_casts(std::move(casts));
  }
  bool amp_stands_for_another() const override { return true; }

  void save(torch::serialize::OutputArchive& archive) const {
    const torch::nn::Module& module = *module_;
    const auto save_own = [&] { module.save(archive); };
    amp_casts().saves_float32 ? save_float32(module, archive, save_own) : save_own();
  }
  void load(torch::serialize::InputArchive& archive) {
    torch::nn::Module& module = *module_;
    const auto load_own = [&] { module.load(archive); };
    const auto& session = amp_casts().session;
    session ? load_any_dtype(module, archive, session, load_own) : load_own();
  }

 private:
  std::shared_ptr<Impl> module_;
};

/// The type that a handle holds for a module class: the patched module, or a reference to the module.
template <class Impl>
struct Patched {
  using type = std::conditional_t<can_be_amped<Impl>(), Amped<Impl>, AmpedReference<Impl>>;
  using Module = std::conditional_t<can_be_amped<Impl>(), Amped<Impl>, Impl>;
};

template <class Impl>
const std::shared_ptr<Amped<Impl>>& module_of_handle(const std::shared_ptr<Amped<Impl>>& patched) {
  return patched;
}
template <class Impl>
const std::shared_ptr<Impl>& module_of_handle(const std::shared_ptr<AmpedReference<Impl>>& patched) {
  return patched->module();
}

/// The base class of a handle: the user's holder class, or a pointer to the module.
template <class Net>
using HolderOf = std::conditional_t<kIsHolder<Net>, Net, std::shared_ptr<ModuleClassT<Net>>>;

}  // namespace detail

/// The model that `amp::initialize` returns: the user's own holder (or `std::shared_ptr`), whose `forward` casts as the opt
/// level requires.
///
/// `Net` is the user's type: a TORCH_MODULE holder or a module class. `net->forward(x)` and `net(x)` run with casts; every
/// other member is the user's own. A handle converts to the holder. Through a `Net&`, a non-virtual `forward` casts its
/// operators but not its outputs, which stay 16-bit at O2, O3, O5 and O6.
///
/// Values that `forward` writes to its arguments, by reference or in place, reach the caller in the dtype of the argument,
/// differentiably. A new tensor in an argument gets the dtype of outputs. Where an FP32 argument is cast, a write that does not
/// change its version counter stays in the cast: through `tensor.data()`, or by `torch::batch_norm` to running statistics that
/// are arguments. `torch::save` writes FP32. `torch::load` reads FP32
/// into the model's dtypes and into the masters. Overrides of `save` and `load` in the class run within these.
///
/// A module held by a base class (`std::shared_ptr<Base>` to a Derived) is never copied: the handle forwards calls of `forward`
/// to it. Call its other members on the model itself, but save and load through the handle, because at O2, O3, O5 and O6
/// the model's own weights are 16-bit. If Base has more pure virtual functions than `forward`, `net->` returns the module
/// itself, and only `net(x)` casts outputs.
template <class Net>
class Model : public detail::HolderOf<Net> {
  using Holder = detail::HolderOf<Net>;
  using UserImpl = detail::ModuleClassT<Net>;
  using PatchedImpl = typename detail::Patched<UserImpl>::type;

 public:
  using Impl = typename detail::Patched<UserImpl>::Module;
  /// What a const handle leads to: a holder passes its const on, a pointer does not.
  using ConstImpl = std::conditional_t<detail::kIsHolder<Net>, const Impl, Impl>;
  using ContainedType = Impl;

  /* implicit */ Model(std::nullptr_t) : Holder(nullptr) {}
  /* implicit */ Model(std::shared_ptr<PatchedImpl> patched)
      : Holder(std::shared_ptr<UserImpl>(detail::module_of_handle(patched))), patched_(std::move(patched)) {}

  template <class... Args>
  decltype(auto) operator()(Args&&... args) {
    return patched().call_with_amp_casts(std::forward<Args>(args)...);
  }

  Impl* operator->() { return get(); }
  ConstImpl* operator->() const { return get(); }
  Impl& operator*() { return *get(); }
  ConstImpl& operator*() const { return *get(); }
  Impl* get() { return ptr().get(); }
  ConstImpl* get() const { return ptr().get(); }
  /// The patched module. Errors: RuntimeError for an empty handle.
  const std::shared_ptr<Impl>& ptr() const { return detail::module_of_handle(patched_pointer()); }
  bool is_empty() const noexcept { return !patched_; }
  /// Those of `std::shared_ptr`, for a handle that is one, or the holder's own.
  template <class... Args>
  decltype(auto) reset(Args&&... args) {
    if constexpr (detail::kIsHolder<Net>) {
      return Holder::reset(std::forward<Args>(args)...);
    } else {
      static_assert(sizeof...(Args) == 0);  // amp::initialize makes handles
      *this = Model(nullptr);
    }
  }
  template <class Other>
  decltype(auto) swap(Other& other) {
    if constexpr (detail::kIsHolder<Net>) {
      return Holder::swap(other);
    } else {
      static_assert(std::is_base_of_v<Model, Other>);  // a plain pointer has no casts
      std::swap(*this, static_cast<Model&>(other));
    }
  }
  /// For `amp::initialize`: the object that has the casts.
  PatchedImpl& patched() const { return *patched_pointer(); }
  const std::shared_ptr<PatchedImpl>& patched_pointer() const {
    TORCH_CHECK(patched_, "This amp::Model is empty. Assign what amp::initialize returned.");
    return patched_;
  }

  /// For `torch::save` and `torch::load`.
  friend torch::serialize::OutputArchive& operator<<(torch::serialize::OutputArchive& archive, const Model& model) {
    model.patched().save(archive);
    return archive;
  }
  friend torch::serialize::InputArchive& operator>>(torch::serialize::InputArchive& archive, const Model& model) {
    model.patched().load(archive);
    return archive;
  }

 private:
  std::shared_ptr<PatchedImpl> patched_;
};

}  // namespace apex::amp

namespace torch::nn {

/// For `torch::save` and `torch::load` of a part of a model, such as `net->fc1`, by its holder or pointer. Such a part has a
/// class of LibTorch, whose own `save` writes weights in their dtype. A module that `amp::initialize` has not cast is written
/// and read as without amp. LibTorch's overload for `std::shared_ptr<Module>` now only takes that type.
template <class M, class = std::enable_if_t<std::is_base_of_v<Module, M>>>
serialize::OutputArchive& operator<<(serialize::OutputArchive& archive, const std::shared_ptr<M>& module) {
  if (!module) return archive << std::shared_ptr<Module>();
  apex::amp::detail::save_module(*module, archive);
  return archive;
}
template <class M, class = std::enable_if_t<std::is_base_of_v<Module, M>>>
serialize::InputArchive& operator>>(serialize::InputArchive& archive, const std::shared_ptr<M>& module) {
  if (!module) return archive >> std::shared_ptr<Module>();
  apex::amp::detail::load_module(*module, archive);
  return archive;
}

}  // namespace torch::nn

/// Like TORCH_MODULE, but `amp::initialize` can patch the holder's module in place: it returns the same type, and all copies of
/// the holder cast, also copies made before. For modules that cannot be copied, and for modules whose lambdas captured `this`
/// and read data members. Before `initialize` it behaves like TORCH_MODULE, but a class whose `forward` has default arguments
/// does not go into a Sequential or an AnyModule.
#define AMP_MODULE(Name) TORCH_MODULE_IMPL(Name, apex::amp::Amped<Name##Impl>)

// Makes the handle for each form in which a program holds its model.
namespace apex::amp::detail {

/// A patched module, and the function that makes the program's holder point to it.
struct PatchedModel {
  std::shared_ptr<CastsForward> module;
  std::function<void()> repoint;
  const std::type_info* held_elsewhere = nullptr;  ///< the module's class, if it was copied and has other holders
};

/// Warns that a copied class may own a resource that its destructor frees.
void warn_of_own_copy_or_destructor(const std::type_info& copied);
template <class Impl>
void warn_of_copying() {
  if constexpr (kDeclaresCopyOrDestructor<Impl>) warn_of_own_copy_or_destructor(typeid(Impl));
}

/// The shared_ptr to the module of a holder or pointer.
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

/// Makes the program's holder or pointer, unless it is const, point to the handle's module.
template <class Net, class Impl>
void repoint(Net& net, const std::shared_ptr<Impl>& module) {
  if constexpr (!std::is_const_v<Net> && std::is_constructible_v<Net, std::shared_ptr<Impl>>) net = Net(module);
}

/// Whether a type is the handle of a module that amp refers to.
template <class Net>
inline constexpr bool kRefersToModule = false;
template <class Net>
inline constexpr bool kRefersToModule<Model<Net>> = !can_be_amped<ModuleClassT<Net>>();

/// The patched module for the module at `pointer`: the same module if an earlier call has patched it.
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

/// Makes the handle for one model. `patched` gets the work to do after all checks have passed.
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
  } else if constexpr (kRefersToModule<User>) {  // likewise
    patched.module = net.patched_pointer();
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

namespace torch::nn::parallel {

// Declared as in LibTorch's <torch/nn/parallel/data_parallel.h>, which a program that calls it includes.
template <typename ModuleType>
std::vector<std::shared_ptr<ModuleType>> replicate(const std::shared_ptr<ModuleType>& module,
                                                   const std::vector<at::Device>& devices);

}  // namespace torch::nn::parallel

namespace apex::amp {

/// Returns handles of deep copies of `model` on `devices`. They cast like `model` on any thread, and their gradients arrive at
/// the parameters of `model`. `torch::nn::parallel::data_parallel(net, input, devices)` finds this function by its argument.
/// Given the original model, LibTorch's own `replicate` copies it: its replicas cast by the lists of O1 and O4 like the
/// original; at O2, O3, O5 and O6 these replicas only take 16-bit input. Errors: c10::Error for a class without `clone()`:
/// derive it from torch::nn::Cloneable.
template <class Net>
std::vector<Model<Net>> replicate(const Model<Net>& model, const std::vector<at::Device>& devices) {
  using PatchedImpl = std::decay_t<decltype(model.patched())>;
  std::vector<Model<Net>> replicas;
  for (auto& copy : torch::nn::parallel::replicate(model.ptr(), devices)) {
    if constexpr (std::is_same_v<PatchedImpl, typename Model<Net>::Impl>) {
      replicas.emplace_back(std::move(copy));
    } else {
      auto patched = std::make_shared<PatchedImpl>(std::move(copy));
      patched->set_amp_casts(model.patched().amp_casts());
      replicas.emplace_back(std::move(patched));
    }
  }
  return replicas;
}

}  // namespace apex::amp
