#pragma once

#include <c10/core/DispatchKeySet.h>

namespace apex::amp::detail {

/// The dispatch key of the cast engine: above autograd, so that casts are recorded, and of a backend that no longer exists, so
/// that nobody else has kernels on it. No tensor carries it; a thread includes it while casts are on.
constexpr c10::DispatchKey kCastKey = c10::DispatchKey::AutocastIPU;

/// The key of operators that compute in FP32 for 16-bit CPU tensors: below autograd, which therefore saves the 16-bit tensors
/// and whose backward formulas come by as well, and of a system that has left LibTorch. It is included where `kCastKey` is.
constexpr c10::DispatchKey kComputeKey = c10::DispatchKey::Fake;
constexpr c10::DispatchKeySet kBelowComputeKey(c10::DispatchKeySet::FULL_AFTER, kComputeKey);

/// What is left to dispatch to after the engine's kernel.
constexpr c10::DispatchKeySet kBelowCastKey(c10::DispatchKeySet::FULL_AFTER, kCastKey);

/// Off inside an operator that was cast: neither the engine nor torch's autocast touches what it is made of.
constexpr c10::DispatchKeySet kOffInside = c10::autocast_dispatch_keyset | c10::DispatchKeySet(kCastKey);

}  // namespace apex::amp::detail
