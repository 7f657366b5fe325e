#pragma once

#include <ATen/core/Tensor.h>

#include <initializer_list>

#include <apex_cpp/amp/casts/operator_slot.h>

namespace apex::amp::detail {

/// For functions that LibTorch's dispatcher does not know: casts `tensors`, some of which may be undefined, each in its place,
/// as the calling thread would cast them for the operator of `slot`.
void cast_as(const OperatorSlot& slot, std::initializer_list<at::Tensor*> tensors);

}  // namespace apex::amp::detail
