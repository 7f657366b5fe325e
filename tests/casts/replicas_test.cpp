// Models with casts in torch::nn::parallel.
#include <torch/nn/parallel/data_parallel.h>

#include <string>
#include <thread>

#include "tests/amp/support.h"
#include "tests/needs_gpus.h"

namespace apex::test {
namespace {

using torch::Tensor;

struct Replicas : AmpTest, ::testing::WithParamInterface<const char*> {};

TEST_P(Replicas, CastLikeTheModel) {
  Replicated model;
  auto net = amp::initialize(model, GetParam(), quiet());
  const std::vector<torch::Device> devices{torch::kCPU, torch::kCPU};
  auto replicas = torch::nn::parallel::replicate(net.ptr(), devices);
  ASSERT_EQ(replicas.size(), 2u);
  std::vector<Tensor> outputs(2);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < 2; ++i) {
    threads.emplace_back([&, i] { outputs[i] = replicas[i]->forward(features()); });
  }
  for (auto& thread : threads) thread.join();
  const Tensor whole = net->forward(features());
  EXPECT_NE(std::string(GetParam()) == "O1", whole.dtype() == torch::kFloat);
  for (const auto& output : outputs) EXPECT_TRUE(torch::equal(output, whole));
  // Gradients reach the model's own parameters, summed over the replicas.
  (outputs[0].sum() + outputs[1].sum()).backward();
  const Tensor twice = model->fc->bias.grad().clone();
  model->zero_grad();
  net->forward(features()).sum().backward();
  EXPECT_TRUE(torch::equal(twice, 2 * model->fc->bias.grad()));
}

INSTANTIATE_TEST_SUITE_P(Levels, Replicas, ::testing::Values("O0", "O1", "O2"), [](const auto& test) { return test.param; });

TEST_F(AmpTest, ReplicasFollowFloat32FunctionsAndFloat32Modules) {
  using Names = std::vector<std::string>;
  using Types = std::vector<at::ScalarType>;
  const std::vector<torch::Device> devices{torch::kCPU, torch::kCPU};
  const auto types_with = [&](const amp::InitializeOptions& options) {
    amp::reset();
    Replicated model;
    auto net = amp::initialize(model, "O1", options);
    auto replicas = torch::nn::parallel::replicate(net.ptr(), devices);
    return Types{net->forward(features()).scalar_type(), replicas[1]->forward(features()).scalar_type()};
  };
  EXPECT_EQ(types_with(quiet().float32_functions(Names{"aten::linear", "aten::addmm"})), (Types{torch::kFloat, torch::kFloat}));
  EXPECT_EQ(types_with(quiet().float32_modules(Names{"fc"})), (Types{torch::kFloat, torch::kFloat}));
}

TEST_F(AmpTest, DataParallelRunsAHandle) {
  Replicated model;
  auto net = amp::initialize(model, "O1", quiet());
  const auto devices = std::vector<torch::Device>{torch::kCPU};
  EXPECT_EQ(torch::nn::parallel::data_parallel(net, features(), devices, torch::Device(torch::kCPU)).dtype(), torch::kHalf);
}

TEST_F(AmpTest, DataParallelOnTwoGpus) {
  APEX_CPP_NEEDS_GPUS(2);
  Replicated model;
  model->to(torch::kCUDA);
  auto net = amp::initialize(model, "O1", quiet());
  const Tensor output = torch::nn::parallel::data_parallel(net, torch::randn({8, 6}, torch::kCUDA));
  EXPECT_EQ(output.dtype(), torch::kHalf);
}

}  // namespace
}  // namespace apex::test
