// Models held through a base class: calls, casts, saves, train() and eval() are those of the derived class.
#include <sstream>

#include "tests/amp/every_level.h"
#include "tests/amp/saved.h"
#include "tests/amp/support.h"
#include "tests/amp/warnings.h"

namespace apex::test {
namespace {

using torch::Tensor;

class ModelBase : public AtEveryLevel {};
INSTANTIATE_TEST_SUITE_P(Levels, ModelBase, kEveryLevel, [](const auto& test) { return test.param; });

struct ShapeImpl : torch::nn::Module {
  ShapeImpl() { fc = register_module("fc", torch::nn::Linear(6, 3)); }
  virtual Tensor forward(Tensor x) { return fc(x); }
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(Shape);

struct CircleImpl : ShapeImpl {
  Tensor forward(Tensor x) override { return fc(x) * radius; }
  float radius = 3;
};

TEST_P(ModelBase, ADerivedClassHeldByItsBaseIsNotSliced) {
  std::shared_ptr<ShapeImpl> pointer = std::make_shared<CircleImpl>();
  Shape holder(std::shared_ptr<ShapeImpl>(std::make_shared<CircleImpl>()));
  CaughtWarnings warnings;
  auto [from_pointer, from_holder] = amp::initialize(std::tie(pointer, holder), level(), quiet());
  EXPECT_TRUE(contains(warnings.text, "CircleImpl, held as "));
  for (const Tensor& out : {from_pointer->forward(features()), from_pointer(features())}) {
    if (!casts_operators()) {
      EXPECT_EQ(out.scalar_type(), torch::kFloat);
    }
    EXPECT_TRUE(torch::allclose(out.to(torch::kFloat), linear_of(pointer->fc) * 3, kLinearBound, kLinearBound));
  }
  EXPECT_TRUE(torch::allclose(from_holder->forward(features()).to(torch::kFloat), linear_of(holder->fc) * 3, kLinearBound,
                              kLinearBound));
  EXPECT_TRUE(
      torch::allclose(pointer->forward(features()).to(torch::kFloat), linear_of(pointer->fc) * 3, kLinearBound, kLinearBound));
  static_cast<CircleImpl&>(*pointer).radius = 0;
  EXPECT_EQ(from_pointer->forward(features()).abs().max().item<float>(), 0) << "the model itself is called";
}

/// Its radius is in the file, too.
struct SavedCircleImpl : CircleImpl {
  void save(torch::serialize::OutputArchive& archive) const override {
    torch::nn::Module::save(archive);
    archive.write("radius", c10::IValue(static_cast<double>(radius)));
  }
  void load(torch::serialize::InputArchive& archive) override {
    torch::nn::Module::load(archive);
    c10::IValue value;
    archive.read("radius", value);
    radius = static_cast<float>(value.toDouble());
  }
};

TEST_P(ModelBase, SaveAndLoadAreThoseOfADerivedClass) {
  const auto circle = std::make_shared<SavedCircleImpl>();
  std::shared_ptr<ShapeImpl> model = circle;
  CaughtWarnings warnings;
  auto net = amp::initialize(model, level(), quiet());
  circle->radius = 7;
  const std::string file = saved(net);
  circle->radius = 5;
  restore(net, file);
  EXPECT_EQ(circle->radius, 7);
}

struct AbstractImpl : torch::nn::Module {
  virtual Tensor forward(Tensor x) = 0;
};
struct ConcreteImpl : AbstractImpl {
  ConcreteImpl() { fc = register_module("fc", torch::nn::Linear(6, 3)); }
  Tensor forward(Tensor x) override { return fc(x) * 3; }
  torch::nn::Linear fc{nullptr};
};
struct TaskImpl : AbstractImpl {
  virtual Tensor loss(Tensor out) = 0;
};
struct RegressionImpl : TaskImpl {
  RegressionImpl() { fc = register_module("fc", torch::nn::Linear(6, 3)); }
  Tensor forward(Tensor x) override { return fc(x) * 3; }
  Tensor loss(Tensor out) override { return torch::mse_loss(out, torch::ones({4, 3})); }
  torch::nn::Linear fc{nullptr};
};

// What a plain module saves and loads is FP32 (MODEL-08), and what the handle loads reaches the masters.
TEST_P(ModelBase, AHandleOfAnAbstractBaseSavesAndLoadsFloat32) {
  const auto plain = std::make_shared<RegressionImpl>();
  std::stringstream start, end;
  torch::save(plain, start);
  std::shared_ptr<TaskImpl> model = std::make_shared<RegressionImpl>();
  torch::optim::SGD sgd(model->parameters(), 0.0);
  CaughtWarnings warnings;
  auto [net, opt] = amp::initialize(model, sgd, level(), quiet());
  const bool has_16_bits = model->parameters()[0].scalar_type() != torch::kFloat;
  EXPECT_EQ(contains(warnings.text, "Save and load through what amp::initialize returned"), has_16_bits);
  torch::load(net, start);
  for (const Tensor& stepped : {amp::master_params(opt)[0], model->parameters()[0]}) {
    EXPECT_TRUE(stepped.equal(plain->fc->weight.to(stepped.scalar_type())));
  }
  { amp::scale_loss(net->loss(net(features())), opt).backward(); }
  opt.step();
  torch::save(net, end);
  const auto again = std::make_shared<RegressionImpl>();
  torch::load(again, end);
  EXPECT_EQ(again->fc->weight.scalar_type(), torch::kFloat);
  EXPECT_TRUE(again->fc->weight.equal(model->parameters()[0].to(torch::kFloat)));
}

TEST_P(ModelBase, AHandleOfAnAbstractBaseIsInitializedAgain) {
  std::shared_ptr<TaskImpl> model = std::make_shared<RegressionImpl>();
  CaughtWarnings warnings;
  auto net = amp::initialize(model, "O2", quiet()), copy = net;
  torch::optim::SGD optimizer(model->parameters(), 0.02);
  auto handles = amp::initialize(net, optimizer, level(), quiet().loss_scale(8.0));
  auto& [again, opt] = handles;
  static_assert(std::is_same_v<std::decay_t<decltype(again)>, amp::Model<TaskImpl>>);
  EXPECT_EQ(again.get(), model.get());
  EXPECT_EQ(copy(features()).scalar_type(), again(features()).scalar_type());
  const auto before = bytes_of(*model);
  { amp::scale_loss(again->loss(again(features())), opt).backward(); }
  opt.step();
  EXPECT_NE(bytes_of(*model), before);
}

TEST_P(ModelBase, AVirtualForwardCastsWhenCalledThroughTheBase) {
  Shape model;
  auto net = amp::initialize(model, level(), quiet());
  Shape& as_base = net;
  EXPECT_EQ(as_base->forward(features()).scalar_type(), net->forward(features()).scalar_type());
}

/// Counts calls of train() and eval().
struct CountedImpl : torch::nn::Module {
  void train(bool on = true) override { torch::nn::Module::train(on), ++calls; }
  int calls = 0;
};
struct StageImpl : torch::nn::Module {
  explicit StageImpl(std::shared_ptr<StageImpl> inner_stage) : inner(std::move(inner_stage)) {
    if (inner) register_module("inner", inner);
  }
  virtual Tensor forward(Tensor x) { return fc(inner ? inner->forward(x) : x); }
  std::shared_ptr<StageImpl> inner;
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(6, 6));
  std::shared_ptr<CountedImpl> counted = register_module("counted", std::make_shared<CountedImpl>());
};
TORCH_MODULE(Stage);

// Each stage contains the one before, and each is initialized.
TEST_P(ModelBase, TrainAndEvalReachNestedHandlesOnceEach) {
  std::vector<Stage> stages;
  for (int i = 0; i < 8; ++i) {
    Stage stage(std::make_shared<StageImpl>(stages.empty() ? nullptr : stages.back().ptr()));
    auto net = amp::initialize(stage, level(), quiet());
    stages.push_back(stage);
  }
  for (const auto& stage : stages) stage->counted->calls = 0;
  stages.back()->eval();
  for (const auto& stage : stages) {
    EXPECT_FALSE(stage->is_training());
    EXPECT_FALSE(stage->counted->is_training());
    EXPECT_EQ(stage->counted->calls, 1);
  }
  stages.back()->train();
  EXPECT_TRUE(stages.front()->is_training());
}

struct PatchedCircleImpl : ShapeImpl {
  Tensor forward(Tensor x) override { return fc(x) * 2; }
};
AMP_MODULE(PatchedCircle);

TEST_P(ModelBase, TrainAndEvalReachAPatchedModuleOfADerivedClass) {
  PatchedCircle circle;
  std::shared_ptr<ShapeImpl> model = circle.ptr();
  auto net = amp::initialize(model, level(), quiet());
  net->eval();
  EXPECT_FALSE(circle->is_training());
  EXPECT_FALSE(circle->fc->is_training());
  net->train();
  EXPECT_TRUE(circle->is_training());
}

/// Records the dtype in which it computes.
struct SeenImpl : ShapeImpl {
  Tensor forward(Tensor x) override {
    const Tensor y = fc(x);
    seen = y.scalar_type();
    return y;
  }
  at::ScalarType seen = at::kInt;
};
AMP_MODULE(Seen);

struct TunedImpl : torch::nn::Module {
  explicit TunedImpl(const Seen& part) : encoder(register_module("encoder", part)) {}
  Tensor forward(const Tensor& x) { return encoder->forward(x); }
  Seen encoder;
};
TORCH_MODULE(Tuned);

struct HugeImpl : torch::nn::Module {
  explicit HugeImpl(const Seen& part) : encoder(register_module("encoder", part)) {}
  Tensor forward(const Tensor& x) { return encoder->forward(x.to(torch::kFloat) * 1e6); }
  Seen encoder;
};
TORCH_MODULE(Huge);

TEST_P(ModelBase, APartOfAnEarlierCallInFloat32ModulesTakesFloat32Inputs) {
  Seen encoder;
  const auto earlier = amp::initialize(encoder, "O1", quiet());
  Huge model(encoder);
  const std::vector<std::string> kept{"encoder"};
  auto net = amp::initialize(model, level(), quiet().float32_modules(kept).cast_model_outputs(at::kFloat));
  EXPECT_TRUE(net->forward(features()).isfinite().all().item<bool>());
}

TEST_P(ModelBase, APartOfAnEarlierCallTakesTheCastsOfItsParentsLevel) {
  for (const char* pretrained_at : {"O2", "O5"}) {
    Seen encoder, fresh;
    torch::optim::SGD first(encoder->parameters(), 0.1);
    const auto pretrained = amp::initialize(encoder, first, pretrained_at, quiet());
    Tuned tuned(encoder), expected(fresh);
    torch::optim::SGD second(tuned->parameters(), 0.1), of_expected(expected->parameters(), 0.1);
    auto [net, opt] = amp::initialize(tuned, second, level(), quiet());
    auto [expected_net, expected_opt] = amp::initialize(expected, of_expected, level(), quiet());
    EXPECT_EQ(net->forward(features()).scalar_type(), expected_net->forward(features()).scalar_type()) << pretrained_at;
    EXPECT_EQ(encoder->seen, fresh->seen) << pretrained_at;
    amp::reset();
  }
}

/// Keeps its patched child in evaluation, as fine-tuning does.
struct FineTunedImpl : ShapeImpl {
  void train(bool on = true) override { ShapeImpl::train(on), backbone->eval(); }
  Tensor forward(Tensor x) override { return fc(backbone->forward(x)); }
  PatchedCircle backbone = register_module("backbone", PatchedCircle());
};

TEST_P(ModelBase, AnOverriddenTrainReachesItsPatchedChildren) {
  const auto fine_tuned = std::make_shared<FineTunedImpl>();
  std::shared_ptr<ShapeImpl> model = fine_tuned;
  auto net = amp::initialize(model, level(), quiet());
  net->train();
  EXPECT_TRUE(fine_tuned->is_training());
  EXPECT_TRUE(fine_tuned->fc->is_training());
  EXPECT_FALSE(fine_tuned->backbone->is_training());
}

TEST_P(ModelBase, TrainAndEvalReachADerivedClass) {
  std::shared_ptr<ShapeImpl> model = std::make_shared<CircleImpl>();
  auto net = amp::initialize(model, level(), quiet());
  net->eval();
  EXPECT_FALSE(model->is_training());
  model->train();
  net->forward(features());
  EXPECT_TRUE(net->is_training());
}

TEST_P(ModelBase, AnAbstractBaseWithForwardIsAModel) {
  auto concrete = std::make_shared<ConcreteImpl>();
  std::shared_ptr<AbstractImpl> model = concrete;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, level(), quiet().loss_scale(8.0));
  const Tensor out = net->forward(features());
  EXPECT_TRUE(torch::allclose(out.to(torch::kFloat), linear_of(concrete->fc) * 3, kLinearBound, kLinearBound));
  EXPECT_EQ(out.scalar_type(), net(features()).scalar_type());
  const auto before = bytes_of(*model);
  { amp::scale_loss(out.sum(), opt).backward(); }
  opt.step();
  EXPECT_NE(bytes_of(*model), before);
}

TEST_P(ModelBase, AnAbstractBaseWithOtherPureVirtualsIsAModel) {
  std::shared_ptr<TaskImpl> model = std::make_shared<RegressionImpl>();
  torch::optim::SGD optimizer(model->parameters(), 0.02);
  auto [net, opt] = amp::initialize(model, optimizer, level(), quiet().loss_scale(8.0));
  EXPECT_EQ(net.get(), model.get());
  if (!casts_operators()) {
    EXPECT_EQ(net(features()).scalar_type(), torch::kFloat);
  }
  std::vector<float> losses;
  for (int i = 0; i < 5; ++i) {
    opt.zero_grad();
    const Tensor loss = net->loss(net->forward(features()));
    { amp::scale_loss(loss, opt).backward(); }
    opt.step();
    losses.push_back(loss.item<float>());
  }
  EXPECT_LT(losses.back(), losses.front() / 2);
}

}  // namespace
}  // namespace apex::test
