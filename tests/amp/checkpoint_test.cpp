// SD-*, MODEL-08, MODEL-09, BUG-10: the content of saved files, and resuming bit for bit.
#include <c10/core/InferenceMode.h>

#include <filesystem>

#include "tests/amp/optimizers.h"
#include "tests/amp/saved.h"
#include "tests/examples/scratch.h"

namespace apex::test {
namespace stateful {

using torch::optim::SGDOptions;
using torch::optim::SGDParamState;

/// A custom optimizer with state that does not override `save` and `load`; torch's versions do nothing.
struct Unsaved : torch::optim::Optimizer {
  explicit Unsaved(Params params)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(params))}, std::make_unique<SGDOptions>(0.1)) {}
  torch::Tensor step(LossClosure = nullptr) override {
    for (const auto& param : param_groups()[0].params()) {
      state()[param.unsafeGetTensorImpl()] = std::make_unique<SGDParamState>();
    }
    return {};
  }
};
SGDOptions options_of(const Unsaved*);

/// The same class with `save` and `load`, as the error message asks.
struct Saved : Unsaved {
  using Unsaved::Unsaved;
  void save(torch::serialize::OutputArchive& archive) const override {
    torch::optim::serialize<SGDParamState, SGDOptions>(archive, *this);
  }
  void load(torch::serialize::InputArchive& archive) override {
    torch::optim::serialize<SGDParamState, SGDOptions>(archive, *this);
  }
};

}  // namespace stateful

namespace {

using stateful::Saved;
using stateful::Unsaved;
using torch::Tensor;

class ModelFile : public AmpTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(ModelFile, Model08HoldsFloat32AndFitsThePlainModel) {
  ConvNet model;
  auto net = amp::initialize(model, GetParam(), quiet());
  ConvNet plain;
  restore(plain, saved(net));
  const auto plain_params = plain->named_parameters();
  for (const auto& item : model->named_parameters()) {
    EXPECT_EQ(plain_params[item.key()].scalar_type(), torch::kFloat);
    EXPECT_TRUE(torch::equal(plain_params[item.key()], item.value().to(torch::kFloat))) << item.key();
  }
  EXPECT_TRUE(torch::equal(plain->bn->running_var, model->bn->running_var.to(torch::kFloat)));
}

TEST_P(ModelFile, LoadsFloat32IntoTheModelAndItsMasters) {
  ConvNet source, model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, GetParam(), quiet().loss_scale(1.0));
  opt.zero_grad();  // masters exist from here on, where the level has them
  const auto dtype = model->conv->weight.scalar_type();
  restore(net, saved(source));
  EXPECT_EQ(model->conv->weight.scalar_type(), dtype);
  EXPECT_TRUE(torch::equal(model->conv->weight, source->conv->weight.to(dtype)));
  const auto first = amp::master_params(opt)[0];
  EXPECT_TRUE(torch::equal(first, source->conv->weight.to(first.scalar_type()))) << "a master gets all 32 bits";
}
INSTANTIATE_TEST_SUITE_P(Levels, ModelFile, ::testing::Values("O0", "O2", "O3", "O5", "O6"));

class Checkpoint : public AmpTest {};

TEST_F(Checkpoint, LoadingAnotherModelsFileFailsAndChangesNothing) {
  Mlp model, wider(6, 4);
  auto net = amp::initialize(model, "O2", quiet());
  const auto before = bytes_of(*model);
  EXPECT_TRUE(contains(message_of([&] { restore(net, saved(wider)); }), "fc2.weight"));
  EXPECT_TRUE(contains(message_of([&] { restore(net, saved(ConvNet())); }), "fc1"));
  EXPECT_EQ(bytes_of(*model), before);
}

TEST_F(Checkpoint, Sd01And07StateDictHasOneEntryPerScaler) {
  Mlp model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet().num_losses(2));
  train_step(net, opt, features());
  const auto state = amp::state_dict();
  ASSERT_EQ(state.keys(), (std::vector<std::string>{"loss_scaler0", "loss_scaler1"}));
  EXPECT_EQ(state["loss_scaler0"].loss_scale, 65536.0);
  EXPECT_EQ(state["loss_scaler0"].unskipped, 1);
  EXPECT_EQ(state["loss_scaler1"].unskipped, 0);
  amp::StateDict read;
  restore(read, saved(state));
  EXPECT_EQ(read.keys(), state.keys());
  EXPECT_EQ(read["loss_scaler0"].unskipped, 1);
}

TEST_F(Checkpoint, Sd03To06LoadsByPositionAndThenReportsUnexpectedKeys) {
  Mlp model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet().num_losses(2));
  amp::StateDict state;
  state.insert("loss_scaler7", {4.0, 3});
  state.insert("extra", {1.0, 0});
  state.insert("loss_scaler0", {8.0, 5});
  EXPECT_TRUE(contains(message_of([&] { amp::load_state_dict(state); }), "unexpected keys 'extra'; "));
  state.insert("other", {1.0, 0});
  EXPECT_TRUE(contains(message_of([&] { amp::load_state_dict(state); }), "unexpected keys 'extra', 'other'; "));
  EXPECT_EQ(amp::loss_scaler(0).loss_scale(), 4.0);
  EXPECT_EQ(amp::loss_scaler(1).loss_scale(), 8.0);
  EXPECT_EQ(amp::loss_scaler(1).unskipped(), 5);

  amp::StateDict surplus;
  for (int i = 0; i < 3; ++i) surplus.insert("loss_scaler" + std::to_string(i), {16.0 + i, 0});
  ::testing::internal::CaptureStdout();
  amp::load_state_dict(surplus);
  EXPECT_TRUE(contains(::testing::internal::GetCapturedStdout(), "skipping 'loss_scaler2'"));
  EXPECT_EQ(amp::loss_scaler(1).loss_scale(), 17.0);
}

TEST_F(Checkpoint, AStateDictWithAnInvalidScaleChangesNothing) {
  Mlp model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet().num_losses(2));
  amp::StateDict state;
  state.insert("loss_scaler0", {4.0, 3});
  state.insert("loss_scaler1", {-4.0, 3});
  EXPECT_THROW(amp::load_state_dict(state), c10::ValueError);
  EXPECT_EQ(amp::loss_scaler(0).loss_scale(), 65536.0);
}

TEST_F(Checkpoint, LoadingKeepsTheLevelsStaticScale) {
  const auto state_of = [](const char* level) {
    Mlp model;
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, optimizer, level, quiet());
    return amp::state_dict();
  };
  for (const char* from : {"O0", "O1", "O2", "O3", "O4", "O5", "O6"}) {
    const auto state = state_of(from);
    for (const char* to : {"O0", "O1", "O2", "O3", "O4", "O5", "O6"}) {
      Mlp model;
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      auto [net, opt] = amp::initialize(model, optimizer, to, quiet());
      const bool is_dynamic = amp::loss_scaler().dynamic();
      const double before = amp::loss_scaler().loss_scale(), saved = state["loss_scaler0"].loss_scale;
      ::testing::internal::CaptureStdout();
      amp::load_state_dict(state);
      const auto printed = ::testing::internal::GetCapturedStdout();
      EXPECT_EQ(amp::loss_scaler().loss_scale(), is_dynamic ? saved : before) << from << " to " << to;
      const bool is_reported =
          printed.find("loss scaler 0 keeps its static loss scale of 1; the saved one was 65536") != std::string::npos;
      EXPECT_EQ(is_reported, !is_dynamic && saved != before) << from << " to " << to;
      for (int i = 0; i < 3; ++i) train_step(net, opt, features());
      for (const Tensor& param : model->parameters()) EXPECT_TRUE(param.isfinite().all().item<bool>()) << from << " to " << to;
    }
  }
}

TEST_F(Checkpoint, TheScaleGrowsAfterLoadingACountBeyondTheWindow) {
  const Scratch folder;
  for (const char* level : {"O0", "O1", "O2", "O3", "O4", "O5", "O6"}) {
    for (const bool checkpoint : {false, true}) {
      Mlp model;
      torch::optim::SGD optimizer(model->parameters(), 0.1);
      auto [net, opt] = amp::initialize(model, optimizer, level, quiet().loss_scale("dynamic"));
      amp::loss_scaler().restore(128.0, 5000);
      if (checkpoint) {
        amp::save_checkpoint(folder / "run", net, opt);
        amp::loss_scaler().restore(1.0, 0);
        amp::load_checkpoint(folder / "run", net, opt);
      }
      train_step(net, opt, features());
      EXPECT_EQ(amp::loss_scaler().loss_scale(), 256.0) << level;
    }
  }
}

/// Each kind of load, between an overflow and the step that it would have skipped.
TEST_F(Checkpoint, AnOverflowBeforeALoadDoesNotSkipTheNextStep) {
  const Scratch folder;
  const auto train = [&](const char* level, const std::string& how) {
    AmpTest::SetUp();
    Mlp model;
    torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(0.01).eps(kEps));
    auto [net, opt] = amp::initialize(model, optimizer, level, quiet().loss_scale("dynamic").max_loss_scale(128.0));
    train_step(net, opt, features());
    amp::save_checkpoint(folder / "run", net, opt);
    const auto model_file = saved(net), optimizer_file = saved(opt);
    const auto scales = amp::state_dict();
    opt.zero_grad();
    if (how != "no overflow") {
      { amp::scale_loss(net->forward(features()).sum() * kInf, opt).backward(); }
      if (how == "checkpoint") amp::load_checkpoint(folder / "run", net, opt);
      if (how == "optimizer") restore(net, model_file), restore(opt, optimizer_file), amp::loss_scaler().restore(128.0, 1);
      if (how == "state dict") amp::load_state_dict(scales);
      const auto before = bytes_of(*model);
      opt.step();
      EXPECT_FALSE(amp::step_result(opt).skipped) << level << " " << how;
      EXPECT_EQ(bytes_of(*model), before) << level << " " << how << ": the gradients that overflowed are gone";
    }
    { amp::scale_loss(net->forward(features() + 1).square().mean(), opt).backward(); }  // and adds to no earlier gradient
    opt.step();
    EXPECT_FALSE(amp::step_result(opt).skipped) << level << " " << how;
    return bytes_of(*model) + bytes_of(opt) + std::to_string(amp::loss_scaler().loss_scale());
  };
  for (const char* level : {"O0", "O1", "O2", "O3", "O4", "O5", "O6"}) {
    const auto want = train(level, "no overflow");
    for (const char* how : {"checkpoint", "optimizer", "state dict"}) EXPECT_EQ(train(level, how), want) << level << " " << how;
  }
}

/// Its mask is one row, expanded to four.
struct MaskedImpl : torch::nn::Module {
  explicit MaskedImpl(double value) {
    fc = register_module("fc", torch::nn::Linear(6, 3));
    mask = register_buffer("mask", torch::full({1, 6}, value).expand({4, 6}));
  }
  Tensor forward(const Tensor& x) { return fc(x * mask); }
  torch::nn::Linear fc{nullptr};
  Tensor mask;
};
TORCH_MODULE(Masked);

TEST_F(Checkpoint, ExpandedBuffersLoadFromEveryKindOfFile) {
  const Scratch folder;
  for (const char* level : {"O0", "O1", "O2", "O3", "O4", "O5", "O6"}) {
    SCOPED_TRACE(level);
    Masked source(2), model(1), again(1), plain(1);
    torch::optim::SGD a(source->parameters(), 0.1), b(model->parameters(), 0.1);
    auto [source_net, source_opt] = amp::initialize(source, a, level, quiet());
    amp::save_checkpoint(folder / "run", source_net, source_opt);
    amp::save_safetensors(folder / "weights", source_net);
    const auto file = saved(source_net);
    auto [net, opt] = amp::initialize(model, b, level, quiet());
    amp::load_checkpoint(folder / "run", net, opt);
    auto net_again = amp::initialize(again, level, quiet());
    {
      const c10::InferenceMode guard;
      restore(net_again, file);
    }
    again->mask.zero_();
    restore(net_again, file);
    amp::load_safetensors(folder / "weights", plain);
    for (const Masked& each : {model, again, plain}) {
      EXPECT_TRUE(each->mask.is_same(each->named_buffers()["mask"]));
      EXPECT_TRUE(each->mask.eq(2).all().item<bool>());
      EXPECT_EQ(bytes_of(each->fc->weight.to(torch::kFloat)), bytes_of(source->fc->weight.to(torch::kFloat)));
    }
  }
}

TEST_F(Checkpoint, ACheckpointLoadedInInferenceModeCanBeTrained) {
  const Scratch folder;
  const auto train = [&](bool inference, const char* level) {
    AmpTest::SetUp();
    Mlp model;
    torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(0.01).eps(kEps));
    auto [net, opt] = amp::initialize(model, optimizer, level, quiet().loss_scale(8.0));
    if (!inference) train_step(net, opt, features()), amp::save_checkpoint(folder / "run", net, opt);
    {
      const c10::InferenceMode guard(inference);
      amp::load_checkpoint(folder / "run", net, opt);
    }
    for (int i = 0; i < 3; ++i) train_step(net, opt, features() + i);
    return bytes_of(opt) + bytes_of(*model);
  };
  for (const char* level : {"O0", "O1", "O2", "O5"}) {
    const std::string expected = train(false, level);
    EXPECT_EQ(train(true, level), expected) << level;
  }
}

TEST_F(Checkpoint, SavingRefusesAnOptimizerWithoutSavedState) {
  Mlp model;
  Unsaved optimizer(model->parameters());
  const Scratch folder;
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  amp::save_checkpoint(folder / "start", net, opt);
  train_step(net, opt, features());
  const auto error = message_of([&, &net = net, &opt = opt] { amp::save_checkpoint(folder / "later", net, opt); });
  EXPECT_TRUE(contains(error, "Unsaved with state for 4 parameters, but its `save` does not write this state"));
  EXPECT_FALSE(std::filesystem::exists(folder / "later"));
  amp::load_checkpoint(folder / "start", net, opt);
  EXPECT_TRUE(opt.state().empty());
}

TEST_F(Checkpoint, SavesTheStateOfACustomOptimizer) {
  Mlp model;
  Saved optimizer(model->parameters());
  const Scratch folder;
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  train_step(net, opt, features());
  amp::save_checkpoint(folder / "run", net, opt);
  opt.state().clear();
  amp::load_checkpoint(folder / "run", net, opt);
  EXPECT_EQ(opt.state().size(), 4u);
}

template <class Kind>
class Resume : public AmpTest {};
TYPED_TEST_SUITE(Resume, AllOptimizers);

/// Model, optimizer and scalers saved apart, as Apex programs do, and loaded into fresh ones.
TYPED_TEST(Resume, Bug10ResumingChangesNoBit) {
  for (const char* level : {"O0", "O2", "O3", "O5"}) {
    ConvNet model;
    auto optimizer = TypeParam::make(model->parameters());
    auto [net, opt] = amp::initialize(model, optimizer, level, quiet().loss_scale(level[1] == '3' ? "8" : "dynamic"));
    for (int i = 0; i < 3; ++i) train_step(net, opt, images() + i);
    const auto model_file = saved(net), optimizer_file = saved(opt), amp_file = saved(amp::state_dict());
    for (int i = 3; i < 6; ++i) train_step(net, opt, images() + i);

    amp::reset();
    ConvNet model2;
    auto optimizer2 = TypeParam::make(model2->parameters());
    auto [net2, opt2] = amp::initialize(model2, optimizer2, level, quiet().loss_scale(level[1] == '3' ? "8" : "dynamic"));
    restore(net2, model_file);
    restore(opt2, optimizer_file);
    amp::StateDict state;
    restore(state, amp_file);
    amp::load_state_dict(state);
    for (int i = 3; i < 6; ++i) train_step(net2, opt2, images() + i);
    EXPECT_EQ(bytes_of(*model2), bytes_of(*model)) << level;
    EXPECT_EQ(bytes_of(opt2), bytes_of(opt)) << level;
  }
}

/// As a learning rate search does: the steps between the save and the load leave no trace.
TYPED_TEST(Resume, LoadingRollsBackToBeforeTheFirstStep) {
  for (const char* level : {"O0", "O1", "O2", "O5"}) {
    const auto train = [&](bool detour) {
      amp::reset();
      torch::manual_seed(7);
      ConvNet model;
      auto optimizer = TypeParam::make(model->parameters());
      auto [net, opt] = amp::initialize(model, optimizer, level, quiet().loss_scale(8.0));
      const auto model_file = saved(net), optimizer_file = saved(opt);
      for (int i = 0; detour && i < 3; ++i) train_step(net, opt, images() + 9 + i);
      restore(net, model_file);
      restore(opt, optimizer_file);
      for (int i = 0; i < 3; ++i) train_step(net, opt, images() + i);
      return bytes_of(*model) + bytes_of(opt);
    };
    EXPECT_EQ(train(true), train(false)) << level;
  }
}

TEST_F(Checkpoint, AnOptimizerFileWithOtherGroupsLeavesTheStateUnchanged) {
  Mlp model;
  torch::optim::SGD one(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  torch::optim::SGD two({model->fc1->parameters(), model->fc2->parameters()}, torch::optim::SGDOptions(0.1));
  auto [net, opt] = amp::initialize(model, one, "O2", quiet());
  train_step(net, opt, features());
  const auto before = bytes_of(opt);
  EXPECT_TRUE(contains(message_of([&, &opt = opt] { restore(opt, saved(two)); }), "different number of parameter groups"));
  EXPECT_EQ(opt.state().size(), 4u);
  EXPECT_EQ(bytes_of(opt), before);
}

// LibTorch takes over the options of a group before it looks at the next one.
TEST_F(Checkpoint, AnOptimizerFileWithAnotherGroupLeavesTheOptionsUnchanged) {
  for (const char* level : {"O0", "O1"}) {
    amp::reset();
    Mlp model;
    const Params first = model->fc1->parameters(), weight = {model->fc2->weight}, bias = {model->fc2->bias}, none;
    torch::optim::SGD optimizer({first, model->fc2->parameters()}, torch::optim::SGDOptions(0.1).momentum(0.9));
    const torch::optim::SGD fewer({first, weight}, 0.5), empty({first, none}, 0.5), three({first, weight, bias}, 0.5);
    auto [net, opt] = amp::initialize(model, optimizer, level, quiet());
    train_step(net, opt, features());
    const auto before = bytes_of(opt);
    for (const auto* other : {&fewer, &empty}) {
      expect_error([&, &opt = opt] { restore(opt, saved(*other)); }, {"optimizer's parameter group 1, which has 2 parameters"});
    }
    expect_error([&, &opt = opt] { restore(opt, saved(three)); }, {"different number of parameter groups", "which has 2"});
    EXPECT_EQ(bytes_of(opt), before);
    for (const auto& group : opt.param_groups()) {
      const auto& options = static_cast<const torch::optim::SGDOptions&>(group.options());
      EXPECT_EQ(options.lr(), 0.1) << level;
      EXPECT_EQ(options.momentum(), 0.9) << level;
    }
  }
}

/// One step of an optimizer that takes closures.
template <class Net, class Opt>
void closure_step(Net& net, Opt& opt, const Tensor& input) {
  opt.step([&] {
    opt.zero_grad();
    const Tensor loss = net->forward(input).square().mean();
    { amp::scale_loss(loss, opt).backward(); }
    return loss;
  });
}

// LBFGS has scratch tensors, of which those that no step has used are undefined.
TEST_F(Checkpoint, LbfgsResumesBitwiseAfterItsFirstStep) {
  for (const char* level : {"O0", "O1"}) {
    amp::reset();
    Mlp model;
    torch::optim::LBFGS lbfgs(model->parameters(), torch::optim::LBFGSOptions(0.1).max_iter(3));
    auto [net, opt] = amp::initialize(model, lbfgs, level, quiet().loss_scale(8.0));
    closure_step(net, opt, features());
    const auto model_file = saved(net), optimizer_file = saved(opt);
    closure_step(net, opt, features() + 1);

    amp::reset();
    Mlp model2;
    torch::optim::LBFGS lbfgs2(model2->parameters(), torch::optim::LBFGSOptions(0.1).max_iter(3));
    auto [net2, opt2] = amp::initialize(model2, lbfgs2, level, quiet().loss_scale(8.0));
    restore(net2, model_file);
    restore(opt2, optimizer_file);
    closure_step(net2, opt2, features() + 1);
    EXPECT_EQ(bytes_of(*model2), bytes_of(*model)) << level;
  }
}

TEST_F(Checkpoint, AnEmptyOptimizerFileLeavesTheStateUnchanged) {
  Mlp model;
  Unsaved optimizer(model->parameters());
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  train_step(net, opt, features());
  restore(opt, saved(opt));
  EXPECT_EQ(opt.state().size(), 4u);
}

TEST_F(Checkpoint, AnOptimizerFileWithMastersOfAnotherShapeChangesNothing) {
  Mlp model, wider(6, 4);
  torch::optim::SGD a(model->parameters(), 0.1), b(wider->parameters(), 0.1);
  auto [net_a, opt_a] = amp::initialize(model, a, "O2", quiet());
  auto [net_b, opt_b] = amp::initialize(wider, b, "O2", quiet());
  train_step(net_a, opt_a, features());
  train_step(net_b, opt_b, features());
  const auto before = bytes_of(opt_a);
  const auto file = saved(opt_b);
  EXPECT_TRUE(contains(message_of([&, &opt = opt_a] { restore(opt, file); }), "'fc2.weight'"));
  EXPECT_EQ(bytes_of(opt_a), before);
}

}  // namespace
}  // namespace apex::test
