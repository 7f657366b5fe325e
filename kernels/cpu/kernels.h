#pragma once

#include <c10/core/ScalarType.h>

#include <type_traits>

#include "kernels/cpu/kernel_table.h"

// Kernels for blocks of values, in the instruction set that is in use.
namespace apex::kernels::cpu {

const KernelTable& current_kernels();

// How values of `dtype` become Real, and back. nullptr for Real itself.
template <class Real>
Reader<Real> reader(at::ScalarType dtype);
template <class Real>
Writer<Real> writer(at::ScalarType dtype);

// A writer for model copies that an update over `numel` elements makes: past the caches if that is more than they hold.
template <class Real>
Writer<Real> copy_writer(at::ScalarType dtype, int64_t numel);

// The kernel of a rule. Those for float64 are portable ones.
template <class Rule>
RunBlock<Rule> block_kernel() {
  if constexpr (std::is_same_v<typename Rule::Real, double>) {
    return static_cast<const Slot<Rule>&>(kDoubleKernels).run;
  } else {
    return static_cast<const Slot<Rule>&>(current_kernels().rules).run;
  }
}

}  // namespace apex::kernels::cpu
