#include <apex_cpp/amp/casts/operators/operators.h>

#include <apex_cpp/amp/casts/dispatch.h>
#include <apex_cpp/amp/casts/kernel_library.h>
#include <apex_cpp/amp/casts/only_copy.h>

namespace apex::amp::detail {
namespace {

struct Installation {
  torch::Library aten = kernel_library(kCastKey, "aten");

  Installation() {
    if (!is_only_copy()) return;
    register_products(aten);
    register_functions(aten);
    register_layers(aten);
    register_arithmetic(aten);
    register_named(aten);
  }
};

const Installation& installation() {
  static const Installation instance;
  return instance;
}

[[maybe_unused]] const Installation& at_load = installation();

}  // namespace

void register_unboxed_kernels() {
  installation();
  check_only_copy();
}

}  // namespace apex::amp::detail
