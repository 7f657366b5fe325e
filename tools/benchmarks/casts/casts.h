#pragma once
// Helpers shared by the cast engine's benchmarks.
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <apex_cpp/amp/casts/thread_casts.h>

#include <functional>

#include "../runner.h"

namespace bench::casts {

/// Seconds per measurement of a single operator, and measurements per round.
constexpr double kOpSeconds = 0.0002;
constexpr int kOpRepeats = 40;
/// Nanoseconds per call of `call`, over `calls` calls with warm caches.
double nanoseconds_when_warm(const std::function<void()>& call, int calls);

/// An FP32 leaf that requires grad, like a module's parameter.
at::Tensor weight(at::IntArrayRef shape);
/// The same in 16 bits.
at::Tensor cast_leaf(const at::Tensor& weight);
at::Tensor random(at::IntArrayRef shape, c10::ScalarType dtype);

/// Switches casts on at O4 for this thread, until `amp::reset`. An amp optimizer trains every `weight` made so far, so the
/// engine may cache their casts.
void switch_on();

/// Switches the engine off for this thread while the object lives.
struct EngineOff {
  c10::impl::ExcludeDispatchKeyGuard off{apex::amp::detail::kCastKey};
};

// The three groups of the suite.
void run_off(Runner& runner);  // must run first: it needs a process that never initialized amp
void run_ops(Runner& runner);
void run_training(Runner& runner);

}  // namespace bench::casts
