// What the end of a backward pass and a fused step allocate once training runs. LibTorch's CPU allocator reports every tensor.
#include <apex_cpp/optimizers.h>
#include <c10/core/Allocator.h>
#include <c10/util/ThreadLocalDebugInfo.h>

#include "tests/amp/support.h"

namespace apex::test {
namespace {

class AllocatedTensors : public c10::MemoryReportingInfoBase {
 public:
  void reportMemoryUsage(void*, int64_t size, size_t, size_t, c10::Device) override {
    if (size <= 0) return;  // freed
    count += 1;
    bytes += size;
  }
  bool memoryProfilingEnabled() const override { return true; }
  int64_t count = 0, bytes = 0;
};

struct DeepImpl : torch::nn::Module {
  explicit DeepImpl(int depth) {
    for (int i = 0; i < depth; ++i) layers->push_back(torch::nn::Linear(64, 64));
    register_module("layers", layers);
  }
  torch::Tensor forward(const torch::Tensor& x) { return layers->forward(x); }
  torch::nn::Sequential layers;
};
TORCH_MODULE(Deep);

/// What a step of a network of so many layers allocates after the last of its backward passes: where amp unscales gradients,
/// and in opt.step().
template <class Optimizer, class Options>
AllocatedTensors allocated_by_a_step(const std::string& level, int depth, const Options& options, int passes = 1) {
  torch::manual_seed(1);
  Deep model(depth);
  Optimizer optimizer(model->parameters(), options);
  if constexpr (std::is_same_v<Optimizer, optimizers::FusedScheduleFreeAdamW>) optimizer.train();
  auto [net, opt] = amp::initialize(model, optimizer, level, quiet());
  const auto tensors = std::make_shared<AllocatedTensors>();
  constexpr int kSteps = 6;  // the first ones allocate state
  for (int step = 1; step <= kSteps; ++step) {
    opt.zero_grad();
    std::unique_ptr<amp::ScaledLoss> scaled;
    for (int pass = 0; pass < passes; ++pass) {
      scaled.reset();  // ends the block before
      scaled = std::make_unique<amp::ScaledLoss>(amp::scale_loss(net->forward(torch::ones({4, 64})).square().mean(), opt));
      scaled->backward();
    }
    const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, step == kSteps ? tensors : nullptr);
    scaled.reset();
    opt.step();
  }
  return *tensors;
}

class Allocations : public AmpTest, public ::testing::WithParamInterface<std::string> {
 protected:
  template <class Optimizer, class Options>
  void expect_none(const Options& options) {
    EXPECT_EQ((allocated_by_a_step<Optimizer>(GetParam(), 8, options).count), 0);
  }

  /// Sums that the kernels reduce: as many tensors for any network, each with at most a double for each parameter and one for
  /// all.
  template <class Optimizer, class Options>
  void expect_sums_alone(const Options& options) {
    const auto few = allocated_by_a_step<Optimizer>(GetParam(), 2, options);
    const auto many = allocated_by_a_step<Optimizer>(GetParam(), 32, options);
    EXPECT_GT(few.count, 0);
    EXPECT_EQ(few.count, many.count);
    EXPECT_LE(many.bytes, many.count * (2 * 32 + 1) * static_cast<int64_t>(sizeof(double)));
  }
};

TEST_P(Allocations, AStepWithoutNormsAllocatesNoTensor) {
  using namespace optimizers;
  expect_none<FusedAdam>(FusedAdamOptions(1e-4));
  expect_none<FusedSGD>(FusedSGDOptions(1e-4).momentum(0.9));
  expect_none<FusedAdagrad>(FusedAdagradOptions(1e-4));
  expect_none<FusedLion>(FusedLionOptions(1e-4));
  expect_none<FusedScheduleFreeAdamW>(FusedScheduleFreeAdamWOptions(1e-4));
}

TEST_P(Allocations, AStepWithNormsAllocatesTheirSums) {
  using namespace optimizers;
  expect_sums_alone<FusedLAMB>(FusedLAMBOptions(1e-4));
  expect_sums_alone<FusedNovoGrad>(FusedNovoGradOptions(1e-4));
}

INSTANTIATE_TEST_SUITE_P(All, Allocations, ::testing::Values("O0", "O1", "O2", "O4", "O5", "O6"),
                         [](const auto& test) { return test.param; });

class AllocationsOfPasses : public AmpTest {};

// In the fused order the sums of passes are checked, too.
TEST_F(AllocationsOfPasses, AnAccumulatingPassAllocatesNoTensor) {
  const auto options = optimizers::FusedAdamOptions(1e-4).materialize_master_grads(false);
  EXPECT_EQ((allocated_by_a_step<optimizers::FusedAdam>("O2", 8, options, /*passes=*/2).count), 0);
}

// The counter itself.
TEST(AllocatedTensors, AreCounted) {
  const auto tensors = std::make_shared<AllocatedTensors>();
  const c10::DebugInfoGuard guard(c10::DebugInfoKind::PROFILER_STATE, tensors);
  const auto held = torch::ones({100}, torch::kDouble);
  EXPECT_EQ(tensors->count, 1);
  EXPECT_GE(tensors->bytes, 800);
}

}  // namespace
}  // namespace apex::test
