#pragma once

#include <c10/core/ScalarType.h>

#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>

#include <apex_cpp/amp/casts/thread_casts.h>
#include <apex_cpp/amp/handles/cast.h>

namespace apex::amp::detail {

struct Session;

/// What `initialize` changes about a model's calls: the dtype its inputs and outputs are cast to, if any.
struct ForwardCasts {
  std::optional<c10::ScalarType> inputs;
  std::optional<c10::ScalarType> outputs;
  /// Checkpoint entries of these dtypes are saved as FP32.
  bool saves_float32 = false;
  std::shared_ptr<Session> session;  // null: amp has not touched the model
  std::shared_ptr<CastRules> rules;  // how operators are cast while forward runs; null: not at all (O0)
};

/// A module that `initialize` can patch in place, found from any `torch::nn::Module` by dynamic_cast. Its names are long so as
/// not to hide a user's own.
class CastsForward {
 public:
  virtual ~CastsForward() = default;
  virtual void set_amp_casts(ForwardCasts casts) { amp_casts_ = std::move(casts); }
  const ForwardCasts& amp_casts() const { return amp_casts_; }
  /// Whether it passes calls on to a module that cannot be copied, rather than being the model.
  virtual bool amp_stands_for_another() const { return false; }

 private:
  ForwardCasts amp_casts_;
};

/// The session that patched a module; null for one that amp has not touched.
inline std::shared_ptr<Session> session_of(const torch::nn::Module& module) {
  const auto* patched = dynamic_cast<const CastsForward*>(&module);
  return patched ? patched->amp_casts().session : nullptr;
}

/// An argument that was given as an lvalue reference is handed over as one; a value or an rvalue is moved.
template <class Original, class T>
decltype(auto) hand_over(T& value) {
  if constexpr (std::is_lvalue_reference_v<Original>) {
    return static_cast<T&>(value);
  } else {
    return static_cast<T&&>(value);
  }
}

/// `forward(args...)` with the floating tensors among the arguments cast.
template <class Forward, class... Args>
decltype(auto) call_with_inputs_in(c10::ScalarType dtype, Forward& forward, Args&&... args) {
  // The cast arguments live in a tuple so that a forward that takes `Tensor&` finds an lvalue.
  std::tuple<decltype(cast_floating(std::forward<Args>(args), dtype))...> cast(
      cast_floating(std::forward<Args>(args), dtype)...);
  return std::apply([&](auto&... each) -> decltype(auto) { return forward(hand_over<Args&&>(each)...); }, cast);
}

/// `forward(args...)` as a model at this level runs it: casts the floating tensors among the arguments and those of the result.
template <class Forward, class... Args>
decltype(auto) call_with_casts(const ForwardCasts& casts, Forward forward, Args&&... args) {
  std::optional<ForwardScope> scope;
  if (casts.session) scope.emplace(casts.rules);
  const auto inner = [&]() -> decltype(auto) {
    if (casts.inputs) return call_with_inputs_in(*casts.inputs, forward, std::forward<Args>(args)...);
    return forward(std::forward<Args>(args)...);
  };
  using Result = decltype(inner());
  if constexpr (!kCasts<Result>) {
    return inner();
  } else {
    std::decay_t<Result> result = inner();
    if (!casts.outputs) return result;
    return std::decay_t<Result>(cast_floating(result, *casts.outputs));
  }
}

}  // namespace apex::amp::detail
