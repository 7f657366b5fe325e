#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include "opt_levels/cast_lists.h"

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/operator_name.h>
#include <torch/library.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <vector>

namespace apex::amp::detail {

using opt_levels::CastPolicy;

/// One operator overload that the engine has a kernel for. Slots are never destroyed; kernels hold them by address.
struct OperatorSlot {
  OperatorSlot(std::string full_name, size_t slot_index);

  std::string name;        ///< "aten::add.Tensor"
  std::string short_name;  ///< "add", as Apex prints it
  size_t index;            ///< into the tables of `CastRules`
  /// What `register_*_function` asks for, process-wide.
  std::atomic<CastPolicy> user_policy{CastPolicy::none};
};

/// "aten::add.Tensor", as a library registers it; `overload` may be empty.
std::string full_operator_name(const char* name, const char* overload);

/// The slot of an overload, made on first use. `overload` may be empty. Thread-safe.
OperatorSlot& operator_slot(const char* name, const char* overload);

/// The slots of all overloads that a name in a cast list or a registration stands for: the one that `ns::name.overload` names,
/// or every overload of `ns::name` but those that write to `out`. An overload without a kernel gets a boxed one; that is safe
/// while other threads run other operators.
/// Errors: ValueError for an operator that LibTorch does not know, or a name that is none.
std::vector<OperatorSlot*> slots_named(const std::string& name);

/// Number of slots so far.
size_t num_operator_slots();

struct OperatorSlot;

/// Gives an operator that has no unboxed kernel one that works on any schema: custom operators, and overloads that the user's
/// own cast lists name.
void register_boxed_kernel(const c10::OperatorName& name, const OperatorSlot& slot);

/// For functions that LibTorch's dispatcher does not know: casts `tensors`, some of which may be undefined, each in its place,
/// as the calling thread would cast them for the operator of `slot`.
void cast_as(const OperatorSlot& slot, std::initializer_list<at::Tensor*> tensors);

/// Whether this copy of the library was the first in the process. There is one dispatcher, on which a further copy's kernels
/// would replace those of the first, while each copy has sessions of its own: a program that is linked with the static library
/// and loads a plugin that is, too, has two.
bool is_only_copy();
/// Errors: RuntimeError with the remedy for a further one.
void check_only_copy();

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
