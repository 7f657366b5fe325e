#pragma once

namespace apex::amp::detail {

/// Whether this copy of the library was the first in the process. There is one dispatcher, on which a further copy's kernels
/// would replace those of the first, while each copy has sessions of its own: a program that is linked with the static library
/// and loads a plugin that is, too, has two.
bool is_only_copy();
/// Errors: RuntimeError with the remedy for a further one.
void check_only_copy();

}  // namespace apex::amp::detail
