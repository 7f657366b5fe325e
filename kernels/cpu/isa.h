#pragma once

namespace apex::kernels::cpu {

// Instruction sets that the kernels are compiled for. All give the same bits; `portable` is the reference, one value at a time.
enum class Isa { portable, avx2, avx512 };

const char* name_of(Isa isa);

// Whether this build has kernels for `isa` and this machine can run them.
bool is_available(Isa isa);

// What kernels run with: the last available one, unless a test chose another.
Isa current_isa();

// Throws c10::Error if `isa` is not available. Not for use while kernels run.
void set_current_isa(Isa isa);

}  // namespace apex::kernels::cpu
