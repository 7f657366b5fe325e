#pragma once

#include <ATen/core/operator_name.h>

namespace apex::amp::detail {

struct OperatorSlot;

/// Gives an operator that has no unboxed kernel one that works on any schema: custom operators, and overloads that the user's
/// own cast lists name.
void register_boxed_kernel(const c10::OperatorName& name, const OperatorSlot& slot);

}  // namespace apex::amp::detail
