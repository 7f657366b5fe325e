#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <torch/nn/pimpl.h>

#include <memory>
#include <type_traits>

#include <apex_cpp/amp/handles/amped.h>

namespace torch::nn {
class AnyModule;
}

// Distinguishes at compile time the forms in which a program holds a model.
namespace apex::amp::detail {

/// The module class of a model: a holder's contained type, the type a pointer points to, or the module class itself.
template <class Net, class = void>
struct ModuleClass {
  using type = Net;
};
template <class Net>
struct ModuleClass<Net, std::void_t<typename Net::ContainedType>> {
  using type = typename Net::ContainedType;
};
template <class Impl>
struct ModuleClass<std::shared_ptr<Impl>> {
  using type = Impl;
};
template <class Net>
using ModuleClassT = typename ModuleClass<Net>::type;

template <class T>
inline constexpr bool kIsSharedPtr = false;
template <class T>
inline constexpr bool kIsSharedPtr<std::shared_ptr<T>> = true;

template <class T>
inline constexpr bool kIsModule = std::is_base_of_v<torch::nn::Module, T>;
template <class Net>
inline constexpr bool kIsHolder = !kIsModule<Net> && !kIsSharedPtr<Net> && !std::is_same_v<Net, ModuleClassT<Net>>;

/// Whether a module class is an `Amped`.
template <class Impl>
inline constexpr bool kIsAmped = false;
template <class Impl, class Signature>
inline constexpr bool kIsAmped<Amped<Impl, Signature>> = true;

/// Whether a forward of this signature takes a type that casts itself by `T&`: writes to its cast copy cannot be written back.
template <class Signature>
inline constexpr bool kWritesToWhatCastsItself = false;
template <class R, class... Args>
inline constexpr bool kWritesToWhatCastsItself<R(Args...)> =
    ((std::is_lvalue_reference_v<Args> && !std::is_const_v<std::remove_reference_t<Args>> && kHolds<Args, CastsItself>) || ...);

/// Whether a module of class Impl can be patched: `Amped<Impl>` is a valid, concrete and copy-constructible class.
template <class Impl>
constexpr bool can_be_amped() {
  if constexpr (std::is_final_v<Impl>) {
    return false;
  } else {
    return !std::is_abstract_v<Amped<Impl>> && std::is_copy_constructible_v<Amped<Impl>>;
  }
}

/// Converts to the parameters of copy and move constructors: ambiguous if a class has both.
template <class Impl>
struct CopiesOrMoves {
  operator const Impl&();
  operator Impl&&();
};
struct OfNoType {};

/// Whether a class declares a destructor, a copy constructor or a copy assignment, and so has no implicit move constructor.
/// False for a class that can be constructed from any type.
template <class Impl>
inline constexpr bool kDeclaresCopyOrDestructor =
    std::is_constructible_v<Impl, CopiesOrMoves<Impl>> && !std::is_constructible_v<Impl, OfNoType>;

/// Whether a class wraps a model after `amp::initialize`, as DistributedDataParallel does.
template <class Net, class = void>
inline constexpr bool kWrapsInitializedModel = false;
template <class Net>
inline constexpr bool kWrapsInitializedModel<Net, std::void_t<typename Net::wraps_initialized_model>> = true;

/// Rejects a type that `amp::initialize` does not take, with the remedy in the compiler's message.
template <class Net>
constexpr bool check_model_type() {
  using Impl = ModuleClassT<Net>;
  static_assert(!kWrapsInitializedModel<Net>,
                "amp::initialize comes before DistributedDataParallel: initialize the model itself, then wrap what "
                "amp::initialize returned.");
  static_assert(!std::is_pointer_v<Net>, "amp::initialize takes the model itself: write `model`, not `&model`.");
  static_assert(!std::is_same_v<Net, torch::nn::AnyModule>,
                "amp::initialize cannot see the class inside a torch::nn::AnyModule: pass the module, then make the AnyModule "
                "from what amp::initialize returns.");
  static_assert(!std::is_same_v<Impl, torch::nn::Module>,
                "amp::initialize needs the class whose forward is to be cast, not torch::nn::Module: pass the model by its own "
                "class.");
  static_assert(
      std::is_pointer_v<Net> || std::is_same_v<Net, torch::nn::AnyModule> || kIsModule<Impl> || kWrapsInitializedModel<Net>,
      "amp::initialize takes a TORCH_MODULE holder, a std::shared_ptr to a module, or a module; several as "
      "std::tie(a, b) or a vector.");
  static_assert(!std::is_final_v<Impl>, "amp::initialize derives from the module's class: remove `final` from it.");
  static_assert(
      !kWritesToWhatCastsItself<typename ForwardSignature<Impl>::type>,
      "forward of this model takes a type with a to(dtype) of its own by T&, and amp cannot write its cast copy back: "
      "take it as const T& or by value, and return what forward changes.");
  if constexpr (kIsModule<Impl> && !kIsAmped<Impl> && !std::is_final_v<Impl> && !std::is_abstract_v<Impl>) {
    static_assert(
        can_be_amped<Impl>(),
        "amp::initialize copies the module (sharing its parameters), and this class cannot be copied: declare it with "
        "AMP_MODULE(Net) in place of TORCH_MODULE(Net), or hold it as a std::shared_ptr<amp::Amped<NetImpl>>.");
  }
  return true;
}

}  // namespace apex::amp::detail
