#pragma once
// Helpers shared by the benchmarks of whole optimizer steps.
#include <apex_cpp/optimizers/fused_adam.h>

#include "../kernels/compare.h"

namespace bench::step {

using kernels::Case;
using kernels::Contender;
using kernels::Tensors;

/// The tensors of a model at O2 or O5 with Adam: 16-bit gradients and parameters, float32 masters and states.
struct Training {
  Training(const Case& shapes, at::ScalarType dtype, at::Device device);

  Tensors grads, masters, exp_avgs, exp_avg_sqs, model;
  at::Tensor found_inf, inv_scale;
};

constexpr double kLr = 1e-4, kDecay = 0.01, kBeta1 = 0.9, kBeta2 = 0.999, kEps = 1e-8, kMaxNorm = 1.0;
/// 1 / loss scale.
constexpr double kInvScale = 1.0 / 1024;
constexpr int kStep = 10;

/// Two passes over memory: check and norm; then unscale, clip, update and copy.
Contender fused_order(const Training& training);
/// Apex's sequence with apex_cpp's kernels: unscale into float32 gradients, norm, clip and update, copy.
Contender apex_order(const Training& training);
/// Torch's operators: cast, check and unscale, clip if `clips`, fused update, copy.
Contender torch_order(const Training& training, bool clips);
/// Steps of apex::optimizers::FusedAdam under amp, with clipping; either materializes master gradients or uses the fused
/// update. The loss scale is fixed: gradients are checked only with `skip_nonfinite`, and then the host reads the result.
Contender fused_adam(const Training& training, const char* level, bool materialize, bool skip_nonfinite = false);
/// The fused update of bfloat16 parameters at O5 with other storages of masters and moments than float32.
Contender fused_adam(const Training& training, apex::optimizers::MasterStorage masters,
                     apex::optimizers::MomentStorage moments);

}  // namespace bench::step
