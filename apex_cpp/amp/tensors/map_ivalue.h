#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include <functional>

namespace apex::amp::detail {

/// `value` with `f` of each tensor that it is, or that its lists, tuples and dictionaries hold.
c10::IValue map_ivalue(const c10::IValue& value, const std::function<at::Tensor(const at::Tensor&)>& f);

}  // namespace apex::amp::detail
