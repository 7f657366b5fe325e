#pragma once

#include <atomic>
#include <cstddef>
#include <string>
#include <vector>

#include "opt_levels/cast_lists.h"

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

}  // namespace apex::amp::detail
