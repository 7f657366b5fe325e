#pragma once

namespace apex::kernels::cpu {

// Instruction sets that the kernels are compiled for, each with all of the one before. All give the same bits; `portable` is
// the reference, one value at a time. What gains nothing from the last runs the kernels of the one before.
enum class Isa { portable, avx2, avx512, avx512_bf16 };

const char* name_of(Isa isa);

// Whether this build has kernels for `isa` and this machine can run them.
bool is_available(Isa isa);

// What kernels run with: the last available one, unless a test chose another.
Isa current_isa();

// The current instruction set's of what a room compiles for several: tables of functions, with linkage. Other processors than
// x86's have the portable one alone.
template <const auto& portable, const auto& avx2, const auto& avx512, const auto& avx512_bf16 = avx512>
const auto& of_current_isa() {
#ifdef APEX_CPP_X86_KERNELS
  switch (current_isa()) {
    case Isa::portable:
      return portable;
    case Isa::avx2:
      return avx2;
    case Isa::avx512:
      return avx512;
    case Isa::avx512_bf16:
      return avx512_bf16;
  }
#endif
  return portable;
}

// Throws c10::Error if `isa` is not available. Not for use while kernels run.
void set_current_isa(Isa isa);

}  // namespace apex::kernels::cpu
