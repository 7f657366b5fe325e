// Optimizers, with and without amp, in CUDA graphs: replayed steps equal eager ones.
#include <apex_cpp/amp.h>
#include <apex_cpp/optimizers.h>
#include <torch/torch.h>

#include "tests/cuda/support.h"

namespace cuda_test {
namespace {

namespace amp = apex::amp;
namespace optimizers = apex::optimizers;
using kernels_test::same_bytes;

// Values that depend on size and seed only.
at::Tensor values(int64_t size, uint64_t seed) {
  torch::manual_seed(seed);
  return kernels_test::random_values(size, at::kFloat);
}

struct Class {
  std::string name;
  std::function<std::unique_ptr<torch::optim::Optimizer>(Tensors)> make;
  std::function<void(torch::optim::Optimizer&, double)> set_rate;  // between replays; undefined if the graph's rate is fixed
};

template <class Opt>
void write_rate(torch::optim::Optimizer& optimizer, double rate) {
  optimizer.param_groups()[0].options().set_lr(rate);
  static_cast<Opt&>(optimizer).update_device_lr();
}

template <class Opt, class Options>
Class with(const std::string& name, const Options& options, void (*set_rate)(torch::optim::Optimizer&, double)) {
  return {name, [options](Tensors params) { return std::make_unique<Opt>(std::move(params), options); }, set_rate};
}

std::vector<Class> classes() {
  using namespace apex::optimizers;
  return {with<FusedSGD>("FusedSGD", FusedSGDOptions(0.1).momentum(0.9), nullptr),
          with<FusedAdagrad>("FusedAdagrad", FusedAdagradOptions(0.1), nullptr),
          with<FusedLARS>("FusedLARS", FusedLARSOptions(0.1).momentum(0.9).trust_coefficient(0.1), nullptr),
          with<FusedLion>("FusedLion", FusedLionOptions(0.1), nullptr),
          with<FusedAdam>("FusedAdam", FusedAdamOptions(0.1).capturable(true), write_rate<FusedAdam>),
          with<FusedAdam>("FusedAdamInt8", FusedAdamOptions(0.1).capturable(true).moment_storage(MomentStorage::int8),
                          write_rate<FusedAdam>),
          with<FusedMixedPrecisionLamb>("FusedMixedPrecisionLamb", FusedMixedPrecisionLambOptions(0.1),
                                        write_rate<FusedMixedPrecisionLamb>)};
}

// Parameters whose gradients stay at the same address.
class Program {
 public:
  explicit Program(const Class& of) : optimizer_(of.make(params_)) {
    for (const at::Tensor& param : params_) param.mutable_grad() = at::ones_like(param);
  }

  void prepare(int number) {
    for (const at::Tensor& param : params_) param.grad().copy_(values(param.numel(), static_cast<uint64_t>(number)));
  }
  void step() { optimizer_->step(); }
  torch::optim::Optimizer& optimizer() { return *optimizer_; }
  Tensors params() const { return on_cpu(params_); }

 private:
  static at::Tensor param(int64_t size) { return values(size, 99).cuda().requires_grad_(); }

  Tensors params_ = {param(1), param(33), param(70001)};
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

class OptimizerGraphs : public OnGpuWith<Class> {};
INSTANTIATE_TEST_SUITE_P(Classes, OptimizerGraphs, ::testing::ValuesIn(classes()),
                         [](const auto& test) { return test.param.name; });

TEST_P(OptimizerGraphs, ReplayTheStepsAfterTheFirst) {
  Program captured(GetParam()), eager(GetParam());
  for (Program* program : {&captured, &eager}) {
    program->prepare(0);
    program->step();
  }
  at::cuda::CUDAGraph graph;
  capture(graph, [&] { captured.step(); });
  for (int number = 1; number < 6; ++number) {
    for (Program* program : {&captured, &eager}) {
      program->prepare(number);
      if (GetParam().set_rate) GetParam().set_rate(program->optimizer(), 0.1 / number);
    }
    graph.replay();
    eager.step();
    ASSERT_TRUE(same_bytes(captured.params(), eager.params())) << number;
  }
}

TEST_P(OptimizerGraphs, CapturingTheFirstStepIsAnError) {
  Program program(GetParam());
  program.prepare(0);
  const Tensors before = program.params();
  at::cuda::CUDAGraph graph;
  std::string message;
  capture(graph, [&] {
    try {
      program.step();
    } catch (const c10::Error& error) {
      message = error.what_without_backtrace();
    }
  });
  EXPECT_NE(message.find("Run one step before the capture"), std::string::npos) << message;
  EXPECT_TRUE(same_bytes(program.params(), before));
  program.step();
  EXPECT_FALSE(same_bytes(program.params(), before)) << "and can be taken after it";
}

// A training step under amp with a fixed loss scale: forward, scale_loss, backward and step.
class AmpProgram {
 public:
  AmpProgram() {
    torch::manual_seed(5);
    torch::nn::Linear net(64, 32);
    net->to(at::kCUDA);
    optimizers::FusedAdam original(net->parameters(), optimizers::FusedAdamOptions(0.01).capturable(true));
    auto [model, optimizer] = amp::initialize(net, original, "O2", amp::InitializeOptions().loss_scale(128.0).verbosity(0));
    step_ = [model = std::move(model), optimizer = std::make_shared<decltype(optimizer)>(std::move(optimizer)),
             input = input_]() mutable {
      const at::Tensor loss = model->forward(input).square().mean();
      {
        auto scaled_loss = amp::scale_loss(loss, *optimizer);
        scaled_loss.backward();
      }
      optimizer->step();
      optimizer->zero_grad();
    };
    params_ = net->parameters();
  }

  void prepare(int number) { input_.copy_(values(input_.numel(), static_cast<uint64_t>(number)).view_as(input_)); }
  void step() { step_(); }
  Tensors params() const { return on_cpu(params_); }

 private:
  at::Tensor input_ = at::zeros({16, 64}, at::kCUDA);
  Tensors params_;
  std::function<void()> step_;
};

class AmpGraphs : public OnGpu {};

TEST_F(AmpGraphs, ReplayWholeTrainingStepsWithAFixedLossScale) {
  AmpProgram captured, eager;
  // Not on the default stream: backward runs on the forward pass's stream, and graphs cannot capture the default one.
  {
    const c10::cuda::CUDAStreamGuard guard(c10::cuda::getStreamFromPool());
    for (int number = 0; number < 3; ++number) {
      for (AmpProgram* program : {&captured, &eager}) {
        program->prepare(number);
        program->step();
      }
    }
  }
  at::cuda::CUDAGraph graph;
  capture(graph, [&] { captured.step(); });
  for (int number = 3; number < 6; ++number) {
    for (AmpProgram* program : {&captured, &eager}) program->prepare(number);
    graph.replay();
    eager.step();
    ASSERT_TRUE(same_bytes(captured.params(), eager.params())) << number;
  }
}

}  // namespace
}  // namespace cuda_test
