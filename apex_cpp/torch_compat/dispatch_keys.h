#pragma once
// IWYU pragma: private, include <apex_cpp/amp.h>

#include <c10/core/DispatchKeySet.h>

namespace apex::torch_compat {

/// The dispatch key of the cast engine. It stands above autograd, so that autograd records the casts, and belongs to a backend
/// that LibTorch no longer has, so that nobody else registers kernels for it. No tensor carries the key; a thread includes it
/// while casts are on.
constexpr c10::DispatchKey kCastKey = c10::DispatchKey::AutocastIPU;
/// The keys below `kCastKey`.
constexpr c10::DispatchKeySet kBelowCastKey(c10::DispatchKeySet::FULL_AFTER, kCastKey);

/// The dispatch key of the operators that compute in FP32 for 16-bit CPU tensors. It stands below autograd, so that autograd
/// saves the 16-bit tensors and its backward formulas dispatch through this key too. LibTorch itself has no kernels for the
/// key. A thread includes it together with `kCastKey`.
constexpr c10::DispatchKey kCpuFallbackKey = c10::DispatchKey::Fake;
/// The keys below `kCpuFallbackKey`.
constexpr c10::DispatchKeySet kBelowCpuFallbackKey(c10::DispatchKeySet::FULL_AFTER, kCpuFallbackKey);

/// The keys that are excluded inside an operator that was cast: neither the cast engine nor LibTorch's autocast casts the
/// operators that it calls.
constexpr c10::DispatchKeySet kOffInside = c10::autocast_dispatch_keyset | c10::DispatchKeySet(kCastKey);

}  // namespace apex::torch_compat
