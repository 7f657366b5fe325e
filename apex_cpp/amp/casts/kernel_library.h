#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <cstdint>
#include <optional>
#include <string>

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

}  // namespace apex::amp::detail
