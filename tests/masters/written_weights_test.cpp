// Weights that a program writes into the model reach the FP32 masters before the masters are read, so the next step keeps
// them. Unwritten elements keep their FP32 precision.
#include <apex_cpp/amp/masters/master_table.h>
#include <apex_cpp/optimizers.h>
#include <c10/core/InferenceMode.h>

#include <functional>
#include <sstream>

#include "tests/amp/saved.h"
#include "tests/amp/support.h"
#include "tests/examples/scratch.h"

namespace apex::test {
namespace {

using torch::Tensor;

enum class Stepping { torch_sgd, fused_sgd, fused_order };
using WrittenCase = std::tuple<const char*, Stepping>;

class WrittenWeights : public AmpTest, public ::testing::WithParamInterface<WrittenCase> {
 protected:
  void SetUp() override { begin(); }
  void begin() {
    AmpTest::SetUp();
    model = Mlp();
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
  /// A step with zero gradients: keeps the masters and writes them to the model.
  void step_by_zero() { train(0); }
  /// A step in which the first weight has no gradient.
  void step_without_its_gradient() {
    model->zero_grad();
    { amp::scale_loss(net->forward(features()).square().sum(), opt).backward(); }
    weight().mutable_grad().reset();
    opt->step();
  }
  void expect_both_to_have(const Tensor& values) {
    EXPECT_EQ(bytes_of(master()), bytes_of(values));
    EXPECT_EQ(bytes_of(weight()), bytes_of(values.to(weight().scalar_type())));
  }
  Tensor master() { return opt->param_groups()[0].params()[0].detach().clone(); }
  Tensor& weight() { return model->fc1->weight; }
  /// Steps whose gradients are computed at other weights. The program puts the weights back after each backward pass and
  /// `read`, as sharpness-aware optimizers do.
  std::string steps_with_replaced_weights(const std::function<void()>& read) {
    begin();
    for (int i = 0; i < 4; ++i) {
      opt->zero_grad();
      const std::vector<Tensor> own = replace(1.5 + i);
      { amp::scale_loss(net->forward(features()).square().sum(), opt).backward(); }
      read();
      put_back(own);
      opt->step();
    }
    return bytes_of(*opt) + bytes_of(*model);
  }
  std::vector<Tensor> replace(double factor) {
    const torch::NoGradGuard no_grad;
    std::vector<Tensor> own;
    for (Tensor& p : model->parameters()) {
      own.push_back(p.detach().clone());
      p.mul_(factor);
    }
    return own;
  }
  void put_back(const std::vector<Tensor>& own) {
    const torch::NoGradGuard no_grad;
    const auto params = model->parameters();
    for (size_t i = 0; i < own.size(); ++i) Tensor(params[i]).copy_(own[i]);
  }
  /// After `write` changes the model's first weight, a step keeps the change, and masters of other elements keep their bits.
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

TEST_P(WrittenWeights, EveryKindOfWriteIsKept) {
  expect_kept([](Tensor& w) { w.clamp_(-0.1, 0.1); });
  train();
  expect_kept([](Tensor& w) { w[0].copy_(torch::ones({w.size(1)})); });
  train();
  expect_kept([](Tensor& w) { w.mul_(0.5).add_(0.25); });
  train();
  expect_kept([](Tensor& w) { torch::nn::init::xavier_uniform_(w); });
  train();
  expect_kept([](Tensor& w) { w.set_data(w.detach() * 2); });
  train();
  expect_kept([](Tensor& w) { w.mul_(0x1p-60); });  // FP16 has no such small numbers, BF16 has
}

// As without amp: a weight takes over the memory of a tensor of its own dtype, as of a flat buffer.
TEST_P(WrittenWeights, StayInTheMemoryThatTheProgramSets) {
  const Tensor buffer = weight().detach().clone();
  {
    const torch::NoGradGuard no_grad;
    weight().set_(buffer);
  }
  train();
  EXPECT_TRUE(weight().is_alias_of(buffer));
}

TEST_P(WrittenWeights, AnotherShapeIsAnError) {
  Tensor& bias = net->fc2->bias;
  const Tensor before = bias.detach();
  bias.set_data(before.slice(0, 0, 1).clone());
  expect_error([&] { train(); }, {"fc2.bias", "set_data cannot change the shape"});
  bias.set_data(before);
  train();
}

TEST_P(WrittenWeights, ReachMasterParamsAndSavedFiles) {
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

TEST_P(WrittenWeights, WritesThroughDataAreSeenAfterClearCastCache) {
  expect_kept([](Tensor& w) {
    w.data().clamp_(-0.1, 0.1);
    amp::clear_cast_cache();
  });
}

TEST_P(WrittenWeights, WritesThroughDataAreDetectedBySamplingOnTheCpu) {
  expect_kept([](Tensor& w) { w.data().clamp_(-0.1, 0.1); });
  train();
  expect_kept([](Tensor& w) { w.data().copy_(w * 0.75); });
}

// Of a weight with more than 128 values, 128 at equal distances are compared: here every eighth at most.
TEST(WrittenValues, ShowInSamplesUpToTheEndOfALargeWeight) {
  const Tensor weight = torch::zeros({1000}, torch::kHalf);
  const amp::detail::WeightRecord record(weight);
  for (int64_t begin = 0; begin + 8 <= weight.numel(); ++begin) {
    Tensor written = weight.data().narrow(0, begin, 8);
    written.fill_(1);
    EXPECT_TRUE(record.shows_hidden_write(weight)) << begin;
    written.zero_();
    EXPECT_FALSE(record.shows_hidden_write(weight)) << begin;
  }
}

TEST_P(WrittenWeights, WritesToMastersAreNotOverwritten) {
  for (const Tensor& each : amp::master_params(*opt)) each.data().clamp_(-0.1, 0.1);
  const auto written = bytes_of(master());
  step_by_zero();
  EXPECT_EQ(bytes_of(master()), written);
  EXPECT_LE(weight().abs().max().item<float>(), 0.1001f) << "0.1 in BF16 is 0.10009765625";
}

TEST_P(WrittenWeights, WrittenMastersCountForMoreThanWeightsThatShowNoWrite) {
  for (const auto& write :
       std::vector<std::function<void()>>{[] { amp::clear_cast_cache(); }, [&] { model->fc2->weight.data().mul_(0.5); }}) {
    train();
    const auto masters = amp::master_params(*opt);
    for (const bool first : {true, false}) {
      if (!first) write();
      masters[0].detach().mul_(1.5);
      if (first) write();
      const auto written = bytes_of(master());
      step_by_zero();
      EXPECT_EQ(bytes_of(master()), written) << first;
    }
  }
}

// The write is between the 128 samples.
TEST(WrittenValues, AWriteThatDoesNotShowCountsAfterALoadAndNotAfterTheProgramsOwnWrite) {
  for (const bool loaded : {true, false}) {
    amp::detail::TrainedParam trained;
    trained.param = torch::ones({1000}, torch::kHalf);
    trained.master = torch::full({1000}, 1.0001);
    trained.dtype = torch::kHalf;
    trained.mark_synced();
    trained.master.fill_(1.0002);
    if (loaded) trained.mark_loaded();
    trained.param.data()[1] = 2;
    trained.mark_edited();
    trained.update_master_from_edits();
    EXPECT_EQ(trained.master[1].item<float>(), loaded ? 2.0f : 1.0002f);
    EXPECT_EQ(trained.master[0].item<float>(), 1.0002f);
  }
}

TEST_P(WrittenWeights, WrittenMastersReachAWeightThatHasNoGradient) {
  {
    const torch::NoGradGuard no_grad;
    for (const Tensor& each : amp::master_params(*opt)) Tensor(each).mul_(1.5);
  }
  const Tensor written = master();
  step_without_its_gradient();
  expect_both_to_have(written);
  const auto version = weight()._version();
  step_without_its_gradient();
  expect_both_to_have(written);
  if (std::get<Stepping>(GetParam()) != Stepping::torch_sgd) {
    EXPECT_EQ(weight()._version(), version) << "copied once";
  }
}

TEST_P(WrittenWeights, MastersWrittenThroughDataReachAWeightThatHasNoGradient) {
  amp::master_params(*opt)[0].data().mul_(1.5);
  const Tensor written = master();
  step_without_its_gradient();
  expect_both_to_have(written);
}

// As without amp.
TEST_P(WrittenWeights, AGraphThatHasSavedAWeightWithoutAGradientOutlivesTheStep) {
  const Tensor older = net->forward(features()).square().sum();
  model->zero_grad();
  { amp::scale_loss(net->forward(features()).square().sum(), opt).backward(); }
  model->fc2->weight.mutable_grad().reset();
  const auto version = model->fc2->weight._version();
  opt->step();
  EXPECT_EQ(model->fc2->weight._version(), version);
  model->zero_grad();
  EXPECT_EQ(message_of([&] { amp::scale_loss(older, opt).backward(); }), "");
  EXPECT_TRUE(weight().grad().defined());
}

TEST_P(WrittenWeights, LoadedMastersReachAWeightThatHasNoGradient) {
  const auto file = saved(*opt);
  const Tensor loaded = master();
  for (int i = 0; i < 3; ++i) train();
  ASSERT_NE(bytes_of(master()), bytes_of(loaded));
  restore(*opt, file);
  step_without_its_gradient();
  expect_both_to_have(loaded);
}

TEST_P(WrittenWeights, WeightsRestoredAfterAReadLeaveNoTrace) {
  const Scratch folder;
  const std::string expected = steps_with_replaced_weights([] {});
  const std::vector<std::pair<const char*, std::function<void()>>> reads = {
      {"master_params", [&] { amp::master_params(*opt); }},
      {"twice", [&] { amp::master_params(*opt), replace(0.75), amp::master_params(*opt); }},
      {"clip_grad_norm_", [&] { torch::nn::utils::clip_grad_norm_(amp::master_params(*opt), 1e3); }},
      {"torch::save", [&] { saved(*opt); }},
      {"torch::save in inference mode",
       [&] {
         const c10::InferenceMode guard;
         saved(*opt);
       }},
      {"save_checkpoint", [&] { amp::save_checkpoint(folder / "run", net, opt); }},
      {"save_safetensors", [&] { amp::save_safetensors(folder / "run", net, amp::SaveSafetensorsOptions().masters(true)); }},
  };
  for (const auto& [name, read] : reads) EXPECT_EQ(steps_with_replaced_weights(read), expected) << name;
}

TEST_P(WrittenWeights, WeightsRestoredInAnyWayLeaveNoTrace) {
  const auto masters = bytes_of(*opt);
  const std::vector<std::function<void(Tensor&, const Tensor&)>> writes = {
      [](Tensor& w, const Tensor& value) { w.set_data(value.clone()); },
      [](Tensor& w, const Tensor& value) { w.data().copy_(value); },
      [](Tensor& w, const Tensor& value) {
        const c10::InferenceMode guard;
        w.copy_(value);
      },
      [](Tensor& w, const Tensor& value) { w.data().copy_(value), amp::clear_cast_cache(); },
  };
  for (const auto& write : writes) {
    const Tensor own = weight().detach().clone();
    write(weight(), own * 3);
    EXPECT_TRUE(torch::equal(amp::master_params(*opt)[0], (own * 3).to(torch::kFloat)));
    write(weight(), own);
    step_by_zero();
    EXPECT_EQ(bytes_of(*opt), masters);
  }
}

// As for an export in the middle of a training.
TEST_P(WrittenWeights, ConvertedWeightsLeaveTheMastersAsTheyWere) {
  train();
  const auto masters = bytes_of(*opt);
  const auto dtype = weight().scalar_type();
  for (const auto to : {torch::kFloat, dtype}) {
    weight().set_data(weight().detach().to(to));
    amp::master_params(*opt);
    EXPECT_EQ(bytes_of(*opt), masters) << to;
  }
  weight().set_data(weight().detach().to(torch::kFloat));
  {
    const torch::NoGradGuard no_grad;
    weight().fill_(1.0 / 3);
  }
  EXPECT_TRUE((amp::master_params(*opt)[0] == 1.0f / 3).all().item<bool>());
}

TEST_P(WrittenWeights, PartlyRestoredWeightsKeepTheOtherElements) {
  const Tensor before = master();
  const auto own = replace(3);
  amp::master_params(*opt);
  const Tensor replaced = master();
  {
    const torch::NoGradGuard no_grad;
    weight()[0].copy_(own[0][0]);
  }
  step_by_zero();
  EXPECT_EQ(bytes_of(master()[0]), bytes_of(before[0]));
  EXPECT_EQ(bytes_of(master()[1]), bytes_of(replaced[1]));
}

TEST_P(WrittenWeights, LoadingOrWritingMastersReplacesEarlierWrites) {
  const auto file = saved(*opt), weights = saved(net);
  const Tensor loaded = master();
  train();
  replace(3);
  amp::master_params(*opt);
  restore(net, weights);
  restore(*opt, file);
  const auto own = replace(0.5);
  amp::master_params(*opt);
  put_back(own);
  step_by_zero();
  EXPECT_EQ(bytes_of(master()), bytes_of(loaded));

  replace(3);
  const Tensor first = amp::master_params(*opt)[0];
  first.detach().copy_(loaded * 1.001);
  const Tensor rounded = (loaded * 1.001).to(weight().scalar_type());
  weight().detach().copy_(rounded * 2);
  amp::master_params(*opt);
  weight().detach().copy_(rounded);
  step_by_zero();
  EXPECT_EQ(bytes_of(master()), bytes_of(loaded * 1.001));
}

TEST(WrittenValues, KeepsEarlierValuesOnlyFromAReadToTheNextStep) {
  amp::detail::TrainedParam trained;
  trained.param = torch::ones({4}, torch::kHalf);
  trained.master = torch::full({4}, 1.0001);
  trained.mark_synced();
  trained.param.fill_(2);
  trained.update_master_from_edits(/*may_be_restored=*/false);
  EXPECT_FALSE(trained.backup.defined());
  trained.param.fill_(3);
  trained.update_master_from_edits();
  EXPECT_TRUE(trained.backup.defined());
  trained.mark_synced();
  EXPECT_FALSE(trained.backup.defined());
}

TEST_P(WrittenWeights, SurviveASkippedStep) {
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
