#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <iterator>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

// Tensors in nested C++ containers: sequences, mappings (their values), pairs, tuples and optionals.
namespace apex::amp::detail {

template <class T, class = void>
inline constexpr bool kIsRange = false;
template <class T>
inline constexpr bool kIsRange<T, std::void_t<decltype(std::begin(std::declval<T&>())), typename T::value_type>> =
    std::is_lvalue_reference_v<decltype(*std::begin(std::declval<T&>()))>;

template <class T>
inline constexpr bool kIsTuple = false;
template <class... Ts>
inline constexpr bool kIsTuple<std::tuple<Ts...>> = true;
template <class A, class B>
inline constexpr bool kIsTuple<std::pair<A, B>> = true;

template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;

template <class T>
struct HoldsTensors;
template <class T>
inline constexpr bool kHoldsTensors = HoldsTensors<std::decay_t<T>>::value;

template <class T, class = void>
struct HoldsElements : std::false_type {};
template <class T>
struct HoldsElements<T, std::enable_if_t<kIsRange<T> || kIsOptional<T>>>
    : std::bool_constant<!std::is_same_v<typename T::value_type, T> && kHoldsTensors<typename T::value_type>> {};
template <class... Ts>
struct HoldsElements<std::tuple<Ts...>> : std::bool_constant<(kHoldsTensors<Ts> || ...)> {};
template <class A, class B>
struct HoldsElements<std::pair<A, B>> : std::bool_constant<kHoldsTensors<A> || kHoldsTensors<B>> {};

/// Whether a type is a tensor or a container of tensors, however deep.
template <class T>
struct HoldsTensors : HoldsElements<T> {};
template <>
struct HoldsTensors<at::Tensor> : std::true_type {};

template <class T, class F>
void map_in_place(T& value, const F& f) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    value = f(value);
  } else if constexpr (!kHoldsTensors<T>) {
    // Keys, strings, numbers: as they are.
  } else if constexpr (kIsOptional<T>) {
    if (value) map_in_place(*value, f);
  } else if constexpr (kIsTuple<T>) {
    std::apply([&](auto&... element) { (map_in_place(element, f), ...); }, value);
  } else {
    for (auto& element : value) map_in_place(element, f);
  }
}

/// `value` with `f` of every tensor in its place, in the same container type; what holds no tensor is passed on as it is.
template <class T, class F>
decltype(auto) map_tensors(const T& value, const F& f) {
  if constexpr (kHoldsTensors<T>) {
    T result = value;
    map_in_place(result, f);
    return result;
  } else {
    return (value);
  }
}

/// A view's elements cannot be replaced: they come back in a vector.
template <class T, class F>
std::vector<T> map_tensors(const c10::ArrayRef<T>& values, const F& f) {
  return map_tensors(values.vec(), f);
}

}  // namespace apex::amp::detail
