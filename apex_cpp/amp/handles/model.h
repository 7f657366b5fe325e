#pragma once

#include <torch/nn/pimpl.h>

#include <memory>
#include <type_traits>

#include <apex_cpp/amp/handles/amped.h>

namespace apex::amp {

namespace detail {

/// The module class behind what a program calls its model: a holder's contained type, or the struct itself.
template <class Net, class = void>
struct ModuleClass {
  using type = Net;
};
template <class Net>
struct ModuleClass<Net, std::void_t<typename Net::ContainedType>> {
  using type = typename Net::ContainedType;
};
template <class Net>
using ModuleClassT = typename ModuleClass<Net>::type;

template <class Net>
inline constexpr bool kIsHolder = !std::is_same_v<Net, ModuleClassT<Net>>;

/// Whether a module class is amp's own; `kUser` is the class it stands for.
template <class Impl>
struct AmpedTraits {
  static constexpr bool kIsAmped = false;
  using User = Impl;
};
template <class Impl, class Signature>
struct AmpedTraits<Amped<Impl, Signature>> {
  static constexpr bool kIsAmped = true;
  using User = Impl;
};

}  // namespace detail

/// The model that `amp::initialize` returns: a holder whose `forward` casts as the opt level says.
///
/// `Net` is the user's type: a TORCH_MODULE holder or a Module struct. `net->forward(x)` and `net(x)` run with casts, every
/// other member is the user's own, and parameters, buffers and children are shared with the original. Plain data members
/// (counters, hidden states) are copies; a module that has some, or cannot be copied, declares itself with AMP_MODULE instead.
/// `torch::save` writes FP32; `torch::load` reads FP32 into the model's dtypes and into the masters.
template <class Net>
class Model : public torch::nn::ModuleHolder<Amped<detail::ModuleClassT<Net>>> {
 public:
  using Impl = Amped<detail::ModuleClassT<Net>>;
  using torch::nn::ModuleHolder<Impl>::ModuleHolder;

  template <class... Args>
  decltype(auto) operator()(Args&&... args) {
    return this->get()->call_with_casts(std::forward<Args>(args)...);
  }

  /// The user's own holder, for code that wants one. Its static type casts neither input nor output.
  template <class Holder = Net, class = std::enable_if_t<detail::kIsHolder<Holder>>>
  operator Holder() const {
    return Holder(std::static_pointer_cast<detail::ModuleClassT<Net>>(this->ptr()));
  }
};

}  // namespace apex::amp

/// Like TORCH_MODULE, but the holder's module can be patched in place: `amp::initialize` returns the very type it was given,
/// and every copy of the holder casts. Until `initialize` it behaves as TORCH_MODULE's would.
#define AMP_MODULE(Name) TORCH_MODULE_IMPL(Name, apex::amp::Amped<Name##Impl>)
