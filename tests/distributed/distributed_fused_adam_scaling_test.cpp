// The norm of sharded gradients, clipping by it, and GradScaler around it.
#include <gtest/gtest.h>

#include <apex_cpp/amp/grad_scaler.h>

#include <cmath>
#include <limits>

#include "tests/distributed/ranks.h"
#include "tests/distributed/sharded_support.h"

namespace apex::testing::sharded {
namespace {

TEST(DistributedFusedAdamScaling, ClipsByTheNormOverAllRanks) {
  const Tensors params = make_params(at::kFloat);
  OneProcess one(params, of_one_process());
  DistributedFusedAdam optimizer(params, small_buckets());
  backward(params, 0);
  Tensors sums = sums_of_grads(params, 0);
  double squares = 0;
  for (const auto& sum : sums) squares += sum.to(at::kDouble).square().sum().item<double>();
  const double norm = std::sqrt(squares);
  // Each rank's norm is within 2.5 units of 2^-24, and so is their total; its square root is rounded once more.
  EXPECT_NEAR(optimizer.grad_norm(), norm, norm * 4 * std::exp2(-24));
  const double before = optimizer.grad_norm();
  EXPECT_EQ(optimizer.clip_grad_norm(0.5 * norm), before);
  EXPECT_NEAR(optimizer.grad_norm(), 0.5 * norm, 0.5 * norm * 1e-6);
  optimizer.step();
  for (auto& sum : sums) sum.mul_(0.5);
  one.step(sums);
  // Adam's first step is lr * sign(g), up to eps = 1e-8 beside |g| >= 1/16 and rounding.
  for (size_t i = 0; i < params.size(); ++i) EXPECT_TRUE(at::allclose(params[i], one.params()[i], 0, 1e-6));
}

TEST(DistributedFusedAdamScaling, ClippingBelowTheLimitChangesNoBit) {
  const Tensors params = make_params(at::kFloat);
  OneProcess one(params, of_one_process());
  DistributedFusedAdam optimizer(params, small_buckets());
  backward(params, 0);
  optimizer.clip_grad_norm(1e6);
  optimizer.step();
  one.step(sums_of_grads(params, 0));
  EXPECT_TRUE(same_bytes(params, one.params()));
}

TEST(DistributedFusedAdamScaling, WithGradScalerAllRanksSkipWhenOneOverflows) {
  const Tensors params = make_params(at::kHalf);
  OneProcess one(params, of_one_process());
  DistributedFusedAdam optimizer(params, small_buckets());
  amp::GradScaler scaler("cpu", /*init_scale=*/1024);
  for (int step = 0; step < 5; ++step) {
    scaler.scale(at::ones({}));  // creates the scale
    const bool overflows = step == 2;
    const double scale = scaler.get_scale();
    backward(params, step, overflows && rank() == world_size() - 1 ? std::numeric_limits<double>::infinity() : scale);
    if (step == 3) scaler.unscale_(optimizer);
    const Tensors before = copies_of(params);
    scaler.step(optimizer);
    scaler.update();
    if (overflows) {
      EXPECT_TRUE(same_bytes(params, before));
      EXPECT_EQ(scaler.get_scale(), scale / 2);
    } else {
      one.step(sums_of_grads(params, step));
      EXPECT_EQ(scaler.get_scale(), scale);
    }
  }
  EXPECT_EQ(optimizer.steps_taken(), 4);
  EXPECT_TRUE(same_bytes(params, one.params()));
}

// Parameter 1 has one element, which belongs to one rank; the sums of the others are finite.
TEST(DistributedFusedAdamScaling, AnOverflowInOneRanksPartIsFoundOnAll) {
  const Tensors params = make_params(at::kFloat);
  DistributedFusedAdam optimizer(params, small_buckets());
  (params[1] * std::numeric_limits<double>::infinity()).sum().backward();
  EXPECT_EQ(optimizer.grad_shards()->found_inf().item<float>(), 1);
  EXPECT_EQ(optimizer.grad_norm(), std::numeric_limits<double>::infinity());
}

// The sums stay infinite after the second pass.
TEST(DistributedFusedAdamScaling, OnlyPassesThatAddInfOrNaNHaveOverflowed) {
  const Tensors params = make_params(at::kFloat);
  DistributedFusedAdam optimizer(params, small_buckets());
  const auto shards = optimizer.grad_shards();
  for (const bool overflows : {false, true, false, true}) {
    shards->begin_pass(/*held=*/false, /*watched=*/true);
    backward(params, 0, overflows && rank() == 0 ? std::numeric_limits<double>::infinity() : 1.0);
    shards->end_pass(1.0);
    EXPECT_EQ(shards->pass_overflowed(), overflows);
  }
}

TEST(DistributedFusedAdamScaling, NormAndClippingAreThoseOfUnscaledGradientsAfterUnscale_) {
  const Tensors params = make_params(at::kFloat);
  OneProcess one(params, of_one_process());
  DistributedFusedAdam optimizer(params, small_buckets());
  amp::GradScaler scaler("cpu", /*init_scale=*/1024);
  scaler.scale(at::ones({}));
  backward(params, 0, 1024.0);
  const double scaled = optimizer.grad_norm();
  scaler.unscale_(optimizer);
  EXPECT_EQ(optimizer.grad_norm(), scaled / 1024);  // exact, because 1024 is a power of two
  EXPECT_EQ(optimizer.clip_grad_norm(2 * scaled / 1024), scaled / 1024);
  scaler.step(optimizer);
  one.step(sums_of_grads(params, 0));
  EXPECT_TRUE(same_bytes(params, one.params()));
}

}  // namespace
}  // namespace apex::testing::sharded
