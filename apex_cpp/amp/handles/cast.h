#pragma once

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>
#include <torch/ordered_dict.h>

#include <array>
#include <optional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

// The walk over a model's inputs and outputs (Apex's applier, CAST-*): floating tensors are cast wherever they stand,
// everything else keeps its value and its type.
namespace apex::amp::detail {

/// A floating tensor (float16, bfloat16, float32, float64) in `dtype`, differentiably; any other tensor as it is.
at::Tensor cast_tensor(const at::Tensor& tensor, c10::ScalarType dtype);
/// The same for a boxed value: tensors, lists, tuples and dictionaries of such.
c10::IValue cast_ivalue(const c10::IValue& value, c10::ScalarType dtype);

/// How a type is cast. `kCasts` is false for types without tensors, which are passed on untouched.
template <class T, class = void>
struct Caster {
  static constexpr bool kCasts = false;
};

template <class T>
inline constexpr bool kCasts = Caster<std::decay_t<T>>::kCasts;

/// `value` with its floating tensors in `dtype`; a type that holds none is forwarded as the reference it came as.
template <class T>
decltype(auto) cast_floating(T&& value, c10::ScalarType dtype) {
  if constexpr (kCasts<T>) {
    return Caster<std::decay_t<T>>::cast(value, dtype);
  } else {
    (void)dtype;
    return std::forward<T>(value);
  }
}

template <>
struct Caster<at::Tensor> {
  static constexpr bool kCasts = true;
  static at::Tensor cast(const at::Tensor& tensor, c10::ScalarType dtype) { return cast_tensor(tensor, dtype); }
};

template <>
struct Caster<c10::IValue> {
  static constexpr bool kCasts = true;
  static c10::IValue cast(const c10::IValue& value, c10::ScalarType dtype) { return cast_ivalue(value, dtype); }
};

/// The elements of any sequence, one by one, into a vector-like of the same kind.
template <class Sequence>
Sequence cast_elements(const Sequence& sequence, c10::ScalarType dtype) {
  Sequence result = sequence;
  for (auto& element : result) element = cast_floating(element, dtype);
  return result;
}

template <class T>
struct Caster<std::vector<T>, std::enable_if_t<kCasts<T>>> {
  static constexpr bool kCasts = true;
  static std::vector<T> cast(const std::vector<T>& value, c10::ScalarType dtype) { return cast_elements(value, dtype); }
};

template <class T, size_t N>
struct Caster<std::array<T, N>, std::enable_if_t<kCasts<T>>> {
  static constexpr bool kCasts = true;
  static std::array<T, N> cast(const std::array<T, N>& value, c10::ScalarType dtype) { return cast_elements(value, dtype); }
};

/// A `TensorList` argument becomes a vector, which converts back for the length of the call.
template <class T>
struct Caster<c10::ArrayRef<T>, std::enable_if_t<kCasts<T>>> {
  static constexpr bool kCasts = true;
  static std::vector<T> cast(c10::ArrayRef<T> value, c10::ScalarType dtype) { return cast_elements(value.vec(), dtype); }
};

template <class T>
struct Caster<c10::List<T>, std::enable_if_t<kCasts<T>>> {
  static constexpr bool kCasts = true;
  static c10::List<T> cast(const c10::List<T>& value, c10::ScalarType dtype) {
    c10::List<T> result;
    for (const T& element : value.vec()) result.push_back(cast_floating(element, dtype));
    return result;
  }
};

template <class T>
struct Caster<std::optional<T>, std::enable_if_t<kCasts<T>>> {
  static constexpr bool kCasts = true;
  static std::optional<T> cast(const std::optional<T>& value, c10::ScalarType dtype) {
    if (!value) return std::nullopt;
    return cast_floating(*value, dtype);
  }
};

template <class... Ts>
struct Caster<std::tuple<Ts...>, std::enable_if_t<(kCasts<Ts> || ...)>> {
  static constexpr bool kCasts = true;
  static std::tuple<Ts...> cast(const std::tuple<Ts...>& value, c10::ScalarType dtype) {
    return std::apply([&](const auto&... element) { return std::tuple<Ts...>(cast_floating(element, dtype)...); }, value);
  }
};

template <class A, class B>
struct Caster<std::pair<A, B>, std::enable_if_t<kCasts<A> || kCasts<B>>> {
  static constexpr bool kCasts = true;
  static std::pair<A, B> cast(const std::pair<A, B>& value, c10::ScalarType dtype) {
    return {cast_floating(value.first, dtype), cast_floating(value.second, dtype)};
  }
};

template <class T, class = void>
inline constexpr bool kHasTo = false;
template <class T>
inline constexpr bool kHasTo<T, std::void_t<decltype(std::declval<const T&>().to(c10::kHalf))>> =
    std::is_convertible_v<decltype(std::declval<const T&>().to(c10::kHalf)), T>;

template <class T, class = void>
inline constexpr bool kIsMapping = false;
template <class T>
inline constexpr bool kIsMapping<T, std::void_t<typename T::mapped_type, decltype(std::declval<T&>().begin()->second)>> =
    !kHasTo<T>;

/// Mappings, std's and classes derived from them, keep their type, their keys and their other members (BUG-19).
template <class Map>
struct Caster<Map, std::enable_if_t<kIsMapping<Map> && kCasts<typename Map::mapped_type>>> {
  static constexpr bool kCasts = true;
  static Map cast(const Map& value, c10::ScalarType dtype) {
    Map result = value;
    for (auto& item : result) item.second = cast_floating(item.second, dtype);
    return result;
  }
};

template <class K, class V>
struct Caster<torch::OrderedDict<K, V>, std::enable_if_t<kCasts<V>>> {
  static constexpr bool kCasts = true;
  static torch::OrderedDict<K, V> cast(const torch::OrderedDict<K, V>& value, c10::ScalarType dtype) {
    torch::OrderedDict<K, V> result = value;
    for (auto& item : result) item.value() = cast_floating(item.value(), dtype);
    return result;
  }
};

template <class K, class V>
struct Caster<c10::Dict<K, V>, std::enable_if_t<kCasts<V>>> {
  static constexpr bool kCasts = true;
  static c10::Dict<K, V> cast(const c10::Dict<K, V>& value, c10::ScalarType dtype) {
    c10::Dict<K, V> result = value.copy();
    for (const auto& item : value) result.insert_or_assign(item.key(), cast_floating(item.value(), dtype));
    return result;
  }
};

/// A type of the user's (a batch, a PackedSequence) takes part by having `to(ScalarType)` that returns the cast value
/// (CAST-05).
template <class T>
struct Caster<T, std::enable_if_t<std::is_class_v<T> && !std::is_base_of_v<torch::nn::Module, T> && kHasTo<T>>> {
  static constexpr bool kCasts = true;
  static T cast(const T& value, c10::ScalarType dtype) { return value.to(dtype); }
};

}  // namespace apex::amp::detail
