#pragma once

#include "kernels/rules/adagrad.h"
#include "kernels/rules/adam.h"
#include "kernels/rules/lamb.h"
#include "kernels/rules/larc.h"
#include "kernels/rules/norms.h"
#include "kernels/rules/novograd.h"
#include "kernels/rules/rule.h"
#include "kernels/rules/scale.h"
#include "kernels/rules/sgd.h"

#include <cstdint>

// Functions over blocks of values, in tables: one table for each instruction set, made by a source file that is compiled for
// it. Such files share nothing else with the rest: code for one instruction set must not stand in for the code of another.
namespace apex::kernels::cpu {

// Storage that rules have kernels for; what else there is, is converted before and after (pass.h).
enum class Storage { real, half, bfloat16 };
constexpr int kStorages = 3;

// How many elements before they get there loops have memory fetched: of lists that are read, and of those only written. 0: the
// processor sees to it.
struct Ahead {
  int64_t read, written;
};

// Elements that a rule is applied to: data[i] is where its i-th value is, sums[s] the row of rules::kLanes lanes that its s-th
// sum is added to, element i to lane i % kLanes. Behind the values, data has where copies of parameters go, if there are any.
template <class Rule>
struct Block {
  void* data[rules::kValues<Rule> + 1];
  rules::SumReal<Rule>* sums[Rule::kSums + 1];
  int64_t size;
  Ahead ahead;
  bool starts_sums;  // they start from 0, whatever the lanes hold; only if size is at least kLanes
  bool past_caches;  // copies are written for memory that is not read again soon: no line is fetched only to be overwritten
};

template <class Rule>
using RunBlock = void (*)(const Rule& rule, const Block<Rule>& block);

// The sum of a chunk: joins the first `count` lanes of a row, a power of two, as rules::fold_lanes and chunk_sum do.
template <class Rule>
using FoldLanes = double (*)(rules::SumReal<Rule>* lanes, int count);

// Converts `size` stored elements to values, or values to stored elements.
template <class Real>
using Reader = void (*)(const void* stored, Real* values, int64_t size);
template <class Real>
using Writer = void (*)(const Real* values, void* stored, int64_t size);

// The kernels of a rule: by what its first value is stored in, by what the others are, and by copies of its second value, the
// parameter: none for Storage::real. nullptr: there is no such kernel.
template <class Rule>
struct Slot {
  RunBlock<Rule> run[kStorages][kStorages][kStorages];
  FoldLanes<Rule> fold;
};

template <class... Rules>
struct RuleTable : Slot<Rules>... {};

template <class Real>
struct Conversions {
  Reader<Real> read_half, read_bfloat16;
  Writer<Real> write_half, write_bfloat16;
  void (*fence)();  // other threads see what was written past the caches once it was called
};

using FloatRules = RuleTable<rules::Scale<float>, rules::CheckFinite<float>, rules::Copy<float>, rules::Axpby<float>,
                             rules::SumOfSquares<float>, rules::MaxMagnitude<float>, rules::PlainSgd, rules::MomentumSgd,
                             rules::Adam, rules::Adagrad, rules::NovoGrad, rules::LambStage1, rules::LambStage2, rules::Larc>;
using DoubleRules = RuleTable<rules::Scale<double>, rules::CheckFinite<double>, rules::Copy<double>, rules::Axpby<double>,
                              rules::SumOfSquares<double>, rules::MaxMagnitude<double>>;

struct KernelTable {
  FloatRules rules;
  Conversions<float> conversions;
};

extern const KernelTable kPortableKernels;
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
extern const DoubleRules kDoubleKernels;

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
