#pragma once

#include "kernels/rules/adagrad.h"
#include "kernels/rules/adam.h"
#include "kernels/rules/lamb.h"
#include "kernels/rules/larc.h"
#include "kernels/rules/lars.h"
#include "kernels/rules/lion.h"
#include "kernels/rules/norms.h"
#include "kernels/rules/novograd.h"
#include "kernels/rules/rule.h"
#include "kernels/rules/scale.h"
#include "kernels/rules/schedule_free.h"
#include "kernels/rules/sgd.h"

#include <cstdint>
#include <type_traits>

// Tables of functions over blocks of values, one table per instruction set. A source file compiled for the instruction set
// defines the table and exports nothing else: otherwise the linker could use its code where another instruction set is meant.
namespace apex::kernels::cpu {

// How the lists that a kernel takes directly are stored: in the rule's Real, or in 16 bits. pass.h converts other dtypes. The
// list behind a rule's own may hold remainders of bfloat16 parameters. `like_first` stands for no such list, beside a parameter
// that is stored as the first list is, and others that are not.
enum class Storage { real, half, bfloat16, remainder16, remainder8, like_first };
constexpr int kStorages = 3, kCopyStorages = 6;

// How many elements ahead of their use loops prefetch memory, for lists that are read and lists that are only written. 0: no
// software prefetch.
struct Ahead {
  int64_t read, written;
};

// A range of elements that a rule is applied to. data[i] is the address of its i-th value, followed by the address for copies
// of the parameter, if wanted. sums[s] is the row of rules::kLanes lanes of its s-th sum; element i is added to lane i %
// kLanes.
template <class Rule>
struct Block {
  void* data[rules::kValues<Rule> + 1];
  rules::SumReal<Rule>* sums[Rule::kSums + 1];
  int64_t size;
  Ahead ahead;
  bool starts_sums;  // sums start from 0, whatever the lanes hold; needs a size of at least kLanes
  bool past_caches;  // writes copies by non-temporal stores, which do not fetch the cache line first
};

template <class Rule>
using RunBlock = void (*)(const Rule& rule, const Block<Rule>& block);

// Where the moments of a block are stored in 8 bits (rules/quantized.h): the block's data are codes, from the first element of
// a group on, and these the exponents of the scales. Element i of the block is rounded by the random number of key + i.
struct Codes {
  uint8_t *mean_exponents, *square_exponents;
  uint32_t key;
};

template <class Rule>
using RunCodedBlock = void (*)(const Rule& rule, const Block<Rule>& block, const Codes& codes);

// The sum of a chunk: folds the first `count` lanes of a row, a power of two, like rules::fold_lanes and chunk_sum.
template <class Rule>
using FoldLanes = double (*)(rules::SumReal<Rule>* lanes, int count);

// Converts `size` stored elements to values, or values to stored elements.
template <class Real>
using Reader = void (*)(const void* stored, Real* values, int64_t size);
template <class Real>
using Writer = void (*)(const Real* values, void* stored, int64_t size);

// The kernels of a rule, by storage of its first value, storage of its other values, and storage of copies of its second value,
// the parameter (Storage::real: no copies), or of its remainders, or like_first. nullptr: there is no such kernel.
template <class Rule>
struct Slot {
  RunBlock<Rule> run[kStorages][kStorages][kCopyStorages];
  // With moments in 8 bits, if the rule has moments, and a float32 parameter: by storage of the first value and of copies.
  RunCodedBlock<Rule> run_coded[kStorages][kCopyStorages];
  FoldLanes<Rule> fold;
};

template <class... Rules>
struct RuleTable : Slot<Rules>... {};

template <class Real>
struct Conversions {
  Reader<Real> read_half, read_bfloat16;
  Writer<Real> write_half, write_bfloat16;
  void (*fence)();  // makes non-temporal stores visible to other threads
};

using FloatRules =
    RuleTable<rules::Scale<float>, rules::CheckFinite<float>, rules::Copy<float>, rules::Axpby<float>,
              rules::SumOfSquares<float>, rules::MaxMagnitude<float>, rules::PlainSgd, rules::MomentumSgd, rules::Adam,
              rules::Adagrad, rules::NovoGrad, rules::LambStage1, rules::LambStage2, rules::LambSums, rules::LambFromMoments,
              rules::Larc, rules::Lion, rules::Lars, rules::LarsSums, rules::ScheduleFreeAdamW, rules::Lerp>;
using DoubleRules = RuleTable<rules::Scale<double>, rules::CheckFinite<double>, rules::Copy<double>, rules::Axpby<double>,
                              rules::SumOfSquares<double>, rules::MaxMagnitude<double>>;

struct KernelTable {
  FloatRules rules;
  Conversions<float> conversions;
};

extern const KernelTable kPortableKernels;
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
extern const KernelTable kNeonKernels;
extern const DoubleRules kDoubleKernels;

// The instruction sets that kernels are compiled for. All give the same bits. `portable` is the reference, one value at a time.
// Of x86's sets each includes the ones before it; kernels without a variant for avx512_bf16 use the avx512 variant. neon is the
// set of every 64-bit ARM processor; loops that compilers vectorise have no variant for it, because `portable` is compiled for
// it.
enum class Isa { portable, avx2, avx512, avx512_bf16, neon };
constexpr Isa kEveryIsa[] = {Isa::portable, Isa::avx2, Isa::avx512, Isa::avx512_bf16, Isa::neon};

const char* name_of(Isa isa);

// Whether this build has kernels for `isa` and this machine can run them.
bool is_available(Isa isa);

// The instruction set that kernels use: the last available one, unless a test has set another.
Isa current_isa();

// Selects the table for the current instruction set.
template <const auto& portable, const auto& avx2, const auto& avx512, const auto& avx512_bf16 = avx512,
          const auto& neon = portable>
const auto& of_current_isa() {
#ifdef APEX_CPP_NEON_KERNELS
  if (current_isa() == Isa::neon) return neon;
#endif
#ifdef APEX_CPP_X86_KERNELS
  switch (current_isa()) {
    case Isa::portable:
    case Isa::neon:
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

// The part of a table for the type Real.
template <class Real, class Table>
const auto& of_real(const Table& table) {
  if constexpr (std::is_same_v<Real, float>) {
    return table.of_float;
  } else {
    return table.of_double;
  }
}

// For tests. Throws c10::Error if `isa` is not available. Must not be called while kernels run.
void set_current_isa(Isa isa);

}  // namespace apex::kernels::cpu
