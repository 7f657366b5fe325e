#pragma once

#include <c10/core/ScalarType.h>

#include <type_traits>

#include "kernels/cpu/kernel_table.h"

// Kernels for blocks of values, in the instruction set that is in use.
namespace apex::kernels::cpu {

const KernelTable& current_kernels();

// What this machine walks memory fastest with; `in_place`: where the first list is replaced by one that is written.
Ahead fetched_ahead(bool in_place);

// How values of `dtype` become Real, and back. nullptr for Real itself.
template <class Real>
Reader<Real> reader(at::ScalarType dtype);
template <class Real>
Writer<Real> writer(at::ScalarType dtype);

// How a rule that computes in float32 has `dtype` in memory.
Storage storage_of(at::ScalarType dtype);

// The kernels of a rule. Those for float64 are portable ones.
template <class Rule>
const Slot<Rule>& kernels_of() {
  if constexpr (std::is_same_v<typename Rule::Real, double>) {
    return kDoubleKernels;
  } else {
    return current_kernels().rules;
  }
}

}  // namespace apex::kernels::cpu
