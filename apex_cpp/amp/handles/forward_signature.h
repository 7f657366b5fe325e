#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <cstddef>
#include <tuple>
#include <type_traits>
#include <utility>

// Compile-time facts about a module class's `forward` and `train`.
namespace apex::amp::detail {

/// `R(Args...)` for a member function pointer, without its class and qualifiers.
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

/// The signature of Impl's forward; void if there is none, or if it is overloaded or a template.
template <class Impl, class = void>
struct ForwardSignature {
  using type = void;
};
template <class Impl>
struct ForwardSignature<Impl, std::void_t<decltype(&Impl::forward)>> : MemberSignature<decltype(&Impl::forward)> {};

/// Whether `Impl::forward` can be called with arguments of the types in the tuple `Arguments`.
template <class Impl, class Arguments, class = void>
struct TakesArguments : std::false_type {};
template <class Impl, class... A>
struct TakesArguments<Impl, std::tuple<A...>, std::void_t<decltype(std::declval<Impl&>().forward(std::declval<A>()...))>>
    : std::true_type {};

/// Whether `forward` can be called with the first `count - 1` of the parameters in `Arguments`.
template <class Impl, class Arguments, class Indices>
struct TakesFirst;
template <class Impl, class Arguments, size_t... I>
struct TakesFirst<Impl, Arguments, std::index_sequence<I...>>
    : TakesArguments<Impl, std::tuple<std::tuple_element_t<I, Arguments>...>> {};
template <class Impl, class Arguments, size_t count>
inline constexpr bool kMayLeaveOut = TakesFirst<Impl, Arguments, std::make_index_sequence<count - 1>>::value;
template <class Impl, class Arguments>
inline constexpr bool kMayLeaveOut<Impl, Arguments, 0> = false;

/// Whether the class has a function `Result train(Args...)`.
template <class Impl, class Result, class Arguments, class = void>
inline constexpr bool kHasTrain = false;
template <class Impl, class Result, class... Args>
inline constexpr bool
    kHasTrain<Impl, Result, std::tuple<Args...>, std::void_t<decltype(static_cast<Result (Impl::*)(Args...)>(&Impl::train))>> =
        true;
/// Whether the class has functions `train` that a program can call.
template <class Impl, class = void>
inline constexpr bool kHasOneTrain = false;
template <class Impl>
inline constexpr bool kHasOneTrain<Impl, std::void_t<decltype(&Impl::train)>> = true;
template <class Impl, class = void>
inline constexpr bool kTrainTakesBool = false;
template <class Impl>
inline constexpr bool kTrainTakesBool<Impl, std::void_t<decltype(std::declval<Impl&>().train(true))>> = true;

/// Whether `Impl::train` sets the mode, and `Impl::is_training` tells it. An override that is protected is found by the absence
/// of functions that hide it.
template <class Impl>
inline constexpr bool kSetsMode = kHasTrain<Impl, void, std::tuple<bool>> || !(kHasOneTrain<Impl> || kTrainTakesBool<Impl>);
template <class Impl, class = void>
inline constexpr bool kTellsMode = false;
template <class Impl>
inline constexpr bool kTellsMode<Impl, std::void_t<decltype(std::declval<const Impl&>().is_training())>> = true;

/// Whether `train(args...)`, with arguments of the types in the tuple, is a function of the class that does something else.
template <class Impl, class Arguments, class = void>
inline constexpr bool kIsOwnTrain = false;
template <class Impl, class... Args>
inline constexpr bool
    kIsOwnTrain<Impl, std::tuple<Args...>, std::void_t<decltype(std::declval<Impl&>().train(std::declval<Args>()...))>> =
        !kSetsMode<Impl> || sizeof...(Args) > 1 || !(std::is_convertible_v<Args, bool> && ...) ||
        (!std::is_same_v<std::tuple<std::decay_t<Args>...>, std::tuple<bool>> &&
         kHasTrain<Impl, decltype(std::declval<Impl&>().train(std::declval<Args>()...)), std::tuple<std::decay_t<Args>...>>);

/// What `train()` without arguments returns: the result of the class's own, or nothing.
template <class Impl, bool is_own = kIsOwnTrain<Impl, std::tuple<>>>
struct TrainResult {
  using type = void;
};
template <class Impl>
struct TrainResult<Impl, true> {
  using type = decltype(std::declval<Impl&>().train());
};

}  // namespace apex::amp::detail
