#pragma once

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>

namespace apex::torch_compat {

/// The arguments of the operator call that a callback observes. `RecordFunction::inputs()` asserts, in a program compiled
/// without NDEBUG, on a member that the released LibTorch, compiled with it, never sets: the callback then fails by chance.
c10::ArrayRef<const c10::IValue> inputs_of(const at::RecordFunction& function);

}  // namespace apex::torch_compat
