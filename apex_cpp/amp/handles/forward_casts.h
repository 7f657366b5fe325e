#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <c10/core/ScalarType.h>
#include <c10/util/Exception.h>
#include <c10/util/SmallVector.h>

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <unordered_map>
#include <utility>
#include <vector>

#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/amp/handles/cast.h>

namespace apex::amp::detail {

struct Session;

/// The casts that `initialize` puts around a model's forward: the dtypes of inputs and outputs (none: not cast), and more.
struct ForwardCasts {
  std::optional<c10::ScalarType> inputs;
  std::optional<c10::ScalarType> outputs;
  /// Whether `save` writes 16-bit weights as FP32.
  bool saves_float32 = false;
  std::shared_ptr<Session> session;  // null: the model was not initialized
  std::shared_ptr<CastRules> rules;  // the operator casts during forward; null: none (O0)
};

/// The base of modules that `initialize` can patch in place. Code finds it from any `torch::nn::Module` by dynamic_cast. The
/// names of its members are long, so that they do not hide members of the user's class.
class CastsForward {
 public:
  virtual ~CastsForward() = default;
  virtual void set_amp_casts(ForwardCasts casts) { amp_casts_ = std::move(casts); }
  const ForwardCasts& amp_casts() const { return amp_casts_; }
  /// Whether this object forwards calls to a module that cannot be copied, instead of being the model.
  virtual bool amp_stands_for_another() const { return false; }

 private:
  ForwardCasts amp_casts_;
};

/// The session that patched a module; null if none did.
inline std::shared_ptr<Session> session_of(const torch::nn::Module& module) {
  const auto* patched = dynamic_cast<const CastsForward*>(&module);
  return patched ? patched->amp_casts().session : nullptr;
}

/// If the error says that an operator, or code that reads memory, does not support 16-bit tensors, adds the remedy to it.
void explain_refusal(c10::Error& error);

/// The tensors in one argument of a forward: passes forward the caller's tensors or their cast copies, and afterwards writes
/// back to the caller what forward has written.
class ArgumentTensors {
 public:
  explicit ArgumentTensors(const ForwardCasts& casts) : inputs_(casts.inputs), outputs_(casts.outputs) {}

  /// Returns the tensor that forward gets for `given`: `given` itself or a cast copy. Call it for each tensor in traversal
  /// order.
  at::Tensor hand_over(const at::Tensor& given);
  /// Copies values that forward has written into a cast copy to the caller's tensor. Autograd records or refuses these writes
  /// as if forward had written to the caller's tensor itself.
  void copy_writes_back() const;
  /// The dtype of the cast copies; none if no tensor is cast.
  std::optional<c10::ScalarType> inputs() const { return inputs_; }
  /// Returns the tensor that the caller gets for `tensor`, which is in the argument after the call. For a tensor that forward
  /// was given: the caller's own. For a new tensor: a cast to the dtype of the tensor that was there before; or, if none was
  /// there or `cast_model_outputs` is set, the cast of an output. Call it for each tensor in traversal order.
  at::Tensor hand_back(const at::Tensor& tensor);

 private:
  struct Handed {
    at::Tensor given;
    at::Tensor cast;
    int64_t version;      // of the cast copy, before forward
    const void* made_by;  // grad_fn of the cast copy, before forward
  };

  std::optional<c10::ScalarType> inputs_, outputs_;
  c10::SmallVector<Handed, 1> handed_;
  size_t position_ = 0;  // of the traversal after the call
};

template <class T>
inline constexpr bool kIsArgumentRange = false;
template <class T>
inline constexpr bool kIsArgumentRange<std::vector<T>> = true;
template <class T, size_t size>
inline constexpr bool kIsArgumentRange<std::array<T, size>> = true;
template <class K, class V>
inline constexpr bool kIsArgumentRange<std::map<K, V>> = true;
template <class K, class V>
inline constexpr bool kIsArgumentRange<std::unordered_map<K, V>> = true;

/// Whether copies of T share their contents, so that forward can change the caller's value although it takes T by value.
template <class T>
inline constexpr bool kSharesContents = false;
template <class T>
inline constexpr bool kSharesContents<c10::List<T>> = true;
template <class K, class V>
inline constexpr bool kSharesContents<c10::Dict<K, V>> = true;

template <class T>
void replace_contents(const c10::List<T>& list, const c10::List<T>& by) {
  list.clear();
  for (const T& element : by.vec()) list.push_back(element);
}
template <class K, class V>
void replace_contents(const c10::Dict<K, V>& dict, const c10::Dict<K, V>& by) {
  dict.clear();
  for (const auto& item : by) dict.insert(item.key(), item.value());
}

/// Whether two values hold the same tensors, and equal values otherwise. False if this cannot be told.
bool is_same_value(const c10::IValue& a, const c10::IValue& b);
template <class T>
bool is_same_value(const T& a, const T& b) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return a.is_same(b);
  } else if constexpr (std::is_arithmetic_v<T> || std::is_enum_v<T> || std::is_same_v<T, std::string>) {
    return a == b;
  } else if constexpr (kIsOptional<T>) {
    return a.has_value() == b.has_value() && (!a || is_same_value(*a, *b));
  } else if constexpr (kIsTuple<T>) {
    return std::apply(
        [&](const auto&... of_a) {
          return std::apply([&](const auto&... of_b) { return (is_same_value(of_a, of_b) && ...); }, b);
        },
        a);
  } else if constexpr (kIsArgumentRange<T>) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const auto& of_a, const auto& of_b) { return is_same_value(of_a, of_b); });
  } else if constexpr (kSharesContents<T>) {
    return is_same_value(c10::IValue(a), c10::IValue(b));
  } else {
    return false;
  }
}

/// One argument of a forward, of reference type `Given`, with tensors in it. Exists during the call.
template <class Given, bool casts = kCasts<Given>>
class Argument {
  struct Over {
    ArgumentTensors& tensors;
    at::Tensor operator()(const at::Tensor& tensor) const { return tensors.hand_over(tensor); }
    std::optional<c10::ScalarType> dtype() const { return tensors.inputs(); }
  };
  struct Back {
    ArgumentTensors& tensors;
    at::Tensor operator()(const at::Tensor& tensor) const { return tensors.hand_back(tensor); }
  };
  using Cast = std::decay_t<decltype(cast_each(std::declval<const std::decay_t<Given>&>(), std::declval<Over>()))>;

  /// Whether forward may assign to the argument through a `T&`. Types that cast themselves cannot be compared or written back;
  /// they are passed as `const T&`.
  static constexpr bool kComesBack = std::is_lvalue_reference_v<Given> && !std::is_const_v<std::remove_reference_t<Given>> &&
                                     !kHolds<Given, CastsItself> && std::is_same_v<Cast, std::decay_t<Given>>;

 public:
  Argument(const ForwardCasts& casts_of_model, Given given)
      : given_(static_cast<Given>(given)), tensors_(casts_of_model), cast_(cast_each(std::as_const(given_), Over{tensors_})) {}

  /// Passes an lvalue reference on as one; moves a value or an rvalue.
  decltype(auto) hand_over() {
    if constexpr (kSharesContents<Cast>) {
      return (cast_);
    } else if constexpr (kComesBack) {
      return static_cast<Cast&>(cast_);
    } else if constexpr (std::is_lvalue_reference_v<Given>) {
      return static_cast<const Cast&>(cast_);
    } else {
      return static_cast<Cast&&>(cast_);
    }
  }
  /// After the call: writes changes by forward back to the caller.
  void hand_back() {
    tensors_.copy_writes_back();
    if constexpr (kComesBack || kSharesContents<Cast>) {
      const Cast value = cast_each(std::as_const(cast_), Back{tensors_});
      if (is_same_value(value, std::as_const(given_))) return;
      if constexpr (kSharesContents<Cast>) {
        replace_contents(given_, value);
      } else {
        given_ = value;
      }
    }
  }

 private:
  Given given_;
  ArgumentTensors tensors_;
  Cast cast_;
};

/// An argument without tensors.
template <class Given>
class Argument<Given, false> {
 public:
  Argument(const ForwardCasts&, Given given) : given_(static_cast<Given>(given)) {}
  Given hand_over() { return static_cast<Given>(given_); }
  void hand_back() {}

 private:
  Given given_;
};

/// The type that a call of `forward` returns: a value if it holds tensors.
template <class Result>
using Returned = std::conditional_t<kCasts<Result>, std::decay_t<Result>, Result>;
template <class Forward, class... Args>
using ResultOf = Returned<decltype(std::declval<Forward&>()(std::declval<Argument<Args&&>&>().hand_over()...))>;

/// Calls `forward(args...)` with the floating-point tensors in the arguments cast, and writes changes to them back to the
/// caller.
template <class Forward, class... Args>
auto call_with_arguments(const ForwardCasts& casts, Forward& forward, Args&&... args) -> ResultOf<Forward, Args...> {
  using Result = ResultOf<Forward, Args...>;
  std::tuple<Argument<Args&&>...> arguments(Argument<Args&&>(casts, std::forward<Args>(args))...);
  const auto call = [&](auto&... each) -> Result { return forward(each.hand_over()...); };
  const auto hand_back = [](auto&... each) { (each.hand_back(), ...); };
  if constexpr (std::is_void_v<Result>) {
    std::apply(call, arguments);
    std::apply(hand_back, arguments);
  } else {
    Result result = std::apply(call, arguments);
    std::apply(hand_back, arguments);
    return std::forward<Result>(result);
  }
}

/// Calls `forward(args...)` with the level's casts: of operators, and of floating-point tensors in the arguments and the
/// result.
template <class Forward, class... Args>
auto call_with_casts(const ForwardCasts& casts, Forward forward, Args&&... args) -> ResultOf<Forward, Args...> {
  using Result = ResultOf<Forward, Args...>;
  static_assert(!std::is_same_v<Result, at::TensorList>,
                "This forward returns an at::TensorList, which would refer to tensors that amp's casts have made: return a "
                "std::vector<torch::Tensor>.");
  std::optional<ForwardScope> scope;
  if (casts.session) scope.emplace(casts.rules);
  try {
    if (!casts.inputs && !casts.outputs) return static_cast<Result>(forward(std::forward<Args>(args)...));
    if constexpr (!kCasts<Result>) {
      return call_with_arguments(casts, forward, std::forward<Args>(args)...);
    } else {
      Result result = call_with_arguments(casts, forward, std::forward<Args>(args)...);
      return casts.outputs ? Result(cast_floating(result, *casts.outputs)) : result;
    }
  } catch (c10::Error& error) {
    if (casts.rules) explain_refusal(error);
    throw;
  }
}

}  // namespace apex::amp::detail
