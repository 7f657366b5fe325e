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

/// Replaces the values of a module's parameters and buffers while the class's own code saves or loads them: 16-bit weights are
/// float32, as without amp, or have the dtypes of a file. The destructor puts the old values back. No other thread may use the
/// module meanwhile.
class ReplacedValues {
 public:
  class Replaced;
  using Dtypes = std::unordered_map<const at::TensorImpl*, c10::ScalarType>;

  /// If it fails, as without memory for a copy, the old values are back.
  explicit ReplacedValues(const torch::nn::Module& module, const Dtypes& dtypes = {});
  ~ReplacedValues();
  ReplacedValues(const ReplacedValues&) = delete;
  ReplacedValues& operator=(const ReplacedValues&) = delete;
  /// Copies values that were written meanwhile to the parameters and buffers, in their own dtypes, and to their masters.
  /// Errors, before that: c10::Error for a value of another shape.
  void keep(const std::shared_ptr<Session>& session);

 private:
  void put_back();

  std::vector<Replaced> values_;
};

/// Records the clone's weights as cast by amp if the original's are, so that saves and loads of its parts convert them, too.
void remember_clone(const torch::nn::Module& original, const torch::nn::Module& clone);
/// Runs `own_save`, which writes `module` into `archive`; then widens the 16-bit weights in the archive to float32 (MODEL-08).
void save_float32(const torch::nn::Module& module, torch::serialize::OutputArchive& archive,
                  const std::function<void()>& own_save);
/// Runs `own_load`, which reads `archive` into the parameters and buffers. Converts dtypes, and also loads the masters. Errors,
/// before anything is changed: errors of `own_load`; c10::Error with the name of a missing entry, or of one with another shape.
void load_any_dtype(const torch::nn::Module& module, torch::serialize::InputArchive& archive,
                    const std::shared_ptr<Session>& session, const std::function<void()>& own_load);

/// Copies train() or eval() of `from` and its children to `to` and its children.
void copy_training_flags(const torch::nn::Module& from, torch::nn::Module& to);

/// The mode of a module alone, as `Module::train` left it, whatever the class makes of train() and is_training().
bool training_flag(const torch::nn::Module& module) noexcept;
void set_training_flag(torch::nn::Module& module, bool on);

/// Warns once that a handle refers to a module of a class derived from the handle's module class.
void warn_of_derived_class(const torch::nn::Module& module, const std::type_info& known_as);

/// Warns that other holders or parents keep a module of this class, whose weights were cast, and which is not the handle's
/// module.
void warn_of_other_holders(const std::type_info& held_as);

/// Errors: RuntimeError with the name of a parameter or buffer that `copy` does not share with `original`, because the class's
/// copy constructor makes its own.
void check_copy_shares(const torch::nn::Module& original, const torch::nn::Module& copy);

/// Warns that `save()` of a model that a handle refers to writes its cast weights in 16 bits.
void warn_of_saving_originals();

/// The bytes of an object, without what it points to.
struct ObjectBytes {
  const char* begin;
  size_t size;
};
template <class T>
ObjectBytes bytes_of_object(const T& object) {
  return {reinterpret_cast<const char*>(&object), sizeof(T)};
}
/// Warns if `copy`, or a Functional in the module, holds an address inside `original`, as a lambda that captured `this` does.
/// design_notes.md describes the method and its limits.
void warn_of_held_this(const torch::nn::Module& module, ObjectBytes original, ObjectBytes copy);

/// Tag of the constructors that patch a module: the user's class may have constructors of any other signature.
struct PatchOf {};

/// The user's module class with casts around `forward`, once `initialize` has set them.
///
/// Made from a module of exactly this class, it is a copy that shares parameters, buffers and children. It keeps the original
/// alive, for lambdas that captured `this`. A module of a derived class would be sliced by a copy; for such a module this class
/// forwards calls of forward, train, save and load to the original.
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

  /// Calls the class's own override once, on this object: a second call on the original would repeat what it does to tensors
  /// and children, which both share.
  void train(bool on) override {
    if (amp_stands_for_derived_) return static_cast<torch::nn::Module&>(*amp_original_).train(on);
    if (mode_was_set_by_parent()) set_training_flag(*this, amp_mode_ = training_flag(*amp_original_));
    if constexpr (kSetsMode<Impl>) {
      Impl::train(on);
    } else {
      torch::nn::Module::train(on);
    }
    if (amp_original_) set_training_flag(*amp_original_, amp_mode_ = training_flag(*this));
  }
  /// Has the default argument of Module::train, or is the class's own `train()`, which hides it.
  typename TrainResult<Impl>::type train() {
    if constexpr (kIsOwnTrain<Impl, std::tuple<>>) {
      return Impl::train();
    } else {
      this->train(true);
    }
  }
  /// An overload of `train` in the class with other parameters, such as a number of epochs.
  template <class... Args, class Result = decltype(std::declval<Impl&>().train(std::declval<Args>()...)),
            class = std::enable_if_t<(sizeof...(Args) > 0) && kIsOwnTrain<Impl, std::tuple<Args...>>>>
  Result train(Args&&... args) {
    return Impl::train(std::forward<Args>(args)...);
  }
  /// A parent's train() and eval() reach the original.
  bool is_training() const noexcept override {
    if (amp_stands_for_derived_ || mode_was_set_by_parent()) {
      return static_cast<const torch::nn::Module&>(*amp_original_).is_training();
    }
    if constexpr (kTellsMode<Impl>) {
      return Impl::is_training();
    } else {
      return torch::nn::Module::is_training();
    }
  }

  /// A deep copy with the same casts. With a `device` the copy is a replica of `torch::nn::parallel::replicate`: during its
  /// lifetime, threads on which `parallel_apply` runs replicas have the same casts.
  std::shared_ptr<torch::nn::Module> clone(const std::optional<torch::Device>& device = std::nullopt) const override {
    const auto copy = std::dynamic_pointer_cast<Impl>(cloned(device));
    TORCH_CHECK(copy, "clone() of this module returns a different class. Derive it from torch::nn::Cloneable<its own class>.");
    copy_training_flags(*this, *copy);
    if constexpr (std::is_copy_constructible_v<Amped<Impl>>) {
      auto amped = std::make_shared<Amped<Impl>>(PatchOf{}, copy);
      amped->set_amp_casts(this->amp_casts());
      remember_clone(*this, *amped);
      if (device) static_cast<AmpedModule&>(*amped).amp_replica_casts_ = casts_for_replicas();
      return amped;
    } else {
      C10_THROW_ERROR(Error, "a module that cannot be copied cannot be cloned with its casts.");
    }
  }

  /// Calls the class's own `save` or `load`, so that it can write and read more than parameters and buffers.
  void save(torch::serialize::OutputArchive& archive) const override {
    const auto save_own = [&] {
      if (amp_stands_for_derived_) return static_cast<const torch::nn::Module&>(*amp_original_).save(archive);
      if constexpr (decltype(saves_archives<AmpedModule>(0))::value) {
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
      if constexpr (decltype(loads_archives<AmpedModule>(0))::value) {
        Impl::load(archive);
      } else {
        torch::nn::Module::load(archive);
      }
    };
    const auto& session = this->amp_casts().session;
    session ? load_any_dtype(*this, archive, session, load_own) : load_own();
  }

  /// An overload of `save` in the class with other parameters, such as a path. It sees float32 weights.
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
  /// An overload of `load` in the class with other parameters. Values that it loads also go into the masters.
  template <class... Args, class Result = decltype(std::declval<Impl&>().load(std::declval<Args>()...))>
  Result load(Args&&... args) {
    const auto& session = this->amp_casts().session;
    if (!session) return Impl::load(std::forward<Args>(args)...);
    ReplacedValues values(*this);
    if constexpr (std::is_void_v<Result>) {
      Impl::load(std::forward<Args>(args)...);
      values.keep(session);
    } else {
      Result result = Impl::load(std::forward<Args>(args)...);
      values.keep(session);
      return std::forward<Result>(result);
    }
  }

 private:
  // Whether the class's `save` and `load` take archives, and `clone` a device: an overload with other parameters hides the one
  // of Module. Asked in the derived class, where an override may be protected.
  template <class Self>
  static auto saves_archives(int)
      -> decltype(std::declval<const Self&>().Impl::save(std::declval<torch::serialize::OutputArchive&>()), std::true_type());
  template <class Self>
  static std::false_type saves_archives(long);
  template <class Self>
  static auto loads_archives(int)
      -> decltype(std::declval<Self&>().Impl::load(std::declval<torch::serialize::InputArchive&>()), std::true_type());
  template <class Self>
  static std::false_type loads_archives(long);
  template <class Self>
  static auto clones_to(int)
      -> decltype(std::declval<const Self&>().Impl::clone(std::declval<const std::optional<torch::Device>&>()),
                  std::true_type());
  template <class Self>
  static std::false_type clones_to(long);

  std::unique_ptr<ReplacedValues> float32_to_save() const {
    return this->amp_casts().saves_float32 ? std::make_unique<ReplacedValues>(*this) : nullptr;
  }

  /// Module::name() stores the name at its first call. Calling it here gives the copy the name of the original's class.
  static const Impl& named(const Impl& module) {
    static_cast<const torch::nn::Module&>(module).name();  // the class may have a member `name`
    return module;
  }

  std::shared_ptr<torch::nn::Module> cloned(const std::optional<torch::Device>& device) const {
    if constexpr (decltype(clones_to<AmpedModule>(0))::value) {
      if (!amp_stands_for_derived_) return Impl::clone(device);
    }
    return amp_original_ ? static_cast<const torch::nn::Module&>(*amp_original_).clone(device)
                         : torch::nn::Module::clone(device);
  }

  bool mode_was_set_by_parent() const noexcept { return amp_original_ && training_flag(*amp_original_) != amp_mode_; }

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

  std::shared_ptr<Impl> amp_original_;  // null: not copied, or a struct of the program
  bool amp_stands_for_derived_ = false;
  bool amp_mode_ = training_flag(*this);     // of both modules, when they last agreed
  std::shared_ptr<void> amp_replica_casts_;  // null: not a replica
};

/// `forward` with the first `count` parameters of Impl's `forward`, and, if the others have defaults, an overload for each
/// shorter list. Unlike a template, these overloads accept `{x, y}` for a vector, as Impl's own `forward` does.
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
/// checkpoints. If `Impl` has one plain `forward`, the class has the same signature, so that `AnyModule` and `Sequential`
/// (unless it has default arguments) and `ModuleHolder::operator()` accept it, and overrides a virtual `forward` that is not
/// const. Otherwise `forward` is a template.
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

  template <int = 0, class... Args>  // the int lets a call with explicit types pick the next overload
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
