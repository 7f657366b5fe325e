// Compiles every rule and conversion for the device, with raw pointers and without LibTorch. Nothing calls these kernels.
#include <cstdint>
#include <utility>

#include "kernels/rules/adagrad.h"
#include "kernels/rules/adam.h"
#include "kernels/rules/axpby.h"
#include "kernels/rules/convert.h"
#include "kernels/rules/lamb.h"
#include "kernels/rules/lanes.h"
#include "kernels/rules/larc.h"
#include "kernels/rules/norms.h"
#include "kernels/rules/novograd.h"
#include "kernels/rules/scale.h"
#include "kernels/rules/sgd.h"
#include "kernels/rules/update_scale.h"

namespace apex::kernels::cuda {

template <class Rule, size_t... I>
__device__ void apply(const Rule& rule, typename Rule::Real* values, std::index_sequence<I...>) {
  rule(values[I]...);
}

template <class Rule>
__global__ void apply_rule(Rule rule, typename Rule::Real* values) {
  apply(rule, values, std::make_index_sequence<rules::kValues<Rule> + Rule::kSums>());
  if constexpr (Rule::kSums != 0) rules::fold_lanes<typename Rule::Fold>(values);
}

__global__ void update_scale(rules::ScaleUpdate rule, rules::LossScale* state, int found_inf) {
  *state = rule(*state, found_inf != 0);
}

// What is computed once per tensor.
__global__ void rates(double* values) {
  values[0] = rules::blended_norm(values[0], values[1], 0.99, true);
  values[1] = rules::trusted_rate(0.1, values[1], values[2]);
  values[2] = rules::larc_rate(0.02, values[1], values[2], 0.1, 1e-8, 0.1, true);
}

template <class Real, class Storage>
__global__ void convert(const Storage* in, Storage* out) {
  *out = rules::store<Storage>(rules::load<Real>(*in));
}

template __global__ void apply_rule(rules::Scale<float>, float*);
template __global__ void apply_rule(rules::Scale<double>, double*);
template __global__ void apply_rule(rules::Axpby<float>, float*);
template __global__ void apply_rule(rules::Axpby<double>, double*);
template __global__ void apply_rule(rules::SumOfSquares<float>, float*);
template __global__ void apply_rule(rules::SumOfSquares<double>, double*);
template __global__ void apply_rule(rules::MaxMagnitude<float>, float*);
template __global__ void apply_rule(rules::MaxMagnitude<double>, double*);
template __global__ void apply_rule(rules::PlainSgd, float*);
template __global__ void apply_rule(rules::MomentumSgd, float*);
template __global__ void apply_rule(rules::Adam, float*);
template __global__ void apply_rule(rules::Adagrad, float*);
template __global__ void apply_rule(rules::NovoGrad, float*);
template __global__ void apply_rule(rules::LambStage1, float*);
template __global__ void apply_rule(rules::LambStage2, float*);
template __global__ void apply_rule(rules::Larc, float*);
template __global__ void convert<float, rules::Half>(const rules::Half*, rules::Half*);
template __global__ void convert<float, rules::BFloat16>(const rules::BFloat16*, rules::BFloat16*);
template __global__ void convert<double, float>(const float*, float*);

}  // namespace apex::kernels::cuda
