#pragma once

#include <cstdint>
#include <vector>

namespace train {

/// 0 .. count - 1 in an order that depends on `seed` and `stream` alone: not on LibTorch, the platform or earlier calls. The
/// data order of an epoch is stream = epoch, so a resumed run needs no more than the epoch's number to go on in the same order.
std::vector<int64_t> shuffled_indices(int64_t count, uint64_t seed, uint64_t stream);

}  // namespace train
