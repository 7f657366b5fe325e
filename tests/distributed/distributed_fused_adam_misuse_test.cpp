// Errors, each on every rank: parameters that another rank does not train, and uses that sharding does not support.
#include "tests/distributed/ranks.h"

#include <gtest/gtest.h>

#include <apex_cpp/fp16_utils.h>
#include <apex_cpp/parallel/distributed_data_parallel.h>
#include <apex_cpp/swa_utils.h>

#include <cmath>
#include <string>
#include <utility>

#include "tests/distributed/sharded_support.h"

namespace apex::testing::sharded {
namespace {

// The weights of ranks 0 and 1 would fill buckets of other sizes.
TEST(DistributedFusedAdam, TrainingOtherParametersThanAnotherRankIsAnError) {
  for (const bool overlaps : {true, false}) {
    const Tensors params = make_params(at::kFloat);
    DistributedFusedAdam optimizer(params, small_buckets().overlap_grad_sync(overlaps));
    params[rank() == 1 ? 3 : 5].set_requires_grad(false);
    const std::string message = message_of([&] {
      backward(params, 0, [&](size_t i) { return params[i].requires_grad(); });
      optimizer.step();
    });
    EXPECT_NE(message.find("rank 0: parameter 3, of shape [301]: trained"), std::string::npos) << message;
    EXPECT_NE(message.find("rank 1: parameter 3, of shape [301]: frozen"), std::string::npos) << message;
  }
}

TEST(DistributedFusedAdam, UnfreezingOtherParametersThanAnotherRankIsAnError) {
  const Tensors params = make_params(at::kFloat);
  OneProcess one(params, of_one_process());
  DistributedFusedAdam optimizer(params, small_buckets());
  const auto is_trained = [&](size_t i) { return params[i].requires_grad(); };
  const auto train = [&](int step) {
    backward(params, step, is_trained);
    optimizer.step();
  };
  params[3].set_requires_grad(false);
  for (int step = 0; step < 3; ++step) {
    if (step == 1) {
      params[3].set_requires_grad(rank() == 1);
      const std::string message = message_of([&] { train(100); });
      EXPECT_NE(message.find("rank 1: parameter 3, of shape [301]: unfrozen"), std::string::npos) << message;
      optimizer.zero_grad();
      params[3].set_requires_grad(true);
    }
    train(step);
    Tensors sums = sums_of_grads(params, step);
    if (step == 0) sums[3] = at::Tensor();
    one.step(sums);
    EXPECT_TRUE(same_bytes(params, one.params())) << "step " << step;
  }
}

TEST(DistributedFusedAdam, RejectsUnsupportedUse) {
  const Tensors params = make_params(at::kFloat);
  EXPECT_THROW(DistributedFusedAdam(params, small_buckets().amsgrad(true)), c10::Error);
  EXPECT_THROW(DistributedFusedAdam(params, small_buckets(-1)), c10::ValueError);
  for (const double cap : {0.0, double{INFINITY}, double{NAN}}) {
    EXPECT_THROW(DistributedFusedAdam(params, small_buckets().bucket_cap_mb(cap)), c10::ValueError) << cap;
  }
  EXPECT_THROW(DistributedFusedAdam(params, small_buckets().dtype(at::kDouble)), c10::ValueError);
  EXPECT_THROW(DistributedFusedAdam(params, small_buckets().store_params(false).param_sync_dtype(at::kHalf)), c10::ValueError);
  EXPECT_THROW(DistributedFusedAdam({at::ones({2}, at::kDouble).requires_grad_()}, small_buckets()), c10::TypeError);
  EXPECT_THROW(DistributedFusedAdam({at::ones({4}).slice(0, 0, 4, 2).requires_grad_()}, small_buckets()), c10::ValueError);
  DistributedFusedAdam optimizer(params, small_buckets());
  EXPECT_NE(message_of([&] { DistributedFusedAdam second(params, small_buckets()); }).find("another sharded optimizer"),
            std::string::npos);
  EXPECT_THROW(optimizer.clip_grad_norm(0), c10::ValueError);
  const torch::optim::OptimizerParamGroup of_double(Tensors{at::ones({2}, at::kDouble).requires_grad_()});
  EXPECT_THROW(optimizer.add_param_group(of_double), c10::TypeError);
  EXPECT_EQ(optimizer.param_groups().size(), 1u);
  EXPECT_NE(message_of([&] { fp16_utils::FP16_Optimizer wrapped(optimizer, 128.0); }).find("a sharded optimizer"),
            std::string::npos);
  EXPECT_NE(message_of([&] { swa_utils::ExponentialMovingAverage average(optimizer); }).find("given a sharded optimizer"),
            std::string::npos);
  DistributedFusedAdam moved(std::move(optimizer));
  EXPECT_NE(message_of([&] { optimizer.step(); }).find("moved from"), std::string::npos);
}

// Ranks gather whole buckets, and none has computed its value.
TEST(DistributedFusedAdam, AParameterOutsideOfItsGroupsIsAnErrorUntilItIsFrozen) {
  for (const auto dtype : {at::kFloat, at::kBFloat16}) {
    const Tensors params = make_params(dtype);
    DistributedFusedAdam optimizer(params, small_buckets());
    backward(params, 0);
    optimizer.step();
    const Tensors before = copies_of(params);
    optimizer.param_groups()[0].params().pop_back();
    backward(params, 1);
    EXPECT_NE(message_of([&] { optimizer.step(); }).find("was taken out of its groups"), std::string::npos);
    EXPECT_TRUE(same_bytes(params, before));
    optimizer.zero_grad();
    params.back().requires_grad_(false);
    backward(params, 2, [&](size_t i) { return i + 1 < params.size(); });
    optimizer.step();
    EXPECT_TRUE(same_bytes(params.back(), before.back()));
    EXPECT_FALSE(same_bytes(params.front(), before.front()));
  }
}

TEST(DistributedFusedAdam, AParameterThatWasPutIntoAGroupByHandIsAnError) {
  const Tensors params = make_params(at::kFloat), before = copies_of(params);
  DistributedFusedAdam optimizer(params, small_buckets());
  backward(params, 0);
  optimizer.param_groups()[0].params().push_back(at::ones({2, 7}).requires_grad_());
  const std::string message = message_of([&] { optimizer.step(); });
  EXPECT_NE(message.find("A parameter of shape [2, 7] is in a group"), std::string::npos) << message;
  EXPECT_NE(message.find("was not added by its own add_param_group"), std::string::npos) << message;
  EXPECT_TRUE(same_bytes(params, before));
}

// add_param_group is not virtual.
TEST(DistributedFusedAdam, AGroupThatWasAddedThroughTheBaseClassIsAnErrorBeforeAnythingIsStepped) {
  const Tensors params = make_params(at::kFloat), before = copies_of(params);
  DistributedFusedAdam optimizer(params, small_buckets());
  static_cast<torch::optim::Optimizer&>(optimizer).add_param_group(
      torch::optim::OptimizerParamGroup(Tensors{at::ones({2, 7}).requires_grad_()}));
  backward(params, 0);
  const std::string message = message_of([&] { optimizer.step(); });
  EXPECT_NE(message.find("Call it on the DistributedFusedAdam itself"), std::string::npos) << message;
  EXPECT_EQ(message.find("had updated a part"), std::string::npos) << message;
  EXPECT_TRUE(same_bytes(params, before));
}

// This rank's parts of masters and moments are in the order that the parameter had in memory.
TEST(DistributedFusedAdam, AParameterThatChangesItsMemoryFormatAfterItsFirstPassIsAnError) {
  const at::Tensor param = eighths({4, 3, 2, 5}, 1).requires_grad_();
  DistributedFusedAdam optimizer({param}, small_buckets());
  backward({param}, 0);
  optimizer.step();
  at::Tensor(param).set_data(param.detach().contiguous(at::MemoryFormat::ChannelsLast));
  const std::string message = message_of([&] {
    backward({param}, 1);
    optimizer.step();
  });
  EXPECT_NE(message.find("strides [30, 10, 5, 1] when it was first trained and has [4, 3, 2, 5] and [30, 1, 15, 3] now"),
            std::string::npos)
      << message;
}

TEST(DistributedFusedAdam, AParameterThatIsConvertedAfterItsFirstPassIsAnError) {
  const Tensors params = make_params(at::kFloat);
  DistributedFusedAdam optimizer(params, small_buckets());
  backward(params, 0);
  optimizer.step();
  for (const at::Tensor& param : params) at::Tensor(param).set_data(param.detach().to(at::kHalf));
  const std::string message = message_of([&] {
    backward(params, 1);
    optimizer.step();
  });
  EXPECT_NE(message.find("was Float on cpu when it was first trained and is Half on cpu now"), std::string::npos) << message;
}

TEST(DistributedFusedAdam, TheModelOfADistributedDataParallelIsAnError) {
  torch::nn::Linear net(16, 33);
  const parallel::DistributedDataParallel ddp(net);
  DistributedFusedAdam optimizer(net->parameters(), small_buckets());
  const std::string message = message_of([&] { optimizer.step(); });
  EXPECT_NE(message.find("DistributedDataParallel averages the gradient of parameter 0, of shape [33, 16]"), std::string::npos)
      << message;
}

TEST(DistributedFusedAdam, ParametersThatSetDataTiesAreAnError) {
  const Tensors params = make_params(at::kBFloat16), twins = make_params(at::kBFloat16);
  at::Tensor(twins[3]).set_data(params[3].detach());
  const Tensors tied{params[3], twins[3]};
  const std::string together = message_of([&] { DistributedFusedAdam both(tied, small_buckets()); });
  EXPECT_NE(together.find("Parameter 1, of shape [301], shares memory"), std::string::npos) << together;
  DistributedFusedAdam optimizer(params, small_buckets());
  const torch::optim::OptimizerParamGroup twin(Tensors{twins[3]});
  const std::string added = message_of([&] { optimizer.add_param_group(twin); });
  EXPECT_NE(added.find("shares memory"), std::string::npos) << added;
}

TEST(DistributedFusedAdam, DifferentParametersOrOptionsAreAnErrorThatNamesTheRank) {
  Tensors params = make_params(at::kFloat);
  if (rank() == 1) params[3] = at::ones({302}).requires_grad_();
  const std::string message = message_of([&] { DistributedFusedAdam optimizer(params, small_buckets()); });
  EXPECT_NE(message.find("rank 1 differs from rank 0"), std::string::npos) << message;
  EXPECT_NE(message.find("parameter 3"), std::string::npos) << message;
  const auto options = small_buckets().bucket_cap_mb(rank() == 1 ? 2 : 1);
  EXPECT_NE(message_of([&] { DistributedFusedAdam optimizer(make_params(at::kFloat), options); }).find("bucket_cap_mb 2"),
            std::string::npos);
}

TEST(DistributedFusedAdam, RefusesSparseGradients) {
  const Tensors params = make_params(at::kFloat);
  DistributedFusedAdam optimizer(params, small_buckets());
  params[0].mutable_grad() = at::zeros_like(params[0]).to_sparse();
  EXPECT_NE(message_of([&] { optimizer.step(); }).find("sparse"), std::string::npos);
}

}  // namespace
}  // namespace apex::testing::sharded
