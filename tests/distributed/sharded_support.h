#pragma once

#include <torch/torch.h>

#include <cstdint>
#include <string>
#include <vector>

#include <apex_cpp/optimizers/fused_adam.h>
#include <apex_cpp/parallel/distributed_fused_adam.h>

#include "tests/optimizers/support.h"

// Parameters and gradients that every rank can compute for all ranks.
namespace apex::testing::sharded {

using parallel::DistributedFusedAdam;
using parallel::DistributedFusedAdamOptions;
using ::test::copies_of;
using ::test::load;
using ::test::message_of;
using ::test::same_bytes;
using ::test::saved;
using Tensors = std::vector<at::Tensor>;

/// Multiples of 1/8 in [-1, 1], whose sums over ranks are exact in every dtype.
at::Tensor eighths(at::IntArrayRef sizes, int64_t seed, at::ScalarType dtype = at::kFloat);

/// Leaf parameters: one element, odd counts, no elements, and channels-last.
Tensors make_params(at::ScalarType dtype, int64_t seed = 1);

/// The gradient of parameter `index` on `rank` in `step`.
at::Tensor grad_of(const at::Tensor& param, size_t index, int rank, int step);
/// The sum of these gradients over all ranks, float32.
at::Tensor grad_sum_of(const at::Tensor& param, size_t index, int step);
Tensors sums_of_grads(const Tensors& params, int step);

/// Options with buckets of 0.001 MiB, which hold a few parameters each.
DistributedFusedAdamOptions small_buckets(double lr = 0.01);
/// The equivalent options for one process.
optimizers::FusedAdamOptions of_one_process(double lr = 0.01);

/// A backward pass that adds this rank's gradient of `step`, times `factor`, to each parameter for which `wants(index)` is
/// true.
template <class Wants>
void backward(const Tensors& params, int step, const Wants& wants, double factor = 1) {
  at::Tensor loss;
  for (size_t i = 0; i < params.size(); ++i) {
    if (!wants(i)) continue;
    const at::Tensor part = (params[i] * (grad_of(params[i], i, rank(), step) * factor).to(params[i].scalar_type())).sum();
    loss = loss.defined() ? loss + part : part;
  }
  if (loss.defined()) loss.backward();
}
inline void backward(const Tensors& params, int step, double factor = 1) {
  backward(
      params, step, [](size_t) { return true; }, factor);
}

/// The single-process reference: FusedAdam over float32 masters with float32 gradients.
class OneProcess {
 public:
  OneProcess(const Tensors& params, const optimizers::FusedAdamOptions& options);
  /// Skips undefined gradients.
  void step(const Tensors& grads);
  /// The parameters in the model's dtype.
  Tensors params() const;
  const Tensors& masters() const { return masters_; }
  optimizers::FusedAdam& optimizer() { return optimizer_; }

 private:
  at::ScalarType dtype_;
  Tensors masters_;
  optimizers::FusedAdam optimizer_;
};

/// True if the tensors have the same bits on all ranks.
bool same_on_all_ranks(const Tensors& tensors);

/// Groups of the first 1, 2, ... ranks; null if this rank is not a member.
std::vector<parallel::ProcessGroup> first_ranks();

/// Rank 0's text, on every rank.
std::string from_rank_0(const std::string& text);

}  // namespace apex::testing::sharded
