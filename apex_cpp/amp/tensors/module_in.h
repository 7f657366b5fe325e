#pragma once

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include <type_traits>

namespace apex::amp::detail {

/// The module that a program means by `model`: itself, or what its holder or pointer holds. Error: it holds none; `taker` is
/// who was given it.
template <class Net>
auto& module_in(Net& model, const char* taker) {
  if constexpr (std::is_base_of_v<torch::nn::Module, Net>) {
    return model;
  } else {
    TORCH_CHECK(static_cast<bool>(model), taker, " was given a null model.");
    return *model;
  }
}

}  // namespace apex::amp::detail
