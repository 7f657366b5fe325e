#pragma once

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>
#include <torch/ordered_dict.h>

#include <type_traits>
#include <utility>

#include <apex_cpp/amp/tensors/map_tensors.h>

// The walk over a model's inputs and outputs (Apex's applier, CAST-*): floating tensors are cast wherever they stand,
// everything else keeps its value and its type.
namespace apex::amp::detail {

template <class T, class = void>
inline constexpr bool kHasTo = false;
template <class T>
inline constexpr bool kHasTo<T, std::void_t<decltype(std::declval<const T&>().to(c10::kHalf))>> =
    std::is_convertible_v<decltype(std::declval<const T&>().to(c10::kHalf)), T>;

/// What is cast as a whole: tensors, boxed values, LibTorch's containers, and types of the user's (a batch, a PackedSequence)
/// that have `to(ScalarType)` which returns the cast value (CAST-05).
template <class T>
struct IsCastable : std::bool_constant<std::is_class_v<T> && !std::is_base_of_v<torch::nn::Module, T> && kHasTo<T>> {};
template <class T>
inline constexpr bool kCasts = kHolds<T, IsCastable>;

template <>
struct IsCastable<at::Tensor> : std::true_type {};
template <>
struct IsCastable<c10::IValue> : std::true_type {};
template <class T>
struct IsCastable<c10::List<T>> : std::bool_constant<kCasts<T>> {};
template <class K, class V>
struct IsCastable<c10::Dict<K, V>> : std::bool_constant<kCasts<V>> {};
template <class K, class V>
struct IsCastable<torch::OrderedDict<K, V>> : std::bool_constant<kCasts<V>> {};

/// A floating tensor (float16, bfloat16, float32, float64) in `dtype`, differentiably; any other tensor as it is.
at::Tensor cast_leaf(const at::Tensor& tensor, c10::ScalarType dtype);
/// The same for a boxed value: tensors, lists, tuples and dictionaries of such.
c10::IValue cast_leaf(const c10::IValue& value, c10::ScalarType dtype);
template <class T>
c10::List<T> cast_leaf(const c10::List<T>& value, c10::ScalarType dtype);
template <class K, class V>
c10::Dict<K, V> cast_leaf(const c10::Dict<K, V>& value, c10::ScalarType dtype);
template <class K, class V>
torch::OrderedDict<K, V> cast_leaf(const torch::OrderedDict<K, V>& value, c10::ScalarType dtype);
template <class T>
T cast_leaf(const T& value, c10::ScalarType dtype) {
  return value.to(dtype);
}

/// `value` with its floating tensors in `dtype`. Containers keep their type, mappings their keys, and classes derived from them
/// their other members (BUG-19); a type that holds no tensors is forwarded as the reference it came as.
template <class T>
decltype(auto) cast_floating(T&& value, c10::ScalarType dtype) {
  if constexpr (kCasts<T>) {
    return map_tensors<IsCastable>(std::as_const(value), [dtype](const auto& leaf) { return cast_leaf(leaf, dtype); });
  } else {
    (void)dtype;
    return std::forward<T>(value);
  }
}

template <class T>
c10::List<T> cast_leaf(const c10::List<T>& value, c10::ScalarType dtype) {
  c10::List<T> result;
  for (const T& element : value.vec()) result.push_back(cast_floating(element, dtype));
  return result;
}

template <class K, class V>
c10::Dict<K, V> cast_leaf(const c10::Dict<K, V>& value, c10::ScalarType dtype) {
  c10::Dict<K, V> result = value.copy();
  for (const auto& item : value) result.insert_or_assign(item.key(), cast_floating(item.value(), dtype));
  return result;
}

template <class K, class V>
torch::OrderedDict<K, V> cast_leaf(const torch::OrderedDict<K, V>& value, c10::ScalarType dtype) {
  torch::OrderedDict<K, V> result = value;
  for (auto& item : result) item.value() = cast_floating(item.value(), dtype);
  return result;
}

}  // namespace apex::amp::detail
