#pragma once

#include <cstddef>

namespace apex::fuzz {

/// Bytes that are allocated now, by C++ code (operator new, replaced for the whole program) and for tensors on the CPU.
size_t live_bytes();

/// From now on an allocation that would take `live_bytes` beyond `limit` throws std::bad_alloc, and is remembered.
void set_memory_limit(size_t limit);
/// What would have been live if the limit had not stopped an allocation since it was set; 0 if it stopped none.
size_t refused_bytes();

/// Makes CPU tensors take their memory from operator new. Call it before the first.
void count_tensor_memory();

}  // namespace apex::fuzz
