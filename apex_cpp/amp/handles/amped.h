#pragma once

#include <torch/nn/module.h>
#include <torch/serialize/archive.h>

#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/amp/handles/cast.h>

namespace apex::amp {

namespace detail {
template <class Impl, class = void>
struct ForwardSignature;
}  // namespace detail

template <class Impl, class Signature = typename detail::ForwardSignature<Impl>::type>
class Amped;

namespace detail {

struct Session;

/// What `initialize` changes about a model's calls: the dtype its inputs and outputs are cast to, if any.
struct ForwardCasts {
  std::optional<c10::ScalarType> inputs;
  std::optional<c10::ScalarType> outputs;
  /// Checkpoint entries of these dtypes are saved as FP32.
  bool saves_float32 = false;
  std::shared_ptr<Session> session;  // null: amp has not touched the model
  std::shared_ptr<CastRules> rules;  // how operators are cast while forward runs; null: not at all
};

/// Writes `module` as `Module::save` does, with 16-bit entries widened to float32 (MODEL-08).
void save_float32(const torch::nn::Module& module, torch::serialize::OutputArchive& archive);
/// Reads what `Module::save` wrote into the parameters and buffers, whatever their dtypes, and into the masters kept for
/// them. Errors, before anything is changed: c10::Error naming a missing entry or one of another shape.
void load_any_dtype(torch::nn::Module& module, torch::serialize::InputArchive& archive, const Session& session);

/// The user's module class, with casts around its forward once `initialize` has set them.
template <class Impl>
class AmpedModule : public Impl {
 public:
  using Impl::Impl;
  /// A copy of `module` that shares its parameters, buffers and children.
  explicit AmpedModule(const Impl& module) : Impl(module) {}

  void set_casts(ForwardCasts casts) { casts_ = std::move(casts); }
  const ForwardCasts& casts() const { return casts_; }
  /// Follows train() and eval() of the module it was copied from, whose own flag is separate.
  void follow(const std::shared_ptr<torch::nn::Module>& original) {
    original_ = original;
    original_is_training_ = original->is_training();
  }

  /// The forward pass: casts the floating tensors among the arguments, calls Impl's forward, casts those of the result.
  template <class... Args>
  decltype(auto) call_with_casts(Args&&... args) {
    sync_training_flag();
    std::optional<ForwardScope> scope;
    if (casts_.session) scope.emplace(casts_.rules);
    using Result = decltype(Impl::forward(std::forward<Args>(args)...));
    if constexpr (std::is_void_v<Result>) {
      call_inner(std::forward<Args>(args)...);
    } else if constexpr (kCasts<Result>) {
      std::decay_t<Result> result = call_inner(std::forward<Args>(args)...);
      if (!casts_.outputs) return result;
      return std::decay_t<Result>(cast_floating(result, *casts_.outputs));
    } else {
      return call_inner(std::forward<Args>(args)...);
    }
  }

  /// A deep copy that casts as this one does: what `torch::nn::parallel::replicate` makes for each device.
  std::shared_ptr<torch::nn::Module> clone(const std::optional<torch::Device>& device = std::nullopt) const override {
    const auto copy = std::dynamic_pointer_cast<Impl>(Impl::clone(device));
    TORCH_CHECK(copy, "clone() of this module answers another class. Derive it from torch::nn::Cloneable<its own class>.");
    if constexpr (std::is_copy_constructible_v<Impl>) {
      auto amped = std::make_shared<Amped<Impl>>(*copy);
      amped->set_casts(casts_);
      return amped;
    } else {
      C10_THROW_ERROR(Error, "a module that cannot be copied cannot be cloned with its casts.");
    }
  }

  void save(torch::serialize::OutputArchive& archive) const override {
    if (casts_.saves_float32) {
      save_float32(*this, archive);
    } else {
      Impl::save(archive);
    }
  }
  void load(torch::serialize::InputArchive& archive) override {
    if (casts_.session) {
      load_any_dtype(*this, archive, *casts_.session);
    } else {
      Impl::load(archive);
    }
  }

 private:
  template <class Arg>
  decltype(auto) cast_input(Arg&& arg) const {
    return cast_floating(std::forward<Arg>(arg), *casts_.inputs);
  }

  template <class... Args>
  decltype(auto) call_inner(Args&&... args) {
    if (!casts_.inputs) return Impl::forward(std::forward<Args>(args)...);
    // The cast arguments live in a tuple so that a forward that takes `Tensor&` finds an lvalue.
    std::tuple<decltype(cast_input(std::forward<Args>(args)))...> cast(cast_input(std::forward<Args>(args))...);
    return call_from(cast, std::index_sequence_for<Args...>{}, static_cast<Args&&>(args)...);
  }

  template <class Cast, size_t... I, class... Args>
  decltype(auto) call_from(Cast& cast, std::index_sequence<I...>, Args&&...) {
    return Impl::forward(hand_over<Args&&>(std::get<I>(cast))...);
  }

  // An argument given as an lvalue reference is handed over as one; a value or an rvalue is moved.
  template <class Original, class T>
  static decltype(auto) hand_over(T& value) {
    if constexpr (std::is_lvalue_reference_v<Original>) {
      return static_cast<T&>(value);
    } else {
      return static_cast<T&&>(value);
    }
  }

  void sync_training_flag() {
    const auto original = original_.lock();
    if (!original || original->is_training() == original_is_training_) return;
    original_is_training_ = original->is_training();
    this->train(original_is_training_);
  }

  ForwardCasts casts_;
  std::weak_ptr<torch::nn::Module> original_;
  bool original_is_training_ = true;
};

/// `R(Args...)` of a member function pointer, whatever its class and qualifiers.
template <class Pointer>
struct MemberSignature;
template <class R, class C, class... A>
struct MemberSignature<R (C::*)(A...)> {
  using type = R(A...);
};
template <class R, class C, class... A>
struct MemberSignature<R (C::*)(A...) const> {
  using type = R(A...);
};
template <class R, class C, class... A>
struct MemberSignature<R (C::*)(A...) noexcept> {
  using type = R(A...);
};
template <class R, class C, class... A>
struct MemberSignature<R (C::*)(A...) const noexcept> {
  using type = R(A...);
};

/// Whether `Impl::forward` can be called with the first `sizeof...(I)` of `Args`: its last parameters then have defaults.
template <class Impl, class Tuple, class Indices, class = void>
struct CallableWith : std::false_type {};
template <class Impl, class Tuple, size_t... I>
struct CallableWith<Impl, Tuple, std::index_sequence<I...>,
                    std::void_t<decltype(std::declval<Impl&>().forward(std::declval<std::tuple_element_t<I, Tuple>>()...))>>
    : std::true_type {};

template <class Impl, class Signature>
struct ForwardKind;
template <class Impl, class R, class... A>
struct ForwardKind<Impl, R(A...)> {
  static constexpr size_t kFewer = sizeof...(A) == 0 ? 0 : sizeof...(A) - 1;
  static constexpr bool kHasDefaults =
      sizeof...(A) > 0 && CallableWith<Impl, std::tuple<A...>, std::make_index_sequence<kFewer>>::value;
  // A signature of its own would lose the defaults; a template keeps them.
  using type = std::conditional_t<kHasDefaults, void, R(A...)>;
};

/// The signature to give the shadowing forward; void where Impl's forward is overloaded, a template, or has default arguments.
template <class Impl, class>
struct ForwardSignature {
  using type = void;
};
template <class Impl>
struct ForwardSignature<Impl, std::void_t<decltype(&Impl::forward)>>
    : ForwardKind<Impl, typename MemberSignature<decltype(&Impl::forward)>::type> {};

}  // namespace detail

/// The user's module class `Impl` as amp runs it: the same parameters, buffers and children, a `forward` that casts, and FP32
/// checkpoints. With one plain `forward` in `Impl`, this one has exactly its signature, so that `AnyModule`, `Sequential` and
/// `ModuleHolder::operator()` accept it; otherwise it is a template.
template <class Impl, class Signature>
class Amped;

template <class Impl, class R, class... Args>
class Amped<Impl, R(Args...)> : public detail::AmpedModule<Impl> {
 public:
  using detail::AmpedModule<Impl>::AmpedModule;
  std::decay_t<R> forward(Args... args) { return this->call_with_casts(static_cast<Args&&>(args)...); }
};

template <class Impl>
class Amped<Impl, void> : public detail::AmpedModule<Impl> {
 public:
  using detail::AmpedModule<Impl>::AmpedModule;
  template <class... Args>
  decltype(auto) forward(Args&&... args) {
    return this->call_with_casts(std::forward<Args>(args)...);
  }
};

}  // namespace apex::amp
