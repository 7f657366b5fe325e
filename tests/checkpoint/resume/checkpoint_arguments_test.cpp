// Models and optimizers in every form of argument, with and without amp, and other contents of a checkpoint.
#include <apex_cpp/amp/checkpoint/safetensors.h>
#include <apex_cpp/optimizers.h>

#include "tests/amp/optimizers.h"
#include "tests/checkpoint/resume/training.h"

namespace apex::test {
namespace row_sums {

// As Adafactor: its state is smaller than the parameter.
class RowSums : public torch::optim::Optimizer {
 public:
  using State = torch::optim::SGDParamState;
  using Options = torch::optim::SGDOptions;
  explicit RowSums(std::vector<torch::Tensor> params)
      : Optimizer({torch::optim::OptimizerParamGroup(std::move(params))}, std::make_unique<Options>(0.1)) {}
  torch::Tensor step(LossClosure = nullptr) override {
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& param : param_groups()[0].params()) {
      auto& state = this->state()[param.unsafeGetTensorImpl()];
      if (!state) state = std::make_unique<State>();
      auto& sums = static_cast<State&>(*state).momentum_buffer();
      const torch::Tensor now = param.grad().reshape({param.size(0), -1}).abs().sum(1);
      sums = sums.defined() ? sums + now : now;
      param.sub_(param.grad() * 0.1 / sums.mean());
    }
    return {};
  }
  void save(torch::serialize::OutputArchive& archive) const override {
    torch::optim::serialize<State, Options>(archive, *this);
  }
  void load(torch::serialize::InputArchive& archive) override { torch::optim::serialize<State, Options>(archive, *this); }
};

RowSums::Options options_of(const RowSums*);

}  // namespace row_sums

namespace {

using torch::Tensor;

class CheckpointArguments : public AmpTest {
 protected:
  Folder folder_;
  const std::string file_ = folder_ / "file.ckpt";
};

struct PlainNet : torch::nn::Module {
  PlainNet() { fc = register_module("fc", torch::nn::Linear(6, 3)); }
  Tensor forward(Tensor x) { return fc(x); }
  torch::nn::Linear fc{nullptr};
};

TEST_F(CheckpointArguments, AHandleByValueAndBracedMetadata) {
  Mlp model;
  torch::optim::Adam optimizer(model->parameters(), 0.01);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  train_step(net, opt, features());
  amp::save_checkpoint(file_, net, opt, {{"epoch", 3}, {"step", 120}, {"best", 0.25}, {"done", false}, {"name", "first"}});
  const auto expected = bytes_of(opt) + bytes_of(*model);
  train_step(net, opt, features());
  ASSERT_NE(bytes_of(opt) + bytes_of(*model), expected);
  const auto loaded = amp::load_checkpoint(file_, net, opt);
  EXPECT_EQ(bytes_of(opt) + bytes_of(*model), expected);
  EXPECT_EQ(loaded.metadata.at("epoch").to_int(), 3);
  EXPECT_EQ(loaded.metadata.at("epoch").to_double(), 3.0);
  EXPECT_EQ(loaded.metadata.at("best").to_double(), 0.25);
  EXPECT_FALSE(loaded.metadata.at("done").to_bool());
  EXPECT_EQ(loaded.metadata.at("name").to_string(), "first");
  EXPECT_THROW(loaded.metadata.at("best").to_int(), c10::TypeError);
  EXPECT_TRUE(contains(message_of([&] { loaded.metadata.at("best").to_int(); }),
                       "a number under 'best', but the program reads a whole number"));
  EXPECT_THROW(loaded.metadata.at("epoc"), c10::IndexError);
  EXPECT_TRUE(contains(message_of([&] { loaded.metadata.at("epoc"); }),
                       "has no 'epoc'; it has 'best', 'done', 'epoch', 'name', 'step'"));
  EXPECT_EQ(loaded.metadata.size(), 5u);
  EXPECT_EQ(loaded.opt_level, "O2");
  EXPECT_FALSE(loaded.library_version.empty());
}

TEST_F(CheckpointArguments, AnOptimizerWhoseStateHasOtherShapes) {
  Mlp model;
  row_sums::RowSums optimizer(model->parameters());
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  train_step(net, opt, features());
  amp::save_checkpoint(file_, net, opt);
  const auto expected = bytes_of(opt) + bytes_of(*model);
  train_step(net, opt, features());
  amp::load_checkpoint(file_, net, opt);
  EXPECT_EQ(bytes_of(opt) + bytes_of(*model), expected);
}

TEST_F(CheckpointArguments, MetadataOfNumbersThatAreNotFinite) {
  Mlp model;
  const amp::Metadata metadata{{"loss", std::numeric_limits<double>::quiet_NaN()}, {"low", -HUGE_VAL}, {"high", HUGE_VAL}};
  amp::save_checkpoint(file_, model, metadata);
  const auto loaded = amp::load_checkpoint(file_, model).metadata;
  EXPECT_TRUE(std::isnan(loaded.at("loss").to_double()));
  EXPECT_TRUE(loaded.at("low") == metadata.at("low") && loaded.at("high") == metadata.at("high"));
  EXPECT_FALSE(loaded.at("low") != metadata.at("low"));
  EXPECT_TRUE(loaded.at("low") != loaded.at("high"));
}

struct PatchedImpl : MlpImpl {};
AMP_MODULE(Patched);

TEST_F(CheckpointArguments, AModulePatchedInPlace) {
  Patched model;
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto [net, opt] = amp::initialize(model, optimizer, "O5", quiet());
  train_step(net, opt, features());
  amp::save_checkpoint(file_, net, opt);
  const auto expected = bytes_of(opt) + bytes_of(*model);
  train_step(net, opt, features());
  EXPECT_EQ(amp::load_checkpoint(file_, model, opt).opt_level, "O5");
  EXPECT_EQ(bytes_of(opt) + bytes_of(*model), expected);
}

TEST_F(CheckpointArguments, TuplesAsReturnedByInitialize) {
  Mlp first;
  PlainNet second;
  torch::optim::SGD a(first->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  optimizers::FusedAdam b(second.parameters(), optimizers::FusedAdamOptions(0.01));
  auto [nets, opts] = amp::initialize(std::tie(first, second), std::tie(a, b), "O2", quiet().num_losses(2));
  auto& [net_a, net_b] = nets;
  auto& [opt_a, opt_b] = opts;
  train_step(net_a, opt_a, features());
  train_step(net_b, opt_b, features());
  amp::save_checkpoint(file_, nets, opts);
  const auto expected = bytes_of(opt_a) + bytes_of(opt_b) + bytes_of(*first) + bytes_of(second);
  train_step(net_a, opt_a, features());
  train_step(net_b, opt_b, features());
  amp::load_checkpoint(file_, nets, opts);
  EXPECT_EQ(bytes_of(opt_a) + bytes_of(opt_b) + bytes_of(*first) + bytes_of(second), expected);
  train_step(net_a, opt_a, features());
  amp::load_checkpoint(file_, std::tie(net_a, net_b), std::tie(opt_a, opt_b));
  EXPECT_EQ(bytes_of(opt_a) + bytes_of(opt_b) + bytes_of(*first) + bytes_of(second), expected);
}

TEST_F(CheckpointArguments, ModelsAloneHaveTheLevelOfTheirHandles) {
  Mlp first;
  PlainNet second;
  auto net = amp::initialize(first, "O5", quiet());
  amp::save_checkpoint(file_, std::tie(net, second));
  EXPECT_EQ(amp::load_checkpoint(file_, std::tie(net, second)).opt_level, "O5");
  amp::save_checkpoint(file_, std::tie(second, net));
  EXPECT_EQ(amp::load_checkpoint(file_, std::tie(second, net)).opt_level, "O5");
}

TEST_F(CheckpointArguments, VectorsOfHandlesAndPointers) {
  std::vector<Mlp> models = {Mlp(), Mlp()};
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers;
  for (auto& model : models) optimizers.push_back(std::make_unique<torch::optim::AdamW>(model->parameters(), 0.01));
  auto [nets, opts] = amp::initialize(models, optimizers, "O5", quiet());
  for (int i : {0, 1}) train_step(nets[i], *dynamic_cast<amp::AmpOptimizer<torch::optim::AdamW>*>(opts[i].get()), features());
  amp::save_checkpoint(file_, nets, opts);
  const auto expected = bytes_of(*opts[0]) + bytes_of(*opts[1]) + bytes_of(*models[1]);
  for (auto& opt : opts) opt->param_groups()[0].params()[0].detach().zero_();
  std::vector<torch::optim::Optimizer*> pointers = {opts[0].get(), opts[1].get()};
  amp::load_checkpoint(file_, nets, pointers);
  EXPECT_EQ(bytes_of(*opts[0]) + bytes_of(*opts[1]) + bytes_of(*models[1]), expected);
  EXPECT_TRUE(contains(message_of([&, &all = nets, &first = *opts[0]] { amp::load_checkpoint(file_, all[0], first); }),
                       "holds 2 models"));
  pointers.pop_back();
  EXPECT_TRUE(contains(message_of([&, &all = nets] { amp::load_checkpoint(file_, all, pointers); }), "holds 2 optimizers"));
}

TEST_F(CheckpointArguments, ReferencesToBaseClassesWithAndWithoutAmp) {
  PlainNet model;
  torch::optim::RMSprop optimizer(model.parameters(), 0.01);
  torch::nn::Module& module = model;
  torch::optim::Optimizer& base = optimizer;
  model.forward(features()).square().mean().backward();
  optimizer.step();
  amp::save_checkpoint(file_, module, base, {{"epoch", 1}});
  const auto expected = bytes_of(optimizer) + bytes_of(model);
  optimizer.step();
  const auto loaded = amp::load_checkpoint(file_, module, base);
  EXPECT_EQ(bytes_of(optimizer) + bytes_of(model), expected);
  EXPECT_EQ(loaded.opt_level, "");

  Mlp off;
  torch::optim::SGD sgd(off->parameters(), 0.1);
  auto [net, opt] = amp::initialize(off, sgd, "O2", quiet().enabled(false));
  train_step(net, opt, features());
  amp::save_checkpoint(file_, net, opt);
  EXPECT_EQ(amp::load_checkpoint(file_, net, opt).opt_level, "");
}

struct SavesNothing : optimizers::FusedSGD {
  using FusedSGD::FusedSGD;
  void save(torch::serialize::OutputArchive&) const override {}
  void load(torch::serialize::InputArchive&) override {}
};

TEST_F(CheckpointArguments, AFusedOptimizerThatSavesNothing) {
  PlainNet model;
  SavesNothing optimizer(model.parameters(), optimizers::FusedSGDOptions(0.1));
  amp::save_checkpoint(file_, model, optimizer);
  const auto expected = bytes_of(model);
  model.forward(features()).sum().backward();
  optimizer.step();
  ASSERT_NE(bytes_of(model), expected);
  amp::load_checkpoint(file_, model, optimizer);
  EXPECT_EQ(bytes_of(model), expected);
}

TEST_F(CheckpointArguments, AParameterOutsideTheModelIsSavedWithItsOptimizer) {
  for (const char* level : {"O0", "O2"}) {
    Mlp model;
    const Tensor temperature = torch::full({1}, 2.0, torch::requires_grad());
    auto params = model->parameters();
    params.push_back(temperature);
    torch::optim::SGD optimizer(params, 0.1);
    auto [net, opt] = amp::initialize(model, optimizer, level, quiet());
    amp::save_checkpoint(file_, net, opt);
    {
      torch::NoGradGuard no_grad;
      temperature.fill_(7);
    }
    amp::load_checkpoint(file_, net, opt);
    EXPECT_EQ(temperature.item<float>(), 2.0f) << level;
  }
}

TEST_F(CheckpointArguments, TiedParametersAndEmptyGroups) {
  Mlp model;
  std::vector<torch::optim::OptimizerParamGroup> groups = {{{model->fc1->weight, model->fc2->weight}}, {std::vector<Tensor>{}}};
  torch::optim::Adam optimizer(groups, torch::optim::AdamOptions(0.01));
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  train_step(net, opt, features());
  amp::save_checkpoint(file_, net, opt);
  const auto expected = bytes_of(opt);
  train_step(net, opt, features());
  amp::load_checkpoint(file_, net, opt);
  EXPECT_EQ(bytes_of(opt), expected);
}

TEST_F(CheckpointArguments, GroupsAddedLaterAndParametersWithOtherStrides) {
  const auto make = [](int64_t groups) {
    DropNet model;
    model->conv->weight.set_data(torch::randn({3, 1, 3, 3}).to(torch::MemoryFormat::ChannelsLast));
    auto optimizer = std::make_unique<optimizers::FusedAdam>(model->conv->parameters(), optimizers::FusedAdamOptions(0.01));
    auto [net, opt] = amp::initialize(model, *optimizer, "O2", quiet());
    if (groups > 1) opt.add_param_group({model->fc1->parameters()});
    return std::make_tuple(model, net, std::make_shared<decltype(opt)>(std::move(opt)));
  };
  auto [model, net, opt] = make(1);
  train_step(net, *opt, images());
  opt->add_param_group({model->fc1->parameters()});
  train_step(net, *opt, images());
  amp::save_checkpoint(file_, net, *opt);
  auto [model2, net2, opt2] = make(2);
  amp::load_checkpoint(file_, net2, *opt2);
  EXPECT_EQ(bytes_of(*opt2), bytes_of(*opt));
  for (auto* pair : {&net, &net2}) (*pair)->eval();
  train_step(net, *opt, images());
  train_step(net2, *opt2, images());
  EXPECT_EQ(bytes_of(*model2), bytes_of(*model));
}

TEST_F(CheckpointArguments, AccumulatedGradientsAreNeitherSavedNorChanged) {
  Training run("Adam", "O2");
  run.run(0, 2);
  run.optimizer->zero_grad();
  run.backward(2);
  const Tensor grad = run.optimizer->param_groups()[1].params()[0].grad().clone();
  run.save(file_);
  EXPECT_TRUE(torch::equal(run.optimizer->param_groups()[1].params()[0].grad(), grad));
  Training resumed("Adam", "O2", 9);
  resumed.load(file_);
  EXPECT_FALSE(resumed.optimizer->param_groups()[1].params()[0].grad().defined());
  run.load(file_);  // random state belongs to the process
  run.optimizer->zero_grad();
  run.run(3, 5);
  const auto expected = run.bytes();
  resumed.load(file_);
  resumed.run(3, 5);
  EXPECT_EQ(resumed.bytes(), expected) << "the pass that was dropped left a trace";
}

TEST_F(CheckpointArguments, TwoSessionsInOneProcessEachSaveTheirOwnScalers) {
  Mlp a, b;
  torch::optim::SGD opt_of_a(a->parameters(), 0.1), opt_of_b(b->parameters(), 0.1);
  auto [net_a, opt_a] = amp::initialize(a, opt_of_a, "O2", quiet());
  train_step(net_a, opt_a, features());
  auto [net_b, opt_b] = amp::initialize(b, opt_of_b, "O5", quiet());
  amp::save_checkpoint(file_, net_a, opt_a);
  EXPECT_EQ(amp::load_checkpoint(file_, net_a, opt_a).opt_level, "O2");
  EXPECT_EQ(amp::state_dict()["loss_scaler0"].loss_scale, 1.0);
  EXPECT_TRUE(contains(message_of([&, &na = net_a, &oa = opt_a, &nb = net_b, &ob = opt_b] {
                         amp::save_checkpoint(file_, std::tie(na, nb), std::tie(oa, ob));
                       }),
                       "two amp::initialize calls"));
}

TEST_F(CheckpointArguments, TensorsHaveReadableNamesInTheFile) {
  Training run("Adam", "O2");
  run.run(0, 3);
  run.save(file_);
  const auto file = amp::detail::read_safetensors(file_);
  std::map<std::string, Tensor> tensors(file.tensors.begin(), file.tensors.end());
  EXPECT_EQ(tensors.at("model0/fc1.weight").scalar_type(), torch::kFloat);
  EXPECT_TRUE(torch::equal(tensors.at("model0/fc1.weight"), run.model->fc1->weight.to(torch::kFloat)));
  EXPECT_TRUE(torch::equal(tensors.at("optimizer0/master/4"), run.optimizer->param_groups()[1].params()[0]));
  EXPECT_EQ(tensors.at("optimizer0/state/4/exp_avg").sizes(), run.model->fc1->weight.sizes());
  EXPECT_TRUE(tensors.count("generator/cpu"));
  EXPECT_EQ(file.metadata.at("format"), "apex_cpp.checkpoint");
}

}  // namespace
}  // namespace apex::test
