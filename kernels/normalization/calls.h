#pragma once

#include "kernels/normalization/normalization.h"

// What the drivers are given: allocated outputs, and nothing to do where there are no elements.
namespace apex::kernels::normalization {

struct ForwardCall {
  NormKind kind;
  NormShape shape;
  at::Tensor input;
  NormAffine affine;
  double eps;
  NormForward out;
};

struct BackwardCall {
  NormKind kind;
  NormShape shape;
  at::Tensor grad_output;
  NormSaved saved;
  NormAffine affine;
  NormGrads out;
};

}  // namespace apex::kernels::normalization
