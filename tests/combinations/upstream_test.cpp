// Upstream's test_add_param_group and test_checkpointing by behaviour (run_amp), on CPU tensors and at O4 and O5 too.
#include <limits>
#include <sstream>

#include "tests/amp/optimizers.h"
#include "tests/amp/saved.h"
#include "tests/combinations/support.h"

namespace apex::test::combinations {
namespace {

// ---- test_add_param_group ----

struct AddGroup : AmpTest, ::testing::WithParamInterface<std::string> {};
INSTANTIATE_TEST_SUITE_P(Levels, AddGroup, kLevels, [](const auto& test) { return test.param; });

enum class Zeroing { handle, model, by_hand };

/// One optimizer over `a` that gets `b` on the way, as upstream's test does: trained with amp.
std::vector<Tensor> with_amp(const std::string& level, bool zero_before_add, bool accumulate, Zeroing zeroing) {
  Pair a, b;
  torch::optim::SGD optimizer(a->parameters(), torch::optim::SGDOptions(0.25).momentum(0.125));
  auto [nets, opt] = amp::initialize(std::tie(a, b), optimizer, level, quiet().loss_scale(4.0));
  auto& [net_a, net_b] = nets;
  const auto zero = [&, &opt = opt] {
    if (zeroing == Zeroing::handle) opt.zero_grad();
    for (auto* model : {&a, &b}) {
      if (zeroing == Zeroing::model) (*model)->zero_grad();
      for (const Tensor& param : (*model)->parameters()) {
        if (zeroing == Zeroing::by_hand) param.mutable_grad().reset();
      }
    }
  };
  const auto pass = [&, &net_a = net_a, &net_b = net_b, &opt = opt](int i, bool both) {
    Tensor loss = net_a->forward(gradient(i, 0, 0));
    if (both) loss = loss + net_b->forward(gradient(i, 0, 1));
    amp::scale_loss(loss, opt).backward();
  };
  zero();
  pass(0, false);
  if (!accumulate) {
    opt.step();
    if (zero_before_add) zero();
  }
  opt.add_param_group(torch::optim::OptimizerParamGroup(b->parameters(), std::make_unique<torch::optim::SGDOptions>(0.5)));
  if (!accumulate && !zero_before_add) zero();
  pass(1, true);
  opt.step();
  zero();
  pass(2, true);
  opt.step();
  return {a->low, a->native, b->low, b->native};
}

/// The same with plain parameters and written gradients.
std::vector<Tensor> by_hand(const std::string& level, bool accumulate) {
  std::vector<Tensor> params;
  const bool half = level == "O3";
  for (int i = 0; i < 4; ++i) params.push_back(torch::ones({3}, half ? torch::kHalf : torch::kFloat).requires_grad_());
  torch::optim::SGD optimizer({params[0], params[1]}, torch::optim::SGDOptions(0.25).momentum(0.125));
  const auto set = [&](const Tensor& a, const Tensor& b) {
    for (int i = 0; i < 4; ++i) {
      const Tensor& grad = i < 2 ? a : b;
      params[i].mutable_grad() = grad.defined() ? grad.to(params[i].scalar_type()) : grad;
    }
  };
  if (!accumulate) {
    set(gradient(0, 0, 0), {});
    optimizer.step();
  }
  optimizer.add_param_group(
      torch::optim::OptimizerParamGroup({params[2], params[3]}, std::make_unique<torch::optim::SGDOptions>(0.5)));
  set(accumulate ? gradient(0, 0, 0) + gradient(1, 0, 0) : gradient(1, 0, 0), gradient(1, 0, 1));
  optimizer.step();
  set(gradient(2, 0, 0), gradient(2, 0, 1));
  optimizer.step();
  return params;
}

TEST_P(AddGroup, BeforeOrAfterZeroGradAndDuringAccumulation) {
  for (const bool zero_before_add : {false, true}) {
    for (const bool accumulate : {false, true}) {
      const auto want = by_hand(GetParam(), accumulate);
      for (const Zeroing zeroing : {Zeroing::handle, Zeroing::model, Zeroing::by_hand}) {
        amp::reset();
        const auto got = with_amp(GetParam(), zero_before_add, accumulate, zeroing);
        for (size_t i = 0; i < 4; ++i) {
          EXPECT_EQ(bytes_of(got[i]), bytes_of(want[i].detach().to(got[i].scalar_type())))
              << "parameter " << i << ", zero before " << zero_before_add << ", accumulate " << accumulate << ", zeroing "
              << static_cast<int>(zeroing);
        }
      }
    }
  }
}

// ---- test_checkpointing ----

struct Checkpointing : AmpTest, ::testing::WithParamInterface<std::string> {};
INSTANTIATE_TEST_SUITE_P(Levels, Checkpointing, kLevels, [](const auto& test) { return test.param; });

constexpr int kEpochs = 10, kSavedAfter = 5;

struct Files {
  std::string model, optimizer, scalers;
};

/// Ten epochs with `losses` losses; `at_half(net, opt)` is called after five. Answers the last output.
template <class Net, class Opt, class AtHalf>
Tensor train(Net& net, Opt& opt, int losses, int from, const AtHalf& at_half) {
  Tensor output;
  for (int epoch = from; epoch < kEpochs; ++epoch) {
    if (epoch == kSavedAfter) at_half();
    opt.zero_grad();
    for (int l = 0; l < losses; ++l) {
      output = net->forward(images() + 0.125 * epoch).to(torch::kFloat);
      amp::scale_loss(output.square().mean() * (l + 1), opt, l).backward();
    }
    opt.step();
  }
  return output.detach();
}

TEST_P(Checkpointing, ResumesWhetherLoadedBeforeOrAfterInitialize) {
  for (const int losses : {1, 2}) {
    const auto options = quiet().num_losses(losses).loss_scale(GetParam() == "O3" ? "8" : "dynamic");
    amp::reset();
    ConvNet model;
    auto optimizer = SgdMomentum::make(model->parameters());
    auto [net, opt] = amp::initialize(model, optimizer, GetParam(), options);
    Files files;
    const Tensor want = train(net, opt, losses, 0, [&, &net = net, &opt = opt] {
      files = {saved(net), saved(opt), saved(amp::state_dict())};
    });
    for (const bool load_first : {false, true}) {
      amp::reset();
      ConvNet again;
      if (load_first) restore(again, files.model);
      auto optimizer2 = SgdMomentum::make(again->parameters());
      auto [net2, opt2] = amp::initialize(again, optimizer2, GetParam(), options);
      if (!load_first) restore(net2, files.model);
      restore(opt2, files.optimizer);
      amp::StateDict state;
      restore(state, files.scalers);
      amp::load_state_dict(state);
      const Tensor got = train(net2, opt2, losses, kSavedAfter, [] {});
      EXPECT_TRUE(torch::equal(got, want)) << losses << " losses";
      EXPECT_EQ(bytes_of(*again), bytes_of(*model)) << losses << " losses";
    }
    ConvNet plain;
    restore(plain, files.model);
    for (const auto& param : plain->parameters()) EXPECT_EQ(param.scalar_type(), torch::kFloat);
  }
}

TEST_P(Checkpointing, LossScaleDecreasesAreSaved) {
  Pair model;
  torch::optim::SGD optimizer(model->parameters(), 0.25);
  auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet().num_losses(3).loss_scale("dynamic"));
  const double init = amp::loss_scaler(0).loss_scale();
  for (int l = 0; l < 3; ++l) {
    for (int overflow = 0; overflow < l; ++overflow) {
      amp::scale_loss(net->forward(gradient(0, 0, 0)) * std::numeric_limits<float>::infinity(), opt, l).backward();
      opt.step();
      opt.zero_grad();
      model->zero_grad();
    }
  }
  const auto state = amp::state_dict();
  for (int l = 0; l < 3; ++l) {
    EXPECT_EQ(amp::loss_scaler(l).loss_scale(), init / (1 << l));
    EXPECT_EQ(state["loss_scaler" + std::to_string(l)].loss_scale, init / (1 << l));
    EXPECT_EQ(state["loss_scaler" + std::to_string(l)].unskipped, 0);
  }
}

TEST_P(Checkpointing, SavedModelsAreFloat32AndTheLossDecreases) {
  ConvNet model;
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet().loss_scale(8.0));
  double first = 0, last = 0;
  for (int i = 0; i < 10; ++i) {
    opt.zero_grad();
    const Tensor loss = net->forward(images()).to(torch::kFloat).square().mean();
    { amp::scale_loss(loss, opt).backward(); }
    opt.step();
    (i == 0 ? first : last) = loss.item<double>();
  }
  EXPECT_LT(last, first);
  std::istringstream in(saved(net));
  torch::serialize::InputArchive archive;
  archive.load_from(in);
  torch::serialize::InputArchive fc;
  Tensor weight;
  ASSERT_TRUE(archive.try_read("fc", fc));
  ASSERT_TRUE(fc.try_read("weight", weight));
  EXPECT_EQ(weight.scalar_type(), torch::kFloat);
}

}  // namespace
}  // namespace apex::test::combinations
