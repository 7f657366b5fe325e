#pragma once

#include <cuda_runtime_api.h>

#include "kernels/xentropy/formulas.h"

// Launches on the current device, with raw pointers and plain values only. Stored is the type of the logits.
namespace apex::kernels::xentropy::cuda {

// The type of the arithmetic.
template <class Stored>
struct Arithmetic {
  using Real = float;
};
template <>
struct Arithmetic<double> {
  using Real = double;
};
template <class Stored>
using RealFor = typename Arithmetic<Stored>::Real;

template <class Stored>
struct Args {
  int64_t rows, classes;
  const Stored* logits;
  const int64_t* labels;
  double smoothing;
  int64_t padding;
  RealFor<Stored>* losses;             // written forward
  const RealFor<Stored>* grad_losses;  // read backward
  RealFor<Stored>* log_sum_exp;        // written forward, read backward
  Stored* grad_logits;                 // written backward
};

template <class Stored>
cudaError_t launch_forward(const Args<Stored>& args, cudaStream_t stream);

template <class Stored>
cudaError_t launch_backward(const Args<Stored>& args, cudaStream_t stream);

}  // namespace apex::kernels::xentropy::cuda
