#pragma once

#include <functional>

#include "kernels/optimizers.h"
#include "tests/kernels/bounded.h"
#include "tests/kernels/support.h"

// Every variant of every optimizer update, with an independent implementation of its formula in exact arithmetic.
namespace kernels_test {

// All memory that an update reads or writes. Lists that a variant does not use are empty.
struct Problem {
  Tensors grads, params, first, second, models;
  at::Tensor norms;  // NovoGrad's running norms

  std::vector<Tensors*> lists() { return {&grads, &params, &first, &second, &models}; }
  Tensors all();
  bool splits() const;  // whether the models are remainders of the params
  Problem copy() const;
};

// The dtypes of a problem's lists. `models` is kDouble if there are none.
struct Storage {
  at::ScalarType grad, param, state, model;

  bool has_models() const { return model != at::kDouble; }
  std::string name() const;
};

// The tested mixes of dtypes: gradients in every dtype; updated params in float32, with or without a 16-bit model copy, or in
// 16 bits; state in float32 or in the params' dtype.
const std::vector<Storage>& storages();

// The values of one element of a problem, which the reference updates.
struct Element {
  Bounded grad, param, first, second;
  bool half_param = false;  // the parameter is stored in float16
};
using Elements = std::vector<Element>;

constexpr double kGradScale = 1.0 / 24;  // not a power of two
constexpr double kLr = 0.05;

struct Case {
  std::string name;
  size_t states;                                                    // number of state lists
  std::function<void(Problem&, const at::Tensor& found_inf)> step;  // the tested update
  std::function<void(Elements&, double norm)> reference;            // the exact update of one tensor
  bool has_norms = false;
  bool writes_grads = false;
  bool signed_state = false;  // the first state holds means of gradients, of both signs and about as large
};

const std::vector<Case>& cases();

// Tensors of `sizes`, `offset` elements after a multiple of 64 bytes. States that hold squares are positive.
Problem make_problem(const Case& update, const Storage& storage, const std::vector<int64_t>& sizes, int64_t offset = 0);

// The exact values of tensor `index` before an update.
Elements elements_of(const Problem& problem, size_t index);

}  // namespace kernels_test
