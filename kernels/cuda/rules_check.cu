// Compiles every rule for the device, with raw pointers and without LibTorch. Nothing calls these kernels.
#include <cstdint>

#include "kernels/rules/axpby.h"
#include "kernels/rules/convert.h"
#include "kernels/rules/finite.h"
#include "kernels/rules/l2norm.h"
#include "kernels/rules/scale.h"

namespace apex::kernels::cuda {

template <class Math, class Storage>
__global__ void apply_rules(const Storage* in, Storage* out, Math factor, int64_t size, int* found_inf) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= size) return;
  const Math value = rules::load<Math>(in[i]);
  if (!rules::is_finite(value)) *found_inf = 1;
  const Math scaled = rules::scale(value, factor);
  out[i] = rules::store<Storage>(rules::axpby(factor, scaled, factor, value));
}

template <class Math, class Storage>
__global__ void sum_squares(const Storage* in, Math* sum, int64_t size) {
  Math lanes[rules::kLanes] = {};
  for (int64_t i = 0; i < size; ++i)
    lanes[i % rules::kLanes] = rules::add_square(lanes[i % rules::kLanes], rules::load<Math>(in[i]));
  *sum = rules::fold_lanes(lanes);
}

template __global__ void apply_rules<float, rules::Half>(const rules::Half*, rules::Half*, float, int64_t, int*);
template __global__ void apply_rules<float, rules::BFloat16>(const rules::BFloat16*, rules::BFloat16*, float, int64_t, int*);
template __global__ void apply_rules<float, float>(const float*, float*, float, int64_t, int*);
template __global__ void apply_rules<double, double>(const double*, double*, double, int64_t, int*);
template __global__ void sum_squares<float, rules::Half>(const rules::Half*, float*, int64_t);
template __global__ void sum_squares<float, rules::BFloat16>(const rules::BFloat16*, float*, int64_t);
template __global__ void sum_squares<float, float>(const float*, float*, int64_t);
template __global__ void sum_squares<double, double>(const double*, double*, int64_t);

}  // namespace apex::kernels::cuda
