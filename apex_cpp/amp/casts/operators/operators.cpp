#include <apex_cpp/amp/casts/operators/operators.h>

#include <apex_cpp/amp/casts/dispatch.h>
#include <apex_cpp/amp/casts/kernel_library.h>
#include <apex_cpp/amp/casts/only_copy.h>

namespace apex::amp::detail {
namespace {

void register_all(torch::Library& aten) {
  register_products(aten);
  register_functions(aten);
  register_layers(aten);
  register_arithmetic(aten);
  register_named(aten);
}

const AtenKernels& unboxed_kernels() {
  static const AtenKernels kernels(kCastKey, register_all);
  return kernels;
}

[[maybe_unused]] const AtenKernels& unboxed_at_load = unboxed_kernels();

}  // namespace

void register_unboxed_kernels() {
  unboxed_kernels();
  check_only_copy();
}

}  // namespace apex::amp::detail
