#pragma once
// What the benchmarks of the cast engine share.
#include <ATen/core/Tensor.h>
#include <c10/core/ScalarType.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <apex_cpp/amp/casts/thread_casts.h>

#include <functional>

#include "../runner.h"

namespace bench::casts {

/// One measurement of a single operator, and how many of them make a round.
constexpr double kOpSeconds = 0.0002;
constexpr int kOpRepeats = 40;
/// Times `calls` calls of `call`, once caches are warm.
double nanoseconds_when_warm(const std::function<void()>& call, int calls);

/// FP32 leaf that requires grad, as a module's parameter does.
at::Tensor weight(at::IntArrayRef shape);
/// The same in 16 bits.
at::Tensor cast_leaf(const at::Tensor& weight);
at::Tensor random(at::IntArrayRef shape, c10::ScalarType dtype);

/// Casts are on at O4 for this thread, until `amp::reset`; an optimizer of amp's trains every `weight` so far, whose casts the
/// engine may keep then.
void switch_on();

/// The engine is off for this thread, as if it had never been switched on.
struct EngineOff {
  c10::impl::ExcludeDispatchKeyGuard off{apex::amp::detail::kCastKey};
};

// The three groups of the suite.
void run_off(Runner& runner);  // must come first: it needs a process in which nothing was initialized
void run_ops(Runner& runner);
void run_training(Runner& runner);

}  // namespace bench::casts
