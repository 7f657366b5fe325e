#pragma once

namespace apex::kernels::cpu {

// Instruction sets that the kernels are compiled for, each with all of the one before. All give the same bits; `portable` is the
// reference, one value at a time. What gains nothing from the last runs the kernels of the one before.
enum class Isa { portable, avx2, avx512, avx512_bf16 };

const char* name_of(Isa isa);

// Whether this build has kernels for `isa` and this machine can run them.
bool is_available(Isa isa);

// What kernels run with: the last available one, unless a test chose another.
Isa current_isa();

// Throws c10::Error if `isa` is not available. Not for use while kernels run.
void set_current_isa(Isa isa);

}  // namespace apex::kernels::cpu
