#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/util/ArrayRef.h>

#include <functional>
#include <iterator>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

// Applies a function to every leaf in nested C++ containers: sequences, the values of mappings, pairs, tuples, optionals and
// variants. Leaves are tensors; a caller with other leaf types passes its own trait IsLeaf.
namespace apex::amp::detail {

template <class T>
struct IsTensor : std::is_same<T, at::Tensor> {};

template <class T, class = void>
inline constexpr bool kIsRange = false;
/// Whether `T` is a copyable range whose elements can be assigned.
template <class T>
inline constexpr bool kIsRange<T, std::void_t<decltype(*std::begin(std::declval<T&>())), typename T::value_type>> =
    std::is_lvalue_reference_v<decltype(*std::begin(std::declval<T&>()))> &&
    !std::is_const_v<std::remove_reference_t<decltype(*std::begin(std::declval<T&>()))>> && std::is_copy_constructible_v<T>;

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
inline constexpr bool kIsVariant = false;
template <class... Ts>
inline constexpr bool kIsVariant<std::variant<Ts...>> = true;

template <class T, template <class> class IsLeaf>
struct HoldsLeaves;
/// Whether a type is a leaf or a container of leaves, however deep.
template <class T, template <class> class IsLeaf>
inline constexpr bool kHolds = HoldsLeaves<std::decay_t<T>, IsLeaf>::value;
template <class T>
inline constexpr bool kHoldsTensors = kHolds<T, IsTensor>;

template <class T, template <class> class IsLeaf, class = void>
struct HoldsElements : std::false_type {};
template <class T, template <class> class IsLeaf>
struct HoldsElements<T, IsLeaf, std::enable_if_t<kIsRange<T> || kIsOptional<T>>>
    : std::bool_constant<!std::is_same_v<typename T::value_type, T> && kHolds<typename T::value_type, IsLeaf>> {};
template <class T, template <class> class IsLeaf>
struct HoldsElements<c10::ArrayRef<T>, IsLeaf> : std::bool_constant<kHolds<T, IsLeaf>> {};
template <class... Ts, template <class> class IsLeaf>
struct HoldsElements<std::tuple<Ts...>, IsLeaf> : std::bool_constant<(kHolds<Ts, IsLeaf> || ...)> {};
template <class... Ts, template <class> class IsLeaf>
struct HoldsElements<std::variant<Ts...>, IsLeaf> : std::bool_constant<(kHolds<Ts, IsLeaf> || ...)> {};
template <class A, class B, template <class> class IsLeaf>
struct HoldsElements<std::pair<A, B>, IsLeaf> : std::bool_constant<kHolds<A, IsLeaf> || kHolds<B, IsLeaf>> {};

template <class T, template <class> class IsLeaf>
struct HoldsLeaves : std::disjunction<IsLeaf<T>, HoldsElements<T, IsLeaf>> {};

/// The type that `map_tensors` returns for `T`: `T` itself, except that an ArrayRef becomes a vector, and a tuple of references
/// (std::tie) becomes a tuple of values, so that the caller's variables stay unchanged.
template <class T>
struct Mapped {
  using Type = T;
  static Type copy(const T& value) { return value; }
};
template <class T>
struct Mapped<c10::ArrayRef<T>> {
  using Type = std::vector<T>;
  static Type copy(c10::ArrayRef<T> values) { return values.vec(); }
};
template <class... Ts>
struct Mapped<std::tuple<Ts...>> {
  using Type = std::tuple<std::decay_t<Ts>...>;
  static Type copy(const std::tuple<Ts...>& value) { return Type(value); }
};
template <class A, class B>
struct Mapped<std::pair<A, B>> {
  using Type = std::pair<std::decay_t<A>, std::decay_t<B>>;
  static Type copy(const std::pair<A, B>& value) { return Type(value); }
};

template <template <class> class IsLeaf, class T, class F>
void map_in_place(T& value, const F& f) {
  if constexpr (!kHolds<T, IsLeaf>) {
    // Keys, strings and numbers stay unchanged.
  } else if constexpr (IsLeaf<T>::value) {
    value = f(value);
  } else if constexpr (kIsOptional<T>) {
    if (value) map_in_place<IsLeaf>(*value, f);
  } else if constexpr (kIsVariant<T>) {
    std::visit([&](auto& held) { map_in_place<IsLeaf>(held, f); }, value);
  } else if constexpr (kIsTuple<T>) {
    std::apply([&](auto&... element) { (map_in_place<IsLeaf>(element, f), ...); }, value);
  } else {
    for (auto& element : value) map_in_place<IsLeaf>(element, f);
  }
}

/// A copy of `value` with every leaf replaced by `f(leaf)`, as `Mapped` says. A value without leaves is returned by reference.
template <template <class> class IsLeaf = IsTensor, class T, class F>
decltype(auto) map_tensors(const T& value, const F& f) {
  if constexpr (IsLeaf<T>::value) {
    return f(value);
  } else if constexpr (kHolds<T, IsLeaf>) {
    auto result = Mapped<T>::copy(value);
    map_in_place<IsLeaf>(result, f);
    return result;
  } else {
    return (value);
  }
}

/// A copy of `value` with `f` applied to every tensor, including those in nested lists, tuples and dictionaries.
c10::IValue map_ivalue(const c10::IValue& value, const std::function<at::Tensor(const at::Tensor&)>& f);

/// Visits the defined tensors in `value` and in its nested lists and tuples, in order.
template <class Visit>
void for_each_tensor(const c10::IValue& value, Visit&& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isList()) {
    for (const c10::IValue& element : value.toListRef()) for_each_tensor(element, visit);
  } else if (value.isTuple()) {
    for (const c10::IValue& element : value.toTupleRef().elements()) for_each_tensor(element, visit);
  }
}

}  // namespace apex::amp::detail
