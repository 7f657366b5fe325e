#pragma once

#include "kernels/normalization/formulas.h"
#include "kernels/normalization/normalization.h"

#include <cstdint>

// Tables of loops over one contiguous row of values, one table per instruction set, kind and type. Source files that define a
// table share no inline code with other files (see kernels/cpu/isa.h). All tables give the same bits.
namespace apex::kernels::normalization::cpu {

template <class Real>
struct RowKernels {
  RowStatistics<Real> (*statistics)(const Real* x, int64_t size, Real eps);
  void (*forward)(const Real* x, RowStatistics<Real> row, const Real* weight, const Real* bias, Real* y, int64_t size);
  // Writes x_hat, computed from the input or from the output, and returns the means that `gradients` needs.
  GradMeans<Real> (*means_by_input)(const Real* x, RowStatistics<Real> row, const Real* dy, const Real* weight, Real* x_hat,
                                    int64_t size);
  GradMeans<Real> (*means_by_output)(const Real* y, const Real* divisors, const Real* bias, const Real* dy, const Real* weight,
                                     Real* x_hat, int64_t size);
  // Writes dx; adds dy * x_hat to weight_sums and dy to bias_sums.
  void (*gradients)(const Real* dy, const Real* weight, const Real* x_hat, GradMeans<Real> means, Real inv_std, Real* dx,
                    Real* weight_sums, Real* bias_sums, int64_t size);
};

template <class Real>
struct KindTables {
  RowKernels<Real> layer, rms;
};

struct RowTables {
  KindTables<float> of_float;
  KindTables<double> of_double;
};

extern const RowTables kPortableRows;
extern const RowTables kAvx2Rows;
extern const RowTables kAvx512Rows;

// The driver for CPU tensors. Rows of 16-bit elements are converted into a cache-sized buffer; rows of the arithmetic's own
// type are read and written in place. Results have the same bits at any number of threads and with any instruction set.

void forward(const ForwardCall& call);
void backward(const BackwardCall& call);

}  // namespace apex::kernels::normalization::cpu
