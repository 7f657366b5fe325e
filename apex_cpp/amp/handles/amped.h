#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <torch/nn/module.h>
#include <torch/serialize/archive.h>

#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <vector>

#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/amp/handles/forward_casts.h>
#include <apex_cpp/amp/handles/forward_signature.h>

namespace apex::amp {

template <class Impl, class Signature = typename detail::ForwardSignature<Impl>::type>
class Amped;

namespace detail {

/// The parameters and buffers of a module while its class's own code saves or loads them: as without amp, 16-bit weights in
/// float32, or in the dtypes in which a file has them. What was there before stands there again when this ends. No other
/// thread may use the module meanwhile.
class ReplacedValues {
 public:
  class Replaced;
  using Dtypes = std::unordered_map<const at::TensorImpl*, c10::ScalarType>;

  explicit ReplacedValues(const torch::nn::Module& module, const Dtypes& dtypes = {});
  ~ReplacedValues();
  ReplacedValues(const ReplacedValues&) = delete;
  ReplacedValues& operator=(const ReplacedValues&) = delete;
  /// Brings what was written meanwhile to the parameters and buffers in their own dtypes, and to the masters kept for them.
  /// Errors, before that: c10::Error for a value of another shape.
  void keep(const Session& session);

 private:
  std::vector<Replaced> values_;
};

/// Has `own_save` write `module` into `archive`, and widens the 16-bit weights among the entries to float32 (MODEL-08).
void save_float32(const torch::nn::Module& module, torch::serialize::OutputArchive& archive,
                  const std::function<void()>& own_save);
/// Has `own_load` read `archive` into the parameters and buffers, whatever their dtypes, and into the masters kept for them.
/// Errors, before these are changed: what it throws, as c10::Error naming a missing entry, or one of another shape.
void load_any_dtype(const torch::nn::Module& module, torch::serialize::InputArchive& archive, const Session& session,
                    const std::function<void()>& own_load);

/// Sets train() or eval() of `to` and of each of its children as `from` has them.
void copy_training_flags(const torch::nn::Module& from, torch::nn::Module& to);

/// Sets train() or eval() of a module after that of its copy, which is of its class. Patched modules that the two share are
/// left as the copy's call has set them: nested handles would set each child of theirs twice, and so on down.
void set_training_again(torch::nn::Module& original, bool on);
/// Whether the calling thread leaves patched modules as they are for that.
bool training_is_set();

/// Says once, in a warning, that a handle stands for a module of a class derived from its own.
void warn_of_derived_class(const torch::nn::Module& module, const std::type_info& known_as);

/// Says, in a warning, that parents or copies of the holder keep a module of this class whose weights were cast, and which is
/// not the handle's.
void warn_of_other_holders(const std::type_info& held_as);

/// Errors: RuntimeError naming a parameter or buffer that `copy` has of its own, as after a copy constructor that makes them
/// anew.
void check_copy_shares(const torch::nn::Module& original, const torch::nn::Module& copy);

/// Says, in a warning, that `save()` of a model that a handle stands for, and whose weights were cast, writes 16 bits.
void warn_of_saving_originals();

/// An object's own bytes.
struct ObjectBytes {
  const char* begin;
  size_t size;
};
template <class T>
ObjectBytes bytes_of_object(const T& object) {
  return {reinterpret_cast<const char*>(&object), sizeof(T)};
}
/// Says so, in a warning, if `copy` or a Functional in the module holds an address in `original`, as a lambda with `this` does.
void warn_of_held_this(const torch::nn::Module& module, ObjectBytes original, ObjectBytes copy);

/// Marks the constructors that patch a module: a class of the user's may have constructors of any signature.
struct PatchOf {};

/// The user's module class, with casts around its forward once `initialize` has set them.
///
/// Made from a module of exactly this class it is a copy that shares parameters, buffers and children; the module that it was
/// made from stays alive with it, for lambdas that hold its `this`. A module of a derived class cannot be copied without
/// losing what it is: calls of forward, train, save and load are then passed on to it.
template <class Impl>
class AmpedModule : public Impl, public CastsForward {
 public:
  using Impl::Impl;
  AmpedModule(PatchOf, const Impl& module) : Impl(named(module)) {
    check_copy_shares(module, *this);
    look_for_held_this(module);
  }
  AmpedModule(PatchOf, std::shared_ptr<Impl> original)
      : Impl(named(*original)),
        amp_original_(std::move(original)),
        amp_stands_for_derived_(typeid(*amp_original_) != typeid(Impl)) {
    check_copy_shares(*amp_original_, *this);
    if (amp_stands_for_derived_) {
      warn_of_derived_class(*amp_original_, typeid(Impl));
    } else {
      look_for_held_this(*amp_original_);
    }
  }

  /// The forward pass with casts.
  template <class... Args>
  decltype(auto) call_with_amp_casts(Args&&... args) {
    return call_with_casts(
        this->amp_casts(),
        [this](auto&&... each) -> decltype(auto) { return this->call_uncast(static_cast<decltype(each)>(each)...); },
        std::forward<Args>(args)...);
  }
  /// The same for a forward that is told its result's type: `net->forward<std::tuple<Tensor, Tensor>>(x)`.
  template <class Result, class... Args>
  Result call_for_result(Args&&... args) {
    return call_with_casts(
        this->amp_casts(),
        [this](auto&&... each) -> Result { return this->Impl::template forward<Result>(static_cast<decltype(each)>(each)...); },
        std::forward<Args>(args)...);
  }

  void set_amp_casts(ForwardCasts casts) override {
    if (auto* patched = dynamic_cast<CastsForward*>(amp_original_.get())) patched->set_amp_casts(casts);
    CastsForward::set_amp_casts(std::move(casts));
  }

  bool amp_stands_for_another() const override { return amp_stands_for_derived_; }

  void train(bool on = true) override {
    if (training_is_set()) return;
    if (amp_stands_for_derived_) return amp_original_->train(on);  // its class may have a train() of its own
    Impl::train(on);
    if (amp_original_) set_training_again(*amp_original_, on);
  }
  /// As the module that it was copied from, which a parent's train() and eval() reach.
  bool is_training() const noexcept override { return amp_original_ ? amp_original_->is_training() : Impl::is_training(); }

  /// A deep copy that casts as this one does. One for a device is what `torch::nn::parallel::replicate` makes: as long as it
  /// lives, the threads on which `parallel_apply` runs replicas cast as this one.
  std::shared_ptr<torch::nn::Module> clone(const std::optional<torch::Device>& device = std::nullopt) const override {
    const auto copy =
        std::dynamic_pointer_cast<Impl>(amp_stands_for_derived_ ? amp_original_->clone(device) : Impl::clone(device));
    TORCH_CHECK(copy, "clone() of this module answers another class. Derive it from torch::nn::Cloneable<its own class>.");
    copy_training_flags(*this, *copy);
    if constexpr (std::is_copy_constructible_v<Amped<Impl>>) {
      auto amped = std::make_shared<Amped<Impl>>(PatchOf{}, copy);
      amped->set_amp_casts(this->amp_casts());
      if (device) static_cast<AmpedModule&>(*amped).amp_replica_casts_ = casts_for_replicas();
      return amped;
    } else {
      C10_THROW_ERROR(Error, "a module that cannot be copied cannot be cloned with its casts.");
    }
  }

  /// With what a `save` and `load` of the class itself, or of a child's, write and read besides.
  void save(torch::serialize::OutputArchive& archive) const override {
    const auto save_own = [&] {
      if (amp_stands_for_derived_) return static_cast<const torch::nn::Module&>(*amp_original_).save(archive);
      if constexpr (kSavesArchives<Impl>) {
        Impl::save(archive);
      } else {
        torch::nn::Module::save(archive);
      }
    };
    this->amp_casts().saves_float32 ? save_float32(*this, archive, save_own) : save_own();
  }
  void load(torch::serialize::InputArchive& archive) override {
    const auto load_own = [&] {
      if (amp_stands_for_derived_) return static_cast<torch::nn::Module&>(*amp_original_).load(archive);
      if constexpr (kLoadsArchives<Impl>) {
        Impl::load(archive);
      } else {
        torch::nn::Module::load(archive);
      }
    };
    const auto& session = this->amp_casts().session;
    session ? load_any_dtype(*this, archive, *session, load_own) : load_own();
  }

  /// A save of the class with other parameters, as a path: its code finds float32 weights.
  template <class... Args, class Result = decltype(std::declval<Impl&>().save(std::declval<Args>()...)),
            class = std::enable_if_t<!(std::is_same_v<std::decay_t<Args>, torch::serialize::OutputArchive> || ...)>>
  Result save(Args&&... args) {
    const auto float32 = float32_to_save();
    return Impl::save(std::forward<Args>(args)...);
  }
  template <class... Args, class Result = decltype(std::declval<const Impl&>().save(std::declval<Args>()...)),
            class = std::enable_if_t<!(std::is_same_v<std::decay_t<Args>, torch::serialize::OutputArchive> || ...)>>
  Result save(Args&&... args) const {
    const auto float32 = float32_to_save();
    return Impl::save(std::forward<Args>(args)...);
  }
  /// A load of the class with other parameters: what its code puts into the weights goes to the masters, too.
  template <class... Args, class Result = decltype(std::declval<Impl&>().load(std::declval<Args>()...))>
  Result load(Args&&... args) {
    const auto& session = this->amp_casts().session;
    if (!session) return Impl::load(std::forward<Args>(args)...);
    ReplacedValues values(*this);
    if constexpr (std::is_void_v<Result>) {
      Impl::load(std::forward<Args>(args)...);
      values.keep(*session);
    } else {
      Result result = Impl::load(std::forward<Args>(args)...);
      values.keep(*session);
      return std::forward<Result>(result);
    }
  }

 private:
  std::unique_ptr<ReplacedValues> float32_to_save() const {
    return this->amp_casts().saves_float32 ? std::make_unique<ReplacedValues>(*this) : nullptr;
  }

  /// A module finds out its name when it is first asked, and a copy keeps it.
  static const Impl& named(const Impl& module) {
    module.name();
    return module;
  }

  void look_for_held_this(const Impl& original) const {
    warn_of_held_this(*this, bytes_of_object(original), bytes_of_object(static_cast<const Impl&>(*this)));
  }

  template <class... Args>
  decltype(auto) call_uncast(Args&&... args) {
    if constexpr (!std::is_abstract_v<Impl>) {
      if (!amp_stands_for_derived_) return Impl::forward(std::forward<Args>(args)...);
    }
    return static_cast<Impl&>(*amp_original_).forward(std::forward<Args>(args)...);
  }

  std::shared_ptr<Impl> amp_original_;  // null: the module was not copied, or is the program's own struct
  bool amp_stands_for_derived_ = false;
  std::shared_ptr<void> amp_replica_casts_;  // null: not a replica
};

/// A `forward` of the first `count` of Impl's parameters, and, where those after them have defaults, of each shorter list:
/// unlike a template they take `{x, y}` for a vector, as Impl's own does.
template <class Impl, class R, class Arguments, size_t count, class Indices = std::make_index_sequence<count>, class = void>
class ForwardOf;

template <class Impl, class R, class Arguments, size_t count, size_t... I>
class ForwardOf<Impl, R, Arguments, count, std::index_sequence<I...>, std::enable_if_t<!kMayLeaveOut<Impl, Arguments, count>>>
    : public AmpedModule<Impl> {
 public:
  using AmpedModule<Impl>::AmpedModule;
  std::decay_t<R> forward(std::tuple_element_t<I, Arguments>... args) {
    return this->call_with_amp_casts(static_cast<std::tuple_element_t<I, Arguments>&&>(args)...);
  }
};

template <class Impl, class R, class Arguments, size_t count, size_t... I>
class ForwardOf<Impl, R, Arguments, count, std::index_sequence<I...>, std::enable_if_t<kMayLeaveOut<Impl, Arguments, count>>>
    : public ForwardOf<Impl, R, Arguments, count - 1> {
 public:
  using ForwardOf<Impl, R, Arguments, count - 1>::ForwardOf;
  using ForwardOf<Impl, R, Arguments, count - 1>::forward;
  std::decay_t<R> forward(std::tuple_element_t<I, Arguments>... args) {
    return this->call_with_amp_casts(static_cast<std::tuple_element_t<I, Arguments>&&>(args)...);
  }
};

}  // namespace detail

/// The user's module class `Impl` as amp runs it: the same parameters, buffers and children, a `forward` that casts, and FP32
/// checkpoints. With one plain `forward` in `Impl`, this one has exactly its signature, so that `AnyModule`, `Sequential` and
/// `ModuleHolder::operator()` accept it, and overrides it where it is virtual; otherwise it is a template.
template <class Impl, class Signature>
class Amped;

template <class Impl, class R, class... Args>
class Amped<Impl, R(Args...)> : public detail::ForwardOf<Impl, R, std::tuple<Args...>, sizeof...(Args)> {
 public:
  using detail::ForwardOf<Impl, R, std::tuple<Args...>, sizeof...(Args)>::ForwardOf;
};

template <class Impl>
class Amped<Impl, void> : public detail::AmpedModule<Impl> {
 public:
  using detail::AmpedModule<Impl>::AmpedModule;

  template <int = 0, class... Args>  // the number keeps explicit types for the forward below
  decltype(auto) forward(Args&&... args) {
    return this->call_with_amp_casts(std::forward<Args>(args)...);
  }
  /// `net->forward<std::tuple<Tensor, Tensor>>(x)`, as for Sequential.
  template <class Result, class... Args>
  Result forward(Args&&... args) {
    return this->template call_for_result<Result>(std::forward<Args>(args)...);
  }
  /// `net->forward({x, y})` where Impl takes a vector.
  template <class T, class = std::enable_if_t<detail::TakesArguments<Impl, std::tuple<std::vector<T>>>::value>>
  decltype(auto) forward(std::initializer_list<T> values) {
    return this->call_with_amp_casts(std::vector<T>(values));
  }
};

}  // namespace apex::amp
