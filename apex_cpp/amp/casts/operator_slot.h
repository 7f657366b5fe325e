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

/// One operator overload with a kernel of the engine. Slots are never destroyed; kernels refer to them by address.
struct OperatorSlot {
  OperatorSlot(std::string full_name, size_t slot_index);

  std::string name;        ///< "aten::add.Tensor"
  std::string short_name;  ///< "add", as Apex prints it
  size_t index;            ///< into the tables of `CastRules`
  /// The policy of the last `register_*_function`, process-wide.
  std::atomic<CastPolicy> user_policy{CastPolicy::none};
};

/// "aten::add.Tensor", the name for registration; `overload` may be empty.
std::string full_operator_name(const char* name, const char* overload);

/// The slot of an overload, created on first use. `overload` may be empty. Thread-safe.
OperatorSlot& operator_slot(const char* name, const char* overload);

/// The slots of all overloads that a name in a cast list or registration stands for: `ns::name.overload` is one overload,
/// `ns::name` all overloads except those that write to `out`. An overload without a kernel gets a boxed kernel, which is safe
/// while other threads run other operators.
/// Errors: ValueError for an operator unknown to LibTorch, or a text that is no operator name.
std::vector<OperatorSlot*> slots_named(const std::string& name);
/// The same for a name of the built-in cast lists, or nothing if LibTorch has no such operator, which is looked for once.
std::vector<OperatorSlot*> built_in_slots(const std::string& name);

/// Number of slots so far.
size_t num_operator_slots();

/// Registers a kernel that works for any schema: for custom operators, and for overloads that only the user's cast lists name.
void register_boxed_kernel(const c10::OperatorName& name, const OperatorSlot& slot);

/// For functions outside LibTorch's dispatcher: casts `tensors` in place, as the calling thread would for the operator of
/// `slot`. Tensors may be undefined.
void cast_as(const OperatorSlot& slot, std::initializer_list<at::Tensor*> tensors);

/// Whether this copy of the library was loaded first. The process has one dispatcher. A second copy's kernels would replace the
/// first copy's, while each copy has its own sessions. A program linked with the static library that loads a plugin linked with
/// it has two copies.
bool is_only_copy();
/// Errors: RuntimeError, with the remedy, in any later copy.
void check_only_copy();

/// Registers the unboxed kernels (unboxed_kernels.cpp). This happens at load time, before other threads call the operators; a
/// call of this function keeps the linker from dropping them. Errors: as `check_only_copy`.
void register_unboxed_kernels();

/// A library of kernels for `key` in a namespace ("_": all operators). The kernels live as long as the library.
inline torch::Library kernel_library(c10::DispatchKey key, const std::string& operator_namespace) {
  return torch::Library(torch::Library::IMPL, operator_namespace, key, __FILE__, static_cast<uint32_t>(__LINE__));
}

/// Lets operators without a kernel for `key` fall through to the next key. Null if a fallback for `key` exists already.
inline std::optional<torch::Library> fallthrough_library(c10::DispatchKey key) {
  if (c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(key)) return std::nullopt;
  torch::Library all = kernel_library(key, "_");
  all.fallback(torch::CppFunction::makeFallthrough());
  return all;
}

/// Kernels for `key` of LibTorch's operators; none in a later copy of this library. Create it at load time, before other
/// threads call these operators.
class AtenKernels {
 public:
  AtenKernels(c10::DispatchKey key, void (*register_in)(torch::Library&)) : aten_(kernel_library(key, "aten")) {
    if (is_only_copy()) register_in(aten_);
  }

 private:
  torch::Library aten_;
};

}  // namespace apex::amp::detail
