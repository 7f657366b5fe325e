#pragma once

#include <string>

namespace apex::amp {

/// Runs an operator in 16 bits, in FP32, or in the widest type of its arguments wherever O1 or O4 casts: built-in operators
/// ("aten::mish", "aten::pow.Tensor_Scalar") and custom ones ("mylib::foo") alike. Without an overload, all overloads of that
/// name but those that write to `out`.
///
/// Process-wide, before or after `initialize`, from any thread; the last registration of an operator counts. An operator of the
/// built-in lists is first cast as these say, then as registered: `aten::mm` registered as a float function runs in FP32 on
/// values rounded to 16 bits (REG-06). Casts of weights to 16 bits go through the cache (REG-03).
/// A custom operator's first registration should come before other threads call that operator.
/// Errors: ValueError for an operator that LibTorch does not know (REG-02). Apex: `amp.register_half_function(module, name)`.
void register_half_function(const std::string& op);
void register_float_function(const std::string& op);
/// A mix of 16 bits and FP32 runs in FP32; any other mix of types is left to PyTorch's own promotion, where Apex raises
/// NotImplementedError (REG-04).
void register_promote_function(const std::string& op);
/// Takes a registration back; nothing happens if there was none. Errors: as above.
void unregister_function(const std::string& op);

}  // namespace apex::amp
