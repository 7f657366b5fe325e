// MW-*, OPT-05..08, MODEL-07, MP-01: FP32 masters in the optimizer's groups, for every torch optimizer.
#include <apex_cpp/amp/checkpoint/archive.h>
#include <c10/core/InferenceMode.h>

#include "tests/amp/optimizers.h"

namespace apex::test {
namespace {

using torch::Tensor;

template <class Kind>
class Masters : public AmpTest {
 protected:
  static auto initialized(Mlp& model, const char* level = "O2") {
    auto optimizer = Kind::make(model->parameters());
    return amp::initialize(model, optimizer, level, quiet().loss_scale(128.0));
  }
};
TYPED_TEST_SUITE(Masters, AllOptimizers);

// The reference: the same torch optimizer over FP32 copies, with the half model's gradients divided by the scale. The model is
// then the rounded copy.
TYPED_TEST(Masters, StepsLikeTorchOnFloat32CopiesBitwise) {
  for (const char* level : {"O2", "O5", "O6"}) {
    Mlp model;
    std::vector<Tensor> reference;
    for (auto& p : model->parameters()) {
      const auto dtype = std::string(level) == "O2" ? torch::kHalf : torch::kBFloat16;
      reference.push_back(p.detach().to(dtype).to(torch::kFloat).requires_grad_());
    }
    auto plain = TypeParam::make(reference);
    auto [net, opt] = this->initialized(model, level);
    for (int step = 0; step < 4; ++step) {
      train_step(net, opt, features() + step, /*step=*/false);
      const auto params = model->parameters();
      for (size_t i = 0; i < params.size(); ++i) {
        reference[i].mutable_grad() = params[i].grad().to(torch::kFloat) * (1.0 / 128.0);
      }
      opt.step();
      plain.step();
      const auto masters = amp::master_params(opt);
      for (size_t i = 0; i < params.size(); ++i) {
        EXPECT_EQ(bytes_of(masters[i]), bytes_of(reference[i])) << level << " step " << step << " param " << i;
        EXPECT_EQ(bytes_of(params[i]), bytes_of(reference[i].to(params[i].scalar_type())));
      }
    }
  }
}

TYPED_TEST(Masters, Mw02MastersReplaceParamsAtTheirPositionOnFirstUse) {
  Mlp model;
  auto [net, opt] = this->initialized(model);
  EXPECT_TRUE(amp::master_params(opt)[0].is_same(model->fc1->weight)) << "MP-01: lazily";
  opt.zero_grad();
  const auto masters = amp::master_params(opt);
  const auto params = model->parameters();
  ASSERT_EQ(masters.size(), params.size());
  for (size_t i = 0; i < masters.size(); ++i) {
    EXPECT_EQ(masters[i].scalar_type(), torch::kFloat);
    EXPECT_TRUE(masters[i].requires_grad());
    EXPECT_TRUE(torch::equal(masters[i], params[i].to(torch::kFloat)));
  }
}

TYPED_TEST(Masters, Mw02StateFromBeforeInitializeMovesToTheMasters) {
  Mlp model, twin;
  {
    torch::NoGradGuard no_grad;
    for (size_t i = 0; i < model->parameters().size(); ++i) twin->parameters()[i].copy_(model->parameters()[i]);
  }
  auto used = TypeParam::make(model->parameters());
  auto plain = TypeParam::make(twin->parameters());
  for (auto* net : {&model, &twin}) (*net)->forward(features()).square().mean().backward();
  used.step();
  plain.step();
  auto [net, opt] = amp::initialize(model, used, "O2", quiet());
  opt.zero_grad();
  ASSERT_EQ(opt.state().size(), plain.state().size());
  for (size_t i = 0; i < plain.parameters().size(); ++i) {
    torch::serialize::OutputArchive handle_archive, plain_archive;
    opt.state().at(opt.parameters()[i].unsafeGetTensorImpl())->serialize(handle_archive);
    plain.state().at(plain.parameters()[i].unsafeGetTensorImpl())->serialize(plain_archive);
    std::ostringstream a, b;
    handle_archive.save_to(a);
    plain_archive.save_to(b);
    EXPECT_EQ(a.str(), b.str()) << "state " << i << " lost a bit on the way";
  }
}

TYPED_TEST(Masters, Model07WithoutMastersStateIsCastWithTheParams) {
  Mlp model;
  auto used = TypeParam::make(model->parameters());
  model->forward(features()).square().mean().backward();
  used.step();
  auto [net, opt] = amp::initialize(model, used, "O3", quiet());
  for (const bool stepped : {false, true}) {
    if (stepped) train_step(net, opt, features());
    for (const auto& p : model->parameters()) {
      EXPECT_EQ(p.scalar_type(), torch::kHalf);
      const auto& state = *opt.state().at(p.unsafeGetTensorImpl());
      const auto tree = amp::detail::tree_of([&](auto& archive) { state.serialize(archive); });
      int tensors = 0;
      for (const auto& [key, value] : tree.values) {
        if (!value.isTensor()) continue;
        EXPECT_EQ(value.toTensor().scalar_type(), torch::kHalf) << key << " " << stepped;
        ++tensors;
      }
      EXPECT_GT(tensors, 0);
    }
  }
}

TYPED_TEST(Masters, Opt05StepDropsTheMastersGradients) {
  Mlp model;
  auto [net, opt] = this->initialized(model);
  train_step(net, opt, features(), /*step=*/false);
  for (const auto& master : amp::master_params(opt)) EXPECT_TRUE(master.grad().defined());
  opt.step();
  for (const auto& master : amp::master_params(opt)) EXPECT_FALSE(master.grad().defined());
}

TYPED_TEST(Masters, CreatedInInferenceModeCanBeTrained) {
  const auto train = [&](bool inference, const char* level) {
    torch::manual_seed(7);
    Mlp model;
    auto used = TypeParam::make(model->parameters());
    model->forward(features()).square().mean().backward();
    used.step();  // its state becomes the masters'
    auto [net, opt] = amp::initialize(model, used, level, quiet().loss_scale(128.0));
    {
      const c10::InferenceMode guard(inference);
      opt.zero_grad();
    }
    for (int i = 0; i < 3; ++i) train_step(net, opt, features() + i);
    return bytes_of(opt) + bytes_of(*model);
  };
  for (const char* level : {"O2", "O5", "O6"}) EXPECT_EQ(train(true, level), train(false, level)) << level;
}

TYPED_TEST(Masters, Bug05StepBeforeAnyBackwardDoesNothing) {
  for (const char* scale : {"dynamic", "128"}) {
    Mlp model;
    auto optimizer = TypeParam::make(model->parameters());
    auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet().loss_scale(scale));
    const auto before = bytes_of(*model);
    opt.step();
    EXPECT_EQ(bytes_of(*model), before) << scale;
  }
}

class MasterRules : public AmpTest {};

TEST_F(MasterRules, Mw01FrozenParametersAreNotChanged) {
  Mlp model;
  model->fc1->weight.set_requires_grad(false);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  const auto frozen = bytes_of(model->fc1->weight);
  train_step(net, opt, features());
  EXPECT_TRUE(amp::master_params(opt)[0].is_same(model->fc1->weight));
  EXPECT_EQ(bytes_of(model->fc1->weight), frozen);
  EXPECT_EQ(amp::master_params(opt)[1].scalar_type(), torch::kFloat);
}

TEST_F(MasterRules, Mw03Float32ParametersAreTheirOwnMasters) {
  ConvNet model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  train_step(net, opt, images());
  const auto masters = amp::master_params(opt);
  EXPECT_TRUE(masters[2].is_same(model->bn->weight));
  EXPECT_FALSE(masters[0].is_same(model->conv->weight));
}

TEST_F(MasterRules, Mw06GradientsFromBeforeInitializeAreDropped) {
  ConvNet model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  model->forward(images()).sum().backward();
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  const auto before = bytes_of(*model);
  opt.step();
  EXPECT_EQ(bytes_of(*model), before);
}

TEST_F(MasterRules, ATiedParameterListedTwiceIsSteppedOnce) {
  for (const char* level : {"O0", "O1", "O2", "O3", "O4", "O5", "O6"}) {
    Mlp model;
    auto params = model->parameters();
    params.push_back(params[1]);
    torch::optim::SGD optimizer(params, 0.5);
    auto [net, opt] = amp::initialize(model, optimizer, level, quiet().loss_scale(8.0));
    opt.zero_grad();
    const Tensor bias = model->fc1->bias.detach().clone();
    { amp::scale_loss(model->fc1->bias.sum(), opt).backward(); }
    opt.step();
    EXPECT_EQ(amp::master_params(opt).size(), 4u) << level;
    // The gradient is 1.
    const Tensor once = bias.to(torch::kFloat) - 0.5;
    EXPECT_TRUE(torch::equal(model->fc1->bias, once.to(model->fc1->bias.scalar_type()))) << level;
  }
}

TEST_F(MasterRules, AGradientWithOtherStridesIsUnscaledElementByElement) {
  for (const char* level : {"O0", "O2"}) {
    Mlp model;
    torch::optim::SGD optimizer(model->parameters(), 0.5);
    auto [net, opt] = amp::initialize(model, optimizer, level, quiet().loss_scale(8.0));
    opt.zero_grad();
    const Tensor ramp = torch::arange(30, torch::kFloat).reshape({6, 5}).t();  // [5, 6], transposed in memory
    {
      auto scaled = amp::scale_loss(net->forward(features()).sum() * 0, opt);
      scaled.backward();
      model->fc1->weight.mutable_grad() = (ramp * 8).to(model->fc1->weight.scalar_type());
      model->fc1->bias.mutable_grad() = torch::full({1}, 8.0, model->fc1->bias.scalar_type()).expand({5});
    }
    EXPECT_TRUE(torch::equal(amp::master_params(opt)[0].grad(), ramp)) << level;
    EXPECT_TRUE(torch::equal(amp::master_params(opt)[1].grad(), torch::ones({5}))) << level;
  }
}

// Autograd gives such views for the imaginary parts of complex numbers.
TEST_F(MasterRules, ANegatedGradientIsUnscaledWithItsSign) {
  for (const char* level : {"O0", "O2"}) {
    Mlp model;
    torch::optim::SGD optimizer(model->parameters(), 0.5);
    auto [net, opt] = amp::initialize(model, optimizer, level, quiet().loss_scale(8.0));
    opt.zero_grad();
    {
      auto scaled = amp::scale_loss(net->forward(features()).sum() * 0, opt);
      scaled.backward();
      model->fc1->weight.mutable_grad() = at::_neg_view(torch::full_like(model->fc1->weight.detach(), -8.0));
    }
    EXPECT_TRUE(torch::equal(amp::master_params(opt)[0].grad(), torch::ones({5, 6}))) << level;
  }
}

TEST_F(MasterRules, Opt03MasterWeightsCanBeSwitchedOffAndOn) {
  Mlp with, without;
  torch::optim::SGD a(with->parameters(), 0.1), b(without->parameters(), 0.1);
  auto [net_a, opt_a] = amp::initialize(with, a, "O3", quiet().master_weights(true));
  train_step(net_a, opt_a, features());
  EXPECT_EQ(amp::master_params(opt_a)[0].scalar_type(), torch::kFloat);
  auto [net_b, opt_b] = amp::initialize(without, b, "O2", quiet().master_weights(false));
  train_step(net_b, opt_b, features());
  EXPECT_TRUE(amp::master_params(opt_b)[0].is_same(without->fc1->weight));
}

// Channels-last from the start, or between two steps.
TEST_F(MasterRules, MastersHaveTheLayoutOfTheirWeights) {
  for (const int changed_before : {0, 1}) {
    torch::nn::Conv2d model(torch::nn::Conv2dOptions(2, 4, 3));
    const auto change = [&] { model->weight.set_data(model->weight.detach().contiguous(torch::MemoryFormat::ChannelsLast)); };
    if (changed_before == 0) change();
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
    for (int step = 0; step < 2; ++step) {
      if (step > 0 && step == changed_before) change();
      train_step(net, opt, torch::randn({2, 2, 6, 6}));
    }
    EXPECT_TRUE(model->weight.is_contiguous(torch::MemoryFormat::ChannelsLast) && !model->weight.is_contiguous());
    EXPECT_EQ(amp::master_params(opt)[0].strides(), model->weight.strides()) << changed_before;
    EXPECT_TRUE(torch::equal(amp::master_params(opt)[0].to(torch::kHalf), model->weight)) << changed_before;
    amp::reset();
  }
}

}  // namespace
}  // namespace apex::test
