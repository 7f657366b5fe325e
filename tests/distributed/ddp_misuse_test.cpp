// Misuse of DistributedDataParallel is an error with the reason on every rank.
#include <apex_cpp/parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/amp/support.h"
#include "tests/distributed/ddp_models.h"
#include "tests/distributed/ddp_support.h"
#include "tests/distributed/ranks.h"

namespace apex::parallel {
namespace {

TEST(Ddp, ContradictoryOptionsAreErrors_DDP_01) {
  WholeNumbers net;
  const auto message_with = [&](const Options& options) {
    return message_of<c10::ValueError>([&] { DistributedDataParallel ddp(net, options); });
  };
  EXPECT_TRUE(contains(message_with(Options().shared_param(true)), "shared_param is no longer an option"));
  EXPECT_TRUE(contains(message_with(Options().num_allreduce_streams(2).delay_allreduce(true)), "num_allreduce_streams is 2"));
  EXPECT_TRUE(contains(message_with(Options().delay_allreduce(true).allreduce_trigger_params({net->fc1->bias})),
                       "allreduce_trigger_params have no effect"));
  EXPECT_TRUE(contains(message_with(Options().allreduce_communicators({default_process_group()})),
                       "there are 1 allreduce_communicators and num_allreduce_streams is 1"));
  EXPECT_TRUE(contains(message_with(Options().message_size(0)), "message_size must be positive, got 0"));
  EXPECT_TRUE(contains(message_with(Options().gradient_predivide_factor(0)), "gradient_predivide_factor must be positive"));
}

TEST(Ddp, NullModelsAreErrors) {
  WholeNumbers holder = nullptr;
  std::shared_ptr<torch::nn::LinearImpl> pointer;
  const std::string no_model = " was given a null model";
  EXPECT_TRUE(contains(message_of([&] { DistributedDataParallel ddp(holder); }), "DistributedDataParallel" + no_model));
  EXPECT_TRUE(contains(message_of([&] { DistributedDataParallel ddp(pointer); }), "DistributedDataParallel" + no_model));
  EXPECT_TRUE(contains(message_of([&] { Reducer reducer(holder); }), "Reducer" + no_model));
  EXPECT_TRUE(contains(message_of([&] { Reducer reducer(pointer); }), "Reducer" + no_model));
  EXPECT_TRUE(contains(message_of([&] { convert_syncbn_model(holder); }), "convert_syncbn_model" + no_model));
  EXPECT_TRUE(contains(message_of([&] { convert_syncbn_model(pointer); }), "convert_syncbn_model" + no_model));
}

TEST(Ddp, UseAfterAMoveIsAnError) {
  WholeNumbers net;
  auto ddp = DistributedDataParallel(net);
  auto moved = std::move(ddp);
  const std::vector<std::function<void()>> uses = {[&] { ddp(part_of_batch(0)); }, [&] { ddp->forward(part_of_batch(0)); },
                                                   [&] { const auto guard = ddp.no_sync(); }, [&] { ddp.disable_allreduce(); },
                                                   [&] { ddp.allreduce_buffers(); }};
  for (size_t i = 0; i < uses.size(); ++i) {
    const std::string message = message_of(uses[i]);
    EXPECT_TRUE(contains(message, "DistributedDataParallel was moved from")) << i << ": " << message;
  }
  moved(part_of_batch(0)).sum().backward();
  expect_equal(gradients_of(*net), mean_of(joined_gradients()));
}

TEST(Ddp, DifferentOptionsAreAnErrorOnEachRank) {
  const auto message_with = [](const Options& options) {
    WholeNumbers net;
    return message_of([&] { DistributedDataParallel ddp(net, rank() == 1 ? options : Options()); });
  };
  EXPECT_TRUE(contains(message_with(Options().message_size(7)), "  rank 0: message_size 10000000\n  rank 1: message_size 7"));
  EXPECT_TRUE(contains(message_with(Options().delay_allreduce(true)), "rank 1: delay_allreduce 1"));
  EXPECT_TRUE(contains(message_with(Options().allreduce_always_fp32(true)), "rank 1: allreduce_always_fp32 1"));
  EXPECT_TRUE(contains(message_with(Options().num_allreduce_streams(2)), "rank 1: num_allreduce_streams 2"));
  EXPECT_TRUE(contains(message_with(Options().gradient_average(false)), "rank 1: gradient_average 0"));
  EXPECT_TRUE(contains(message_with(Options().gradient_predivide_factor(2)), "rank 1: gradient_predivide_factor 2"));
  EXPECT_TRUE(contains(message_with(Options().broadcast_buffers(false)), "rank 1: broadcast_buffers 0"));
}

TEST(Ddp, WrappingAParameterTwiceIsAnError) {
  WholeNumbers net;
  {
    auto ddp = DistributedDataParallel(net);
    EXPECT_TRUE(contains(message_of([&] { DistributedDataParallel again(net->fc2); }),
                         "the parameter 'weight', which is already in a DistributedDataParallel"));
    ddp(part_of_batch(0)).sum().backward();
    expect_equal(gradients_of(*net), mean_of(joined_gradients()));
  }
  net->zero_grad();
  auto ddp = DistributedDataParallel(net);
  ddp(part_of_batch(1)).sum().backward();
  expect_equal(gradients_of(*net), mean_of(joined_gradients(1)));
}

TEST(Ddp, DifferentModelsAreAnErrorOnEachRank) {
  const auto message_for = [](const std::function<void(WholeNumbers&)>& spoil) {
    WholeNumbers net;
    if (rank() == 1) spoil(net);
    return message_of([&] { DistributedDataParallel ddp(net); });
  };
  const std::string shape = message_for([](WholeNumbers& net) { net->fc1->bias.set_data(torch::zeros({5})); });
  EXPECT_TRUE(contains(shape, "rank 1")) << shape;
  EXPECT_TRUE(contains(shape, "'fc1.bias', shape [5]"));
  const std::string dtype = message_for([](WholeNumbers& net) { net->to(torch::kHalf); });
  EXPECT_TRUE(contains(dtype, "opt levels")) << dtype;
  EXPECT_TRUE(contains(dtype, "Half"));
  const std::string count = message_for([](WholeNumbers& net) { net->register_parameter("more", torch::zeros({1})); });
  EXPECT_TRUE(contains(count, "'more'")) << count;
  const std::string trained = message_for([](WholeNumbers& net) { net->fc2->bias.requires_grad_(false); });
  EXPECT_TRUE(contains(trained, "'fc2.bias'")) << trained;
  WholeNumbers net;
  net->register_buffer("more", torch::zeros({1}, rank() == 1 ? torch::kMeta : torch::kCPU));
  const std::string device = message_of([&] { DistributedDataParallel ddp(net); });
  EXPECT_TRUE(contains(device, "'more', shape [1], strides [1], Float, on meta")) << device;
}

TEST(Ddp, AParameterThatCannotBeSummedIsAnErrorThatNamesIt) {
  WholeNumbers net;
  net->register_parameter("phase", torch::zeros({2}, torch::kComplexFloat));
  const std::string message = message_of([&] { DistributedDataParallel ddp(net); });
  EXPECT_TRUE(contains(message, "'phase' in ComplexFloat")) << message;
  net->named_parameters()["phase"].requires_grad_(false);
  DistributedDataParallel ddp(net);
}

}  // namespace
}  // namespace apex::parallel
