// Two independent set-ups in one process give the results that each gives alone, bit for bit: alternating, in sequence, and in
// two threads.
#include <limits>
#include <thread>

#include <apex_cpp/amp/masters/optimizer_stash.h>

#include "tests/amp/optimizers.h"

namespace apex::test {
namespace {

using torch::Tensor;

/// One training run with its own session, scalers and casts.
class Training {
 public:
  Training(const std::string& level, int seed) {
    auto generator = at::detail::createCPUGenerator(static_cast<uint64_t>(seed));
    const torch::NoGradGuard no_grad;
    for (auto& param : model_->parameters()) param.copy_(torch::rand(param.sizes(), generator) - 0.5);
    input_ = torch::rand({4, 6}, generator);
    torch::optim::Adam optimizer(model_->parameters(), torch::optim::AdamOptions(0.01).eps(1e-3));
    auto [net, opt] = amp::initialize(model_, optimizer, level, quiet().loss_scale("dynamic").max_loss_scale(64.0));
    net_.emplace(std::move(net));
    opt_.emplace(std::move(opt));
  }
  /// An exception in the first block, an overflow in step 1.
  void step(int i) {
    opt_->zero_grad();
    if (i == 0) {
      try {
        auto scaled = amp::scale_loss(loss(), *opt_);
        scaled.backward();
        throw std::runtime_error("the program's own");
      } catch (const std::runtime_error&) {
      }
    }
    const float factor = i == 1 ? std::numeric_limits<float>::infinity() : 1.0f;
    { amp::scale_loss(loss() * factor, *opt_).backward(); }
    opt_->step();
  }
  std::string bytes() {
    // Not amp::loss_scaler(): the newest session may be that of another thread.
    const amp::LossScaler& scaler = opt_->stash()->session().scaler(0);
    return bytes_of(*model_) + bytes_of(*opt_) + std::to_string(scaler.loss_scale()) + "/" + std::to_string(scaler.unskipped());
  }

 private:
  Tensor loss() { return (*net_)->forward(input_).to(torch::kFloat).square().mean(); }
  Mlp model_;
  Tensor input_;
  std::optional<amp::Model<Mlp>> net_;
  std::optional<amp::AmpOptimizer<torch::optim::Adam>> opt_;
};

constexpr int kSteps = 5;

std::string alone(const std::string& level, int seed) {
  Training run(level, seed);
  for (int i = 0; i < kSteps; ++i) run.step(i);
  return run.bytes();
}

using Pair = std::tuple<std::string, std::string>;
class TwoSetups : public AmpTest, public ::testing::WithParamInterface<Pair> {
 protected:
  void SetUp() override {
    AmpTest::SetUp();
    expected_a = alone(std::get<0>(GetParam()), 1);
    amp::reset();
    expected_b = alone(std::get<1>(GetParam()), 2);
    amp::reset();
  }
  std::string expected_a, expected_b;
};
const auto kLevels = ::testing::Values("O0", "O1", "O2", "O3", "O4", "O5", "O6");
INSTANTIATE_TEST_SUITE_P(Levels, TwoSetups, ::testing::Combine(kLevels, kLevels),
                         [](const auto& test) { return std::get<0>(test.param) + "_" + std::get<1>(test.param); });

TEST_P(TwoSetups, CanAlternateSteps) {
  Training a(std::get<0>(GetParam()), 1), b(std::get<1>(GetParam()), 2);
  for (int i = 0; i < kSteps; ++i) {
    a.step(i);
    b.step(i);
  }
  EXPECT_EQ(a.bytes(), expected_a);
  EXPECT_EQ(b.bytes(), expected_b);
}

TEST_P(TwoSetups, TheFirstContinuesAfterAResetOrASecondInitialize) {
  Training a(std::get<0>(GetParam()), 1);
  a.step(0);
  a.step(1);
  amp::reset();
  a.step(2);
  EXPECT_EQ(alone(std::get<1>(GetParam()), 2), expected_b);
  for (int i = 3; i < kSteps; ++i) a.step(i);
  EXPECT_EQ(a.bytes(), expected_a);
}

TEST_P(TwoSetups, RunInTwoThreadsConcurrently) {
  std::string a, b;
  std::thread other([&] { a = alone(std::get<0>(GetParam()), 1); });
  b = alone(std::get<1>(GetParam()), 2);
  other.join();
  EXPECT_EQ(a, expected_a);
  EXPECT_EQ(b, expected_b);
}

}  // namespace
}  // namespace apex::test
