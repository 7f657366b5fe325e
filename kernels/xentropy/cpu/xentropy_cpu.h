#pragma once

#include "kernels/xentropy/formulas.h"
#include "kernels/xentropy/xentropy.h"

#include <cstdint>

// Work on one row of values that stand in memory next to each other, in tables: one for each instruction set. Files that make
// the tables share nothing else with the rest (see kernels/cpu/isa.h). All give the same bits.
namespace apex::kernels::xentropy::cpu {

template <class Real>
struct RowKernels {
  Real (*largest)(const Real* x, int64_t classes);
  // Of exp(x - largest), and of x.
  RowSums (*sums)(const Real* x, Real largest, int64_t classes);
  // dx as if each class were one that is not the label.
  void (*gradients)(const Real* x, Real grad, Real lse, Real other, Real* dx, int64_t classes);
};

struct RowTable {
  RowKernels<float> of_float;
  RowKernels<double> of_double;
};

extern const RowTable kPortableRows;
extern const RowTable kAvx2Rows;
extern const RowTable kAvx512Rows;

}  // namespace apex::kernels::xentropy::cpu

// The driver for CPU tensors: rows are spread over threads.
namespace apex::kernels::xentropy::cpu {

void forward(const ForwardCall& call);
void backward(const BackwardCall& call);

}  // namespace apex::kernels::xentropy::cpu
