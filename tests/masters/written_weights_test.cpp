// Weights that a program writes into the model reach the FP32 masters before these are read, so that the next step does not
// undo them; elements that were not written keep their precision.
#include <apex_cpp/optimizers.h>

#include <sstream>

#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;

enum class Stepping { torch_sgd, fused_sgd, fused_order };
using WrittenCase = std::tuple<const char*, Stepping>;

class WrittenWeights : public AmpTest, public ::testing::WithParamInterface<WrittenCase> {
 protected:
  void SetUp() override {
    AmpTest::SetUp();
    std::unique_ptr<torch::optim::Optimizer> sgd;
    if (std::get<Stepping>(GetParam()) == Stepping::torch_sgd) {
      sgd = std::make_unique<torch::optim::SGD>(model->parameters(), 1.0 / 1024);
    } else {
      const bool materialize = std::get<Stepping>(GetParam()) == Stepping::fused_sgd;
      sgd = std::make_unique<optimizers::FusedSGD>(
          model->parameters(), optimizers::FusedSGDOptions(1.0 / 1024).materialize_master_grads(materialize));
    }
    std::tie(net, opt) = amp::initialize(model, sgd, std::get<0>(GetParam()), quiet().loss_scale(128.0).skip_nonfinite(true));
    for (int i = 0; i < 2; ++i) train();
  }
  void train(float factor = 1) {
    model->zero_grad();
    { amp::scale_loss(net->forward(features()).square().sum() * factor, opt).backward(); }
    opt->step();
  }
  /// A step by gradients of 0, which leaves masters as they are and writes them to the model.
  void step_by_zero() { train(0); }
  Tensor master() { return opt->param_groups()[0].params()[0].detach().clone(); }
  Tensor& weight() { return model->fc1->weight; }
  /// After `write`, which changes the first weight of the model, a step keeps it, and masters of other elements keep their
  /// bits.
  template <class Write>
  void expect_kept(Write&& write) {
    const Tensor before = weight().detach().clone(), master_before = master();
    ASSERT_FALSE(torch::equal(master_before, before.to(torch::kFloat))) << "masters that have nothing to lose show nothing";
    {
      const torch::NoGradGuard no_grad;
      write(weight());
    }
    const Tensor written = weight().detach().clone();
    ASSERT_FALSE(torch::equal(written, before));
    step_by_zero();
    EXPECT_EQ(bytes_of(weight()), bytes_of(written));
    EXPECT_EQ(bytes_of(master()), bytes_of(torch::where(written == before, master_before, written.to(torch::kFloat))));
  }

  Mlp model;
  amp::Model<Mlp> net{nullptr};
  std::unique_ptr<torch::optim::Optimizer> opt;
};

TEST_P(WrittenWeights, OfEveryKindAreKept) {
  expect_kept([](Tensor& w) { w.clamp_(-0.1, 0.1); });
  train();
  expect_kept([](Tensor& w) { w[0].copy_(torch::ones({w.size(1)})); });
  train();
  expect_kept([](Tensor& w) { w.mul_(0.5).add_(0.25); });
  train();
  expect_kept([](Tensor& w) { torch::nn::init::xavier_uniform_(w); });
  train();
  expect_kept([](Tensor& w) { w.set_data(w.detach() * 2); });
}

TEST_P(WrittenWeights, AreInMasterParamsAndInWhatIsSaved) {
  const auto fill = [&](float value) {
    const torch::NoGradGuard no_grad;
    weight().fill_(value);
  };
  std::stringstream file;
  fill(0.5);
  torch::save(*opt, file);
  fill(2);
  EXPECT_TRUE((amp::master_params(*opt)[0] == 2).all().item<bool>());
  torch::load(*opt, file);
  step_by_zero();
  EXPECT_TRUE((weight() == 0.5).all().item<bool>()) << "masters that are loaded count for more than the weights of before";
}

TEST_P(WrittenWeights, ThroughDataAreSeenWhenTold) {
  expect_kept([](Tensor& w) {
    w.data().clamp_(-0.1, 0.1);
    amp::clear_cast_cache();
  });
}

TEST_P(WrittenWeights, ThroughDataShowInASampleOnACpu) {
  expect_kept([](Tensor& w) { w.data().clamp_(-0.1, 0.1); });
  train();
  expect_kept([](Tensor& w) { w.data().copy_(w * 0.75); });
}

TEST_P(WrittenWeights, AreNotTakenFromAModelWhoseMastersWereWritten) {
  for (const Tensor& each : amp::master_params(*opt)) each.data().clamp_(-0.1, 0.1);
  const auto written = bytes_of(master());
  step_by_zero();
  EXPECT_EQ(bytes_of(master()), written);
  EXPECT_LE(weight().abs().max().item<float>(), 0.1001f) << "0.1 in BF16 is 0.10009765625";
}

TEST_P(WrittenWeights, StayThroughASkippedStep) {
  const auto masters_before = bytes_of(*opt);
  {
    const torch::NoGradGuard no_grad;
    weight().clamp_(-0.1, 0.1);
  }
  const auto written = bytes_of(*model);
  train(kInf);
  ASSERT_TRUE(amp::step_result(*opt).skipped);
  EXPECT_EQ(bytes_of(*model), written);
  EXPECT_EQ(bytes_of(*opt), masters_before);
}
INSTANTIATE_TEST_SUITE_P(Levels, WrittenWeights,
                         ::testing::Combine(::testing::Values("O2", "O5"),
                                            ::testing::Values(Stepping::torch_sgd, Stepping::fused_sgd,
                                                              Stepping::fused_order)));

}  // namespace
}  // namespace apex::test
