#pragma once

#include <apex_cpp/amp/scaling/loss_scaler.h>

#include <functional>
#include <vector>

// Where processes tell each other of overflows: each scale_loss block asks here before it decides. Nobody answers unless
// `apex::parallel::share_overflow` is in force.
namespace apex::amp::detail {

/// Takes whether this process has found an overflow, and answers the ranks that have.
using OverflowExchange = std::function<std::vector<int>(bool found_here)>;

/// Puts an exchange in the place of another; null for none. Returns the one from before. From any thread.
OverflowExchange set_overflow_exchange(OverflowExchange exchange);

/// The ranks that found an overflow in a block of `scaler`'s; empty without an exchange, or where nobody looks for overflow.
std::vector<int> ranks_with_overflow(const LossScaler& scaler, bool found_here);

}  // namespace apex::amp::detail
