#pragma once

#include "kernels/xentropy/formulas.h"
#include "kernels/xentropy/xentropy.h"

#include <cstdint>

// Tables of loops over one contiguous row of values, one table per instruction set. Source files that define a table share no
// inline code with other files (see kernels/cpu/isa.h). All tables give the same bits.
namespace apex::kernels::xentropy::cpu {

template <class Real>
struct RowKernels {
  Real (*largest)(const Real* x, int64_t classes);
  // Sums of exp(x - largest) and of x.
  RowSums (*sums)(const Real* x, Real largest, int64_t classes);
  // Writes dx as if no class were the label.
  void (*gradients)(const Real* x, Real grad, Real lse, Real other, Real* dx, int64_t classes);
};

struct RowTable {
  RowKernels<float> of_float;
  RowKernels<double> of_double;
};

extern const RowTable kPortableRows;
extern const RowTable kAvx2Rows;
extern const RowTable kAvx512Rows;

// The driver for CPU tensors. Threads divide the rows.

void forward(const ForwardCall& call);
void backward(const BackwardCall& call);

}  // namespace apex::kernels::xentropy::cpu
