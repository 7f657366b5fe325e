// torch::nn::parallel::data_parallel with the handle and with the original model (BUG-04, BUG-20). LibTorch scatters batches
// only to GPUs; its handling of replicas, one per thread, is tested on the CPU.
#include <apex_cpp/amp.h>
#include <apex_cpp/optimizers.h>
#include <gtest/gtest.h>
#include <torch/nn/parallel/data_parallel.h>
#include <torch/torch.h>

#include <mutex>
#include <set>
#include <thread>

#include "tests/needs_gpus.h"

namespace torch::nn::parallel {

// The part of data_parallel between scattering and gathering.
template <typename ModuleType>
std::vector<Tensor> on_replicas(ModuleType module, const std::vector<Tensor>& parts) {
  const std::vector<Device> devices(parts.size(), Device(kCPU));
  auto replicas = replicate(module, devices);
  return parallel_apply(replicas, parts, devices);
}

}  // namespace torch::nn::parallel

namespace apex::test {
namespace {

class TwoThreads {
 public:
  TwoThreads() : before_(at::get_num_threads()) { at::set_num_threads(2); }
  ~TwoThreads() { at::set_num_threads(before_); }

 private:
  int before_;
};

struct PerceptronImpl : torch::nn::Cloneable<PerceptronImpl> {
  PerceptronImpl() { reset(); }
  void reset() override {
    first = register_module("first", torch::nn::Linear(8, 16));
    norm = register_module("norm", torch::nn::BatchNorm1d(16));
    last = register_module("last", torch::nn::Linear(16, 4));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    {
      const std::lock_guard<std::mutex> lock(mutex());
      threads().insert(std::this_thread::get_id());
    }
    return last->forward(norm->forward(first->forward(x)).relu().exp());
  }
  static std::mutex& mutex() {
    static std::mutex instance;
    return instance;
  }
  static std::set<std::thread::id>& threads() {
    static std::set<std::thread::id> instance;
    return instance;
  }
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Perceptron);

std::vector<torch::Tensor> parts() {
  torch::manual_seed(3);
  return {torch::randn({6, 8}), torch::randn({6, 8}), torch::randn({4, 8})};
}

std::vector<torch::Tensor> grads_of(torch::nn::Module& module) {
  std::vector<torch::Tensor> grads;
  for (auto& parameter : module.parameters()) {
    grads.push_back(parameter.grad().to(torch::kFloat).clone());
    parameter.mutable_grad().reset();
  }
  return grads;
}

std::vector<torch::Tensor> one_after_another(Perceptron& model, const std::vector<torch::Tensor>& inputs) {
  std::vector<torch::Tensor> outputs;
  for (const auto& input : inputs) outputs.push_back(model->forward(input));
  return outputs;
}

torch::Tensor sum_of(const std::vector<torch::Tensor>& outputs) {
  torch::Tensor sum = torch::zeros({});
  for (const auto& output : outputs) sum = sum + output.to(torch::kFloat).pow(2).mean();
  return sum;
}

// One of two threads may sum a product in another order than both threads together. An FP32 sum of 16 terms, whose magnitudes
// add up to about 3, then differs by a few roundings of 2^-24 of that. 16-bit outputs may be neighbours: BF16 numbers, 2^-7
// apart.
void expect_close(const std::vector<torch::Tensor>& actual, const std::vector<torch::Tensor>& expected) {
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(actual[i].scalar_type(), expected[i].scalar_type()) << i;
    const double last_place = expected[i].scalar_type() == torch::kFloat ? 1e-6 : 1e-2;
    EXPECT_TRUE(actual[i].allclose(expected[i], last_place, last_place)) << i;
  }
}

class DataParallelAt : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override { PerceptronImpl::threads().clear(); }
  void TearDown() override { amp::reset(); }
  amp::OptLevel level() const { return amp::OptLevel(GetParam()); }
  bool casts_operators() const { return std::string(GetParam()) == "O1" || std::string(GetParam()) == "O4"; }
  // The two sums of three replicas' gradients are rounded to the parameter's dtype, in an order that autograd chooses, here and
  // in the expected gradients: four roundings of partial sums up to twice the result, 8 * 2^-8 for BF16 and 8 * 2^-11 for FP16.
  // Terms near 0.1 may cancel in the result, so a tenth of that is allowed absolutely. FP32 gradients come from three sums of
  // up to 16 terms, each in another order, whose magnitudes add up to ten times the result: 10 * 48 * 2^-24, and where they
  // cancel, 48 * 2^-24 of 1.
  double bound() const {
    if (level() == amp::OptLevel("O0")) return 3e-5;
    return std::string(GetParam()) >= "O4" ? 3e-2 : 5e-3;
  }

  const TwoThreads two_threads_;
  amp::InitializeOptions quiet_ = amp::InitializeOptions().verbosity(0).loss_scale(1.0);
};

TEST_P(DataParallelAt, ReplicasOfAHandleCastLikeItAndReturnItGradients) {
  Perceptron model;
  torch::optim::SGD sgd(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, sgd, level(), quiet_);
  std::vector<torch::Tensor> expected;
  for (const auto& part : parts()) expected.push_back(net->forward(part));
  sum_of(expected).backward();
  const auto expected_grads = grads_of(*net);
  const auto outputs = torch::nn::parallel::on_replicas(net, parts());
  EXPECT_GE(PerceptronImpl::threads().size(), 2);
  expect_close(outputs, expected);
  {
    auto loss = sum_of(outputs);
    auto scaled_loss = amp::scale_loss(loss, opt);
    sum_of(outputs).backward();
  }
  for (size_t i = 0; i < expected_grads.size(); ++i) {
    const auto arrived = amp::master_params(opt)[i].grad();
    ASSERT_TRUE(arrived.defined());
    const auto difference = (arrived.to(torch::kFloat) - expected_grads[i]).abs().max();
    EXPECT_TRUE(arrived.to(torch::kFloat).allclose(expected_grads[i], bound(), bound() * 0.1)) << i << ": " << difference;
  }
  const auto before = net->last->bias.clone();
  opt.step();
  EXPECT_FALSE(net->last->bias.equal(before));
}

TEST_P(DataParallelAt, ReplicasOfTheOriginalCastLikeIt) {
  if (!casts_operators()) GTEST_SKIP() << "the original's outputs are 16-bit at this level: use the handle";
  Perceptron model;
  torch::optim::SGD sgd(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, sgd, level(), quiet_);
  const auto expected = one_after_another(model, parts());
  EXPECT_NE(expected[0].scalar_type(), torch::kFloat);
  const auto outputs = torch::nn::parallel::on_replicas(model, parts());
  EXPECT_GE(PerceptronImpl::threads().size(), 2);
  expect_close(outputs, expected);
  sum_of(outputs).backward();
  for (const auto& parameter : model->parameters()) EXPECT_TRUE(parameter.grad().defined());
}

TEST_P(DataParallelAt, WorkerThreadsCastOnlyWhileReplicasExist) {
  if (!casts_operators()) GTEST_SKIP() << "at this level workers cast within a handle's forward alone";
  Perceptron model;
  auto net = amp::initialize(model, level(), quiet_);
  torch::nn::parallel::on_replicas(model, {torch::randn({6, 8}), torch::randn({6, 8})});
  std::vector<torch::Dtype> types(2, torch::kFloat);
  const auto matrix = torch::ones({2, 2});
  at::parallel_for(0, 2, 1, [&](int64_t begin, int64_t) {
    if (begin == 1) types[1] = matrix.mm(matrix).scalar_type();
  });
  EXPECT_EQ(types[1], torch::kFloat);
}

TEST_P(DataParallelAt, ParametersMayBeOnAGpuThatIsNotTheCurrentOne) {  // BUG-20
  APEX_CPP_NEEDS_GPUS(2);
  const torch::Device second(torch::kCUDA, 1);
  Perceptron model;
  model->to(second);
  optimizers::FusedAdam adam(model->parameters());
  auto [net, opt] = amp::initialize(model, adam, level(), quiet_);
  auto loss = net->forward(torch::randn({8, 8}, second)).to(torch::kFloat).pow(2).mean();
  {
    auto scaled_loss = amp::scale_loss(loss, opt);
    scaled_loss.backward();
  }
  const auto before = net->last->bias.clone();
  opt.step();
  EXPECT_FALSE(net->last->bias.equal(before));
}

INSTANTIATE_TEST_SUITE_P(Levels, DataParallelAt, ::testing::Values("O0", "O1", "O2", "O3", "O4", "O5", "O6"));

}  // namespace
}  // namespace apex::test
