#include <apex_cpp/amp/casts/operators.h>

#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include <optional>

#include <apex_cpp/amp/casts/dispatch.h>

namespace apex::amp::detail {
namespace {

torch::Library implementations(const char* operator_namespace) {
  return torch::Library(torch::Library::IMPL, operator_namespace, kCastKey, __FILE__, static_cast<uint32_t>(__LINE__));
}

struct Installation {
  std::optional<torch::Library> fallback;
  torch::Library aten = implementations("aten");

  Installation() {
    // An operator for which the engine has no kernel is passed by. Somebody else may have said so already, for the same key.
    if (!c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(kCastKey)) {
      fallback.emplace(implementations("_"));
      fallback->fallback(torch::CppFunction::makeFallthrough());
    }
    register_products(aten);
    register_functions(aten);
    register_layers(aten);
    register_arithmetic(aten);
  }
};

const Installation& installation() {
  static const Installation instance;
  return instance;
}

[[maybe_unused]] const Installation& at_load = installation();

}  // namespace

void register_unboxed_kernels() { installation(); }

}  // namespace apex::amp::detail
