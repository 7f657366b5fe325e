#pragma once

#include <cstddef>

namespace apex::fuzz {

/// Bytes currently allocated by C++ code (through operator new, replaced for the whole program) and for CPU tensors.
size_t live_bytes();

/// Afterwards, an allocation that would raise `live_bytes` above `limit` throws std::bad_alloc and is recorded.
void set_memory_limit(size_t limit);
/// The live bytes that a refused allocation would have reached; 0 if the limit has refused none since it was set.
size_t refused_bytes();

/// Makes CPU tensors allocate with operator new. Must be called before the first tensor is created.
void count_tensor_memory();

}  // namespace apex::fuzz
