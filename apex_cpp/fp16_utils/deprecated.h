#pragma once

namespace apex::fp16_utils::detail {

/// Warns (c10::DeprecationWarning) that `name` is kept for programs from before `amp`, and says what new code writes.
void warn_deprecated(const char* name, const char* instead);

constexpr const char* kInsteadOfMasters = "amp::initialize(model, optimizer, \"O2\") and amp::scale_loss";

}  // namespace apex::fp16_utils::detail
