#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <string>

#include <apex_cpp/amp/casts/only_copy.h>

namespace apex::amp::detail {

/// Kernels for `key` of the operators in a namespace, which last as long as it; "_" stands for all operators.
inline torch::Library kernel_library(c10::DispatchKey key, const std::string& operator_namespace) {
  return torch::Library(torch::Library::IMPL, operator_namespace, key, __FILE__, static_cast<uint32_t>(__LINE__));
}

/// Has an operator that has no kernel for `key` passed by. Nothing if somebody else has said so already, for the same key.
inline std::optional<torch::Library> fallthrough_library(c10::DispatchKey key) {
  if (c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(key)) return std::nullopt;
  torch::Library all = kernel_library(key, "_");
  all.fallback(torch::CppFunction::makeFallthrough());
  return all;
}

/// Kernels for `key` of LibTorch's own operators; none in a further copy of this library. To be made when the program is
/// loaded, before it has threads that call them.
class AtenKernels {
 public:
  AtenKernels(c10::DispatchKey key, void (*register_in)(torch::Library&)) : aten_(kernel_library(key, "aten")) {
    if (is_only_copy()) register_in(aten_);
  }

 private:
  torch::Library aten_;
};

}  // namespace apex::amp::detail
