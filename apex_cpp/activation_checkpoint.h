#pragma once

#include <c10/util/Exception.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

// Activation checkpointing, as torch.utils.checkpoint: memory for time.
namespace apex {

namespace detail {

using TensorList = std::vector<at::Tensor>;
/// A function of tensors, which may also use tensors that it captures.
using Segment = std::function<TensorList(const TensorList& inputs)>;

/// `buffers`: what the segment writes besides its results, such as running statistics. They are written once.
TensorList checkpoint(const Segment& segment, const TensorList& inputs, const TensorList& buffers);

// An argument with its tensors taken out, so that it can be kept without them, and put back.

struct TensorSlot {};
struct ListSlot {
  size_t size;
};

inline TensorSlot take(const at::Tensor& argument, TensorList& tensors) {
  tensors.push_back(argument);
  return {};
}
inline ListSlot take(const TensorList& argument, TensorList& tensors) {
  tensors.insert(tensors.end(), argument.begin(), argument.end());
  return {argument.size()};
}
template <class T>
auto take(c10::ArrayRef<T> argument, TensorList& tensors) {
  if constexpr (std::is_same_v<T, at::Tensor>) {
    return take(argument.vec(), tensors);
  } else {
    return argument.vec();  // what the reference refers to may be gone by the backward pass
  }
}
template <class T>
std::decay_t<const T> take(const T& argument, TensorList&) {
  return argument;
}

using Cursor = TensorList::const_iterator;
inline at::Tensor put_back(const TensorSlot&, Cursor& next) { return *next++; }
inline TensorList put_back(const ListSlot& slot, Cursor& next) {
  const Cursor begin = std::exchange(next, next + static_cast<std::ptrdiff_t>(slot.size));
  return {begin, next};
}
template <class T>
const T& put_back(const T& argument, Cursor&) {
  return argument;
}

// What the function returns, as a list: a tensor, a vector of tensors, or a std::tuple or std::pair of tensors.

inline TensorList to_list(at::Tensor result) { return {std::move(result)}; }
inline TensorList to_list(TensorList result) { return result; }
template <class Tuple>
TensorList to_list(const Tuple& result) {
  return std::apply([](const auto&... tensors) { return TensorList{tensors...}; }, result);
}

template <class Tuple, size_t... i>
Tuple tuple_of(TensorList& list, std::index_sequence<i...>) {
  return {std::move(list[i])...};
}
template <class Result>
Result from_list(TensorList list) {
  if constexpr (std::is_same_v<Result, at::Tensor>) {
    return std::move(list.front());
  } else if constexpr (std::is_same_v<Result, TensorList>) {
    return list;
  } else {
    return tuple_of<Result>(list, std::make_index_sequence<std::tuple_size_v<Result>>());
  }
}

/// Whether it is a module holder, a pointer to a module, or a handle of amp.
template <class T, class = void>
constexpr bool is_module = false;
template <class T>
constexpr bool is_module<T, std::void_t<decltype(std::declval<const T&>()->buffers())>> = true;

/// Calls the function with each input copied, except for tensors, which the checkpoint keeps.
template <class Function, class... Inputs>
auto checkpoint_call(Function function, const TensorList& buffers, const Inputs&... inputs) {
  using Result = std::decay_t<std::invoke_result_t<Function&, Inputs...>>;
  TensorList tensors;
  auto arguments = std::tuple<decltype(take(inputs, tensors))...>{take(inputs, tensors)...};  // braces: from left to right
  const Segment segment = [function = std::move(function), arguments = std::move(arguments)](const TensorList& given) mutable {
    Cursor next = given.begin();
    const auto call = [&](const auto&... argument) {
      auto put = std::tuple<std::decay_t<decltype(put_back(argument, next))>...>{put_back(argument, next)...};
      return std::apply(function, std::move(put));
    };
    return to_list(std::apply(call, arguments));
  };
  return from_list<Result>(checkpoint(segment, tensors, buffers));
}

}  // namespace detail

/// Returns `function(inputs...)` without keeping the tensors that its backward pass needs: they are computed again in the
/// backward pass. It is `torch.utils.checkpoint.checkpoint(function, *inputs, use_reentrant=False)`. Hooks,
/// DistributedDataParallel and SyncBatchNorm see one ordinary backward pass. Gradients have the bits of a call without
/// `checkpoint`, with two exceptions: where three or more are added into one tensor, the order of the additions may
/// differ; at O1 and O4 and under autocast a weight is cast, and its gradient rounded, for each use in a `checkpoint`.
///
/// `function`: a callable object, a module holder such as `torch::nn::Linear`, a pointer to a module, or a handle of amp. It is
/// copied, and called now and once in each backward pass. A module's buffers (running statistics of batch norm) are updated by
/// the first call alone; those of modules that a lambda calls are updated by both. It may use parameters and other tensors. It
/// must compute the same both times, so that its results must not depend on a buffer that it updates (as in spectral norm) or
/// on a value that it counts up; the random number generators of the CPU, of the inputs' GPUs and of the current GPU
/// (dropout), amp's casts and autocast are set back to the first call's. Where another thread draws from the same generator
/// during a call, such as a worker of a data loader from the CPU's, the calls draw different numbers. It must not make leaves
/// that need gradients. `inputs`: tensors and lists of tensors, which are kept and which it must not write, and any other
/// values, which are copied; tensors within such values, as in `std::optional`, count as captured. Pass a view whose base was
/// written since as an input, rather than let the function capture it. Result: a tensor, or a `std::vector`, `std::tuple` or
/// `std::pair` of tensors; one that shares memory with an input, a parameter or another result is a copy.
///
/// Without grad mode it is a plain call. Works within another `checkpoint`, with `retain_graph` and with `create_graph` (hooks
/// of tensors that the function uses then run twice). Waits for a GPU where the function does. Errors: ValueError for a null
/// module; what the function throws, now or from `backward`; RuntimeError in `backward` if the second call gives other results
/// in number, shape or dtype, if it uses other parameters, or if an input or a parameter was written in the meantime, except
/// through `tensor.data()`, as LibTorch's own optimizers write.
template <class Function, class... Inputs>
auto checkpoint(const Function& function, const Inputs&... inputs) {
  if constexpr (detail::is_module<Function>) {
    if constexpr (std::is_constructible_v<bool, const Function&>) {
      TORCH_CHECK_VALUE(static_cast<bool>(function), "apex::checkpoint was given a null module. Construct it first.");
    }
    auto forward = [module = function](const auto&... arguments) mutable { return module->forward(arguments...); };
    return detail::checkpoint_call(std::move(forward), function->buffers(), inputs...);
  } else {
    return detail::checkpoint_call(std::decay_t<Function>(function), {}, inputs...);
  }
}

/// Runs a `torch::nn::Sequential` on `input` in `segments` parts, each with `checkpoint`, except for the last, whose backward
/// pass begins at once. It is `torch.utils.checkpoint.checkpoint_sequential`. `segments`: 1 up to the number of modules.
/// Errors: ValueError for another number.
at::Tensor checkpoint_sequential(const torch::nn::Sequential& modules, int64_t segments, at::Tensor input);

}  // namespace apex
