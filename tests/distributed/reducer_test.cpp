// Reducer, flat_dist_call and flatten, which DistributedDataParallel also uses.
#include <apex_cpp/apex_C.h>
#include <apex_cpp/parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/distributed/ddp_models.h"
#include "tests/distributed/ddp_support.h"
#include "tests/distributed/ranks.h"

namespace apex::parallel {
namespace {

using torch::Tensor;

TEST(FlatDistCall, CallsOncePerDtypeAndAverages_PAR_01) {
  std::vector<Tensor> tensors{torch::full({2, 2}, rank(), torch::kFloat), torch::full({3}, rank(), torch::kDouble),
                              torch::full({1}, 2 * rank(), torch::kFloat)};
  int calls = 0;
  const FlatCall mean = all_reduce_mean();
  flat_dist_call(tensors, [&](const Tensor& flat) { ++calls, mean(flat); });
  EXPECT_EQ(calls, 2);
  const double expected = (world_size() - 1) / 2.0;
  EXPECT_TRUE(tensors[0].eq(expected).all().item<bool>());
  EXPECT_TRUE(tensors[1].eq(expected).all().item<bool>());
  EXPECT_TRUE(tensors[2].eq(2 * expected).all().item<bool>());
}

TEST(Reducer, AveragesItsArguments_PAR_02) {
  WholeNumbers net;
  {
    const torch::NoGradGuard no_grad;
    net->fc1->weight.add_(rank());
  }
  Reducer of_module(net);
  expect_equal(net->parameters(), WholeNumbers()->parameters());
  net(part_of_batch(0)).sum().backward();
  of_module.reduce();
  auto expected = joined_gradients(0);
  for (Tensor& each : expected) each = each / world_size();
  expect_equal(gradients_of(*net), expected);

  const Tensor grad = torch::full({3}, rank(), torch::kFloat);
  Reducer(std::vector<Tensor>{grad}).reduce();
  EXPECT_TRUE(grad.eq((world_size() - 1) / 2.0).all().item<bool>());
}

TEST(Flatten, RoundTrips_PAR_03) {
  const std::vector<Tensor> tensors{torch::arange(6).view({2, 3}), torch::empty({0}, torch::kLong), torch::tensor(7)};
  const Tensor flat = apex_C::flatten(tensors);
  EXPECT_TRUE(flat.equal(torch::tensor({0, 1, 2, 3, 4, 5, 7})));
  expect_equal(apex_C::unflatten(flat, tensors), tensors);
  const Tensor empty = torch::empty({0, 8}, torch::kLong);
  EXPECT_EQ(apex_C::unflatten(flat, {tensors[0], empty, tensors[2]})[1].sizes(), empty.sizes());
}

TEST(Flatten, CopiesATensorThatIsAlone) {
  const Tensor tensor = torch::ones({2, 3});
  apex_C::flatten({tensor}).zero_();
  EXPECT_TRUE(tensor.equal(torch::ones({2, 3})));
  EXPECT_THROW(apex_C::flatten({tensor, tensor.to(torch::kLong)}), c10::Error);
}

// A queue that grows later.
TEST(Flatten, ModelsMayHaveEmptyBuffers) {
  WholeNumbers net;
  net->register_buffer("queue", torch::zeros({0, 8}));
  const DistributedDataParallel ddp(net);
  EXPECT_EQ(net->named_buffers()["queue"].sizes(), torch::IntArrayRef({0, 8}));
}

// An expanded one gets memory of its own, a sparse one stays as it is.
TEST(Flatten, ModelsMayHaveExpandedAndSparseBuffers) {
  WholeNumbers net;
  net->register_buffer("mask", torch::full({1, 3}, rank(), torch::kLong).expand({2, 3}));
  net->register_buffer("counts", torch::full({3}, rank() + 1).to_sparse());
  net->register_buffer("rows", torch::eye(3).to_sparse_csr());
  {
    DistributedDataParallel ddp(net);
    EXPECT_TRUE(net->named_buffers()["mask"].equal(torch::zeros({2, 3}, torch::kLong))) << "rank 0's";
    EXPECT_TRUE(net->named_buffers()["counts"].to_dense().equal(torch::full({3}, rank() + 1)));
    ddp(part_of_batch(0)).sum().backward();
    EXPECT_TRUE(net->fc1->weight.grad().defined());
  }
  Reducer reducer(net);
}

}  // namespace
}  // namespace apex::parallel
