#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <ATen/core/Dict.h>
#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <torch/nn/module.h>
#include <torch/ordered_dict.h>

#include <functional>
#include <optional>
#include <type_traits>
#include <utility>

#include <apex_cpp/amp/tensors/map_tensors.h>

// Casts a model's inputs and outputs (Apex's applier, CAST-*): every floating-point tensor in them is cast, wherever it is
// nested; everything else keeps its value and its type.
namespace apex::amp::detail {

template <class T, class = void>
inline constexpr bool kHasTo = false;
template <class T>
inline constexpr bool kHasTo<T, std::void_t<decltype(std::declval<const T&>().to(c10::kHalf))>> =
    std::is_convertible_v<decltype(std::declval<const T&>().to(c10::kHalf)), T>;

/// Whether T has `to(ScalarType)` that returns the cast value: PackedSequence, and types of the user such as a batch (CAST-05).
template <class T>
struct CastsItself : std::bool_constant<std::is_class_v<T> && !std::is_base_of_v<torch::nn::Module, T> && kHasTo<T>> {};
template <>
struct CastsItself<at::Tensor> : std::false_type {};

/// Leaves of the traversal: tensors, boxed values, LibTorch's containers, and types that cast themselves.
template <class T>
struct IsCastable : CastsItself<T> {};
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
template <class K, class V>
struct CastsItself<torch::OrderedDict<K, V>> : std::bool_constant<kHolds<V, CastsItself>> {};

/// Casts a floating-point tensor (float16, bfloat16, float32, float64) to `dtype`, differentiably. Returns other tensors
/// unchanged.
at::Tensor cast_tensor(const at::Tensor& tensor, c10::ScalarType dtype);

/// The function that a traversal applies: `cast(tensor)` to each tensor, `to(cast.dtype())` to each value that casts itself.
class ToDtype {
 public:
  explicit ToDtype(c10::ScalarType dtype) : dtype_(dtype) {}
  at::Tensor operator()(const at::Tensor& tensor) const { return cast_tensor(tensor, dtype_); }
  std::optional<c10::ScalarType> dtype() const { return dtype_; }

 private:
  c10::ScalarType dtype_;
};

template <class Cast>
at::Tensor cast_leaf(const at::Tensor& tensor, const Cast& cast) {
  return cast(tensor);
}
template <class Cast>
c10::IValue cast_leaf(const c10::IValue& value, const Cast& cast) {
  return map_ivalue(value, std::cref(cast));
}
template <class T, class Cast>
c10::List<T> cast_leaf(const c10::List<T>& value, const Cast& cast);
template <class K, class V, class Cast>
c10::Dict<K, V> cast_leaf(const c10::Dict<K, V>& value, const Cast& cast);
template <class K, class V, class Cast>
torch::OrderedDict<K, V> cast_leaf(const torch::OrderedDict<K, V>& value, const Cast& cast);
template <class T, class Cast>
T cast_leaf(const T& value, const Cast& cast) {
  return cast.dtype() ? T(value.to(*cast.dtype())) : value;
}

/// Applies `cast` to every leaf of `value`. Containers keep their type, mappings their keys, and classes derived from a
/// container their other members (BUG-19). A value of a type without tensors is forwarded as the same reference.
template <class T, class Cast>
decltype(auto) cast_each(T&& value, const Cast& cast) {
  if constexpr (kCasts<T>) {
    return map_tensors<IsCastable>(std::as_const(value), [&cast](const auto& leaf) { return cast_leaf(leaf, cast); });
  } else {
    (void)cast;
    return std::forward<T>(value);
  }
}

/// Casts the floating-point tensors in `value` to `dtype`.
template <class T>
decltype(auto) cast_floating(T&& value, c10::ScalarType dtype) {
  return cast_each(std::forward<T>(value), ToDtype(dtype));
}

template <class T, class Cast>
c10::List<T> cast_leaf(const c10::List<T>& value, const Cast& cast) {
  c10::List<T> result;
  for (const T& element : value.vec()) result.push_back(cast_each(element, cast));
  return result;
}

template <class K, class V, class Cast>
c10::Dict<K, V> cast_leaf(const c10::Dict<K, V>& value, const Cast& cast) {
  c10::Dict<K, V> result = value.copy();
  for (const auto& item : value) result.insert_or_assign(item.key(), cast_each(item.value(), cast));
  return result;
}

template <class K, class V, class Cast>
torch::OrderedDict<K, V> cast_leaf(const torch::OrderedDict<K, V>& value, const Cast& cast) {
  torch::OrderedDict<K, V> result = value;
  for (auto& item : result) item.value() = cast_each(item.value(), cast);
  return result;
}

}  // namespace apex::amp::detail
