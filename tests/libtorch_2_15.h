#pragma once

#include <torch/version.h>

#include <string>

// What is different with LibTorch 2.15 and later.
namespace test {

constexpr bool kIsLibTorch215 = TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 15;

// Whether LibTorch no longer has an operator of the built-in cast lists.
inline bool is_dropped(const std::string& name) { return kIsLibTorch215 && (name == "aten::cholesky" || name == "aten::qr"); }

}  // namespace test
