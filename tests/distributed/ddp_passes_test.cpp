// Several backward passes of DistributedDataParallel: accumulation, retained buffers, failing passes.
#include <apex_cpp/parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/amp/support.h"
#include "tests/distributed/ddp_models.h"
#include "tests/distributed/ddp_support.h"
#include "tests/distributed/ranks.h"

namespace apex::parallel {
namespace {

TEST(Ddp, PassesAccumulate) {
  WholeNumbers net;
  auto ddp = DistributedDataParallel(net, Options().message_size(8));
  ddp(part_of_batch(0)).sum().backward();
  const auto first = gradients_of(*net);
  ddp(part_of_batch(1)).sum().backward();
  const auto second = mean_of(joined_gradients(1));
  // The existing mean is averaged again: n equal values, times 1/n. Whole numbers over 2 or 4 are exact. With three ranks, each
  // sum of mean and gradient, below 256, is rounded by 2^-17, two sums of them, below 1024, by 2^-15, of which a third counts;
  // 1/3, and the product with it, below 256, by 2^-17 each. On the other side a product and a sum, below 256: 2^-17 each.
  const double bound = world_size() == 3 ? 0x1p-17 + 2 * 0x1p-15 / 3 + 4 * 0x1p-17 : 0;
  for (size_t i = 0; i < first.size(); ++i) {
    ASSERT_LT(net->parameters()[i].grad().abs().max().item<double>(), 256);
    EXPECT_TRUE(torch::allclose(net->parameters()[i].grad(), first[i] + second[i], 0, bound));
  }
}

/// The weight is the sum of two parameters, so autograd gives both the same gradient buffer.
struct TwinsImpl : torch::nn::Module {
  TwinsImpl() {
    flat = register_parameter("flat", torch::arange(8, torch::kFloat));
    wide = register_parameter("wide", torch::arange(8, torch::kFloat).view({2, 4}));
  }
  Tensor forward(const Tensor& x) { return torch::linear(x, flat.view({2, 4}) + wide.view({2, 4})); }
  Tensor flat, wide;
};
TORCH_MODULE(Twins);

TEST(Ddp, GradientsThatShareMemoryAreReducedOnce) {
  Twins one;
  one(joined_batch(0)).sum().backward();
  ASSERT_TRUE(one->flat.grad().is_alias_of(one->wide.grad()));
  const auto want = mean_of(gradients_of(*one));
  const auto every_option = {Options(), Options().message_size(1), Options().delay_allreduce(true),
                             Options().gradient_predivide_factor(2), Options().retain_allreduce_buffers(true)};
  for (const auto& options : every_option) {
    Twins net;
    auto ddp = DistributedDataParallel(net, options);
    for (int step = 0; step < 2; ++step) {
      net->zero_grad();
      ddp(part_of_batch(0)).sum().backward();
      expect_equal(gradients_of(*net), want);
      EXPECT_FALSE(net->flat.grad().is_same(net->wide.grad()));
    }
  }
}

TEST(Ddp, NoSyncLeavesSumsForTheNextPass_BUG_24) {
  for (const auto& options : {Options(), Options().message_size(1), Options().delay_allreduce(true)}) {
    WholeNumbers net;
    auto ddp = DistributedDataParallel(net, options);
    for (int step = 0; step < 2; ++step) {
      net->zero_grad();
      {
        auto guard = ddp.no_sync();
        ddp(part_of_batch(0)).sum().backward();
        WholeNumbers alone;
        alone(part_of_batch(0)).sum().backward();
        expect_equal(gradients_of(*net), gradients_of(*alone));
        const auto inner = ddp.no_sync();
        ddp(part_of_batch(1)).sum().backward();
      }
      ddp(part_of_batch(2)).sum().backward();
      auto sums = joined_gradients(0);
      for (int pass : {1, 2}) {
        const auto more = joined_gradients(pass);
        for (size_t i = 0; i < sums.size(); ++i) sums[i] += more[i];
      }
      expect_equal(gradients_of(*net), mean_of(sums));
    }
  }
}

// The gradients of tasks that are trained one after the other.
TEST(Ddp, PassesWithinNoSyncMayUseOtherParameters_BUG_24) {
  for (const auto& options :
       {Options(), Options().message_size(1), Options().delay_allreduce(true), Options().retain_allreduce_buffers(true)}) {
    TwoBranches net;
    auto ddp = DistributedDataParallel(net, options);
    for (int step = 0; step < 3; ++step) {
      net->zero_grad();
      {
        const auto guard = ddp.no_sync();
        ddp->first(part_of_batch(step)).sum().backward();
      }
      ddp->second(part_of_batch(step)).sum().backward();
      TwoBranches one;
      one(joined_batch(step)).backward();
      expect_equal(gradients_of(*net), mean_of(gradients_of(*one)));
    }
  }
}

TEST(Ddp, AllreduceCanBeSwitchedOff_DDP_09) {
  WholeNumbers net;
  auto ddp = DistributedDataParallel(net);
  ddp.disable_allreduce();
  ddp.disable_allreduce();
  ddp(part_of_batch(0)).sum().backward();
  WholeNumbers alone;
  alone(part_of_batch(0)).sum().backward();
  expect_equal(gradients_of(*net), gradients_of(*alone));
  ddp.enable_allreduce();
  net->zero_grad();
  ddp(part_of_batch(1)).sum().backward();
  expect_equal(gradients_of(*net), mean_of(joined_gradients(1)));
}

TEST(Ddp, RetainedBuffersAreTheGradients_DDP_08) {
  for (const bool widened : {false, true}) {
    WholeNumbers net;
    auto ddp =
        DistributedDataParallel(net, Options().message_size(8).retain_allreduce_buffers(true).allreduce_always_fp32(widened));
    EXPECT_TRUE(ddp.allreduce_buffers().empty());
    ddp(part_of_batch(0)).sum().backward();
    expect_equal(gradients_of(*net), mean_of(joined_gradients(0)));
    for (const Tensor& buffer : ddp.allreduce_buffers()) buffer.fill_(5);
    for (const Tensor& param : net->parameters()) EXPECT_TRUE(param.grad().eq(5).all().item<bool>());
    const std::string message = message_of([&] { net(part_of_batch(1)).sum().backward(); });
    EXPECT_TRUE(contains(message, "retained allreduce buffers that are filled already"));
    net->zero_grad();
    ddp(part_of_batch(1)).sum().backward();
    expect_equal(gradients_of(*net), mean_of(joined_gradients(1)));
  }
}

TEST(Ddp, RetainedBuffersStayUntilTheNextBackwardPass_DDP_08) {
  WholeNumbers net;
  auto ddp = DistributedDataParallel(net, Options().retain_allreduce_buffers(true));
  ddp(part_of_batch(0)).sum().backward();
  const Tensor first = ddp.allreduce_buffers().at(0);
  EXPECT_FALSE(ddp->parameters().empty());
  const Tensor loss = ddp(part_of_batch(1)).sum();
  ASSERT_EQ(ddp.allreduce_buffers().size(), 1u);
  EXPECT_TRUE(ddp.allreduce_buffers()[0].is_same(first));
  for (const Tensor& param : net->parameters()) EXPECT_TRUE(param.grad().is_alias_of(first));
  net->zero_grad();
  loss.register_hook([&](const Tensor&) -> void { EXPECT_EQ(ddp.allreduce_buffers().size(), 1u); });
  loss.backward();
  ASSERT_EQ(ddp.allreduce_buffers().size(), 1u);
  EXPECT_FALSE(ddp.allreduce_buffers()[0].is_alias_of(first));
  expect_equal(gradients_of(*net), mean_of(joined_gradients(1)));
}

// Optimizer::zero_grad calls detach_ on gradients, which autograd's views refuse.
TEST(Ddp, RetainedGradientsTrainTheSame_DDP_08) {
  std::vector<std::vector<Tensor>> trained;
  for (const bool retains : {false, true}) {
    WholeNumbers net;
    torch::optim::SGD sgd(net->parameters(), 0.125);
    auto ddp = DistributedDataParallel(net, Options().message_size(8).retain_allreduce_buffers(retains));
    for (int pass = 0; pass < 4; ++pass) {
      sgd.zero_grad(/*set_to_none=*/pass % 2 == 0);
      ddp(part_of_batch(pass)).sum().backward();
      sgd.step();
    }
    trained.push_back(net->parameters());
  }
  expect_equal(trained[1], trained[0]);
}

// A gradient that somebody still holds keeps its values.
TEST(Ddp, RetainedGradientsAreNotOverwrittenByTheNextPass_DDP_08) {
  WholeNumbers net;
  auto ddp = DistributedDataParallel(net, Options().retain_allreduce_buffers(true));
  ddp(part_of_batch(0)).sum().backward();
  const Tensor held = net->fc1->weight.grad();
  net->zero_grad();
  ddp(part_of_batch(1)).sum().backward();
  EXPECT_TRUE(held.equal(mean_of({joined_gradients(0)[0]})[0]));
}

TEST(Ddp, WorksAfterABackwardPassThatThrew) {
  WholeNumbers net;
  auto ddp = DistributedDataParallel(net);
  ddp(part_of_batch(0)).sum().backward();
  Tensor x = part_of_batch(1).requires_grad_();
  Tensor hidden = x * 1;
  hidden.register_hook([](const Tensor&) -> void { throw std::runtime_error("thrown in a hook"); });
  EXPECT_TRUE(contains(message_of([&] { (ddp(part_of_batch(1)).sum() + hidden.sum()).backward(); }), "thrown in a hook"));
  default_process_group()->barrier()->wait();
  net->zero_grad();
  ddp(part_of_batch(2)).sum().backward();
  expect_equal(gradients_of(*net), mean_of(joined_gradients(2)));
}

TEST(Ddp, NestedBackwardIsAnError) {
  TwoBranches net;
  auto ddp = DistributedDataParallel(net);
  const Tensor inner = net->second(torch::ones({1, 4})).sum();
  const Tensor outer = net->first(torch::ones({1, 4}));
  outer.register_hook([&](const Tensor&) -> void { inner.backward(); });
  EXPECT_TRUE(contains(message_of([&] { outer.sum().backward(); }), "gave no gradient to 'first.weight'"));
}

}  // namespace
}  // namespace apex::parallel
