#pragma once

#include <vector>

#include "tests/kernels/optimizer_cases.h"

// Problems whose parameters are stored as bfloat16 and remainders, or whose moments are stored in 8 bits.
namespace kernels_test {

// The updates that take remainders.
std::vector<Case> cases_with_remainders();

// The problem with its float32 parameters as bfloat16 and remainders, `offset` elements after the start of an allocation.
Problem split_problem(const Problem& exact, at::ScalarType remainder, int64_t offset);

// Makes gradients and states so small that float32 squares of them are subnormal: divisions and roots on a GPU are then
// repeated.
void make_tiny(Problem& problem);

// The tensors of a step of Adam, with moments as values or as codes.
struct Coded {
  Tensors grads, params, means, squares, models;
  std::vector<Tensors*> lists() { return {&grads, &params, &means, &squares, &models}; }
  Tensors all() const;
  Coded copy() const;
};

// What stands beside the parameters: nothing, a bfloat16 copy, or a remainder. With remainders they are bfloat16. `rounded`
// ones are alone and have 16 bits, as the gradients if these have; all others are float32.
enum class Kind { alone, rounded, copied, split16, split8 };
constexpr Kind kKinds[] = {Kind::alone, Kind::rounded, Kind::copied, Kind::split16, Kind::split8};

// With random codes, also next to the boundaries of groups, packs, blocks and spans.
Coded make_coded(Kind kind, at::ScalarType grad,
                 const std::vector<int64_t>& sizes = {0, 1, 7, 31, 32, 33, 63, 65, 511, 513, 1030, 8191, 8193});

// The settings of a step of Adam with weight decay.
apex::kernels::AdamSettings adam_settings(int64_t step);
void adam(const Coded& on, const apex::kernels::AdamSettings& settings, const at::Tensor& found_inf = clear_flag());
void adam(const Coded& on, int64_t step = 5, const at::Tensor& found_inf = clear_flag());

// Elements [begin, begin + size) of tensor `index`, with copies of the codes; begin is a multiple of 32.
Coded part_of(const Coded& whole, size_t index, int64_t begin, int64_t size);

}  // namespace kernels_test
