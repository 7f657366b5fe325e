#pragma once

#include <cstdint>

#include "kernels/rules/adagrad.h"
#include "kernels/rules/adam.h"
#include "kernels/rules/axpby.h"
#include "kernels/rules/lamb.h"
#include "kernels/rules/larc.h"
#include "kernels/rules/norms.h"
#include "kernels/rules/novograd.h"
#include "kernels/rules/scale.h"
#include "kernels/rules/sgd.h"

// Functions over blocks of values, in tables: one table for each instruction set, made by a source file that is compiled for
// it. Such files share nothing else with the rest: code for one instruction set must not stand in for the code of another.
namespace apex::kernels::cpu {

// Applies a rule to `size` values. values[i] is where the rule's i-th value is read from and written to, sums[s] the row of
// lanes that its s-th sum is added to, one for each value.
template <class Rule>
using RunBlock = void (*)(const Rule& rule, typename Rule::Real* const* values, rules::SumReal<Rule>* const* sums,
                          int64_t size);

// Converts `size` stored elements to values, or values to stored elements.
template <class Real>
using Reader = void (*)(const void* stored, Real* values, int64_t size);
template <class Real>
using Writer = void (*)(const Real* values, void* stored, int64_t size);

template <class Rule>
struct Slot {
  RunBlock<Rule> run;
};

template <class... Rules>
struct RuleTable : Slot<Rules>... {};

template <class Real>
struct Conversions {
  Reader<Real> read_half, read_bfloat16;
  Writer<Real> write_half, write_bfloat16;
  // Past the caches, for memory that is not read again soon: no line is fetched only to be overwritten.
  // Other threads see what was written after a fence.
  Writer<Real> stream_half, stream_bfloat16;
  void (*fence)();
};

using FloatRules = RuleTable<rules::Scale<float>, rules::Axpby<float>, rules::SumOfSquares<float>, rules::MaxMagnitude<float>,
                             rules::PlainSgd, rules::MomentumSgd, rules::Adam, rules::Adagrad, rules::NovoGrad,
                             rules::LambStage1, rules::LambStage2, rules::Larc>;
using DoubleRules =
    RuleTable<rules::Scale<double>, rules::Axpby<double>, rules::SumOfSquares<double>, rules::MaxMagnitude<double>>;

struct KernelTable {
  FloatRules rules;
  Conversions<float> conversions;
};

extern const KernelTable kPortableKernels;
extern const KernelTable kAvx2Kernels;
extern const KernelTable kAvx512Kernels;
extern const DoubleRules kDoubleKernels;

}  // namespace apex::kernels::cpu
