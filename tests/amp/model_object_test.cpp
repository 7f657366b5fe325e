// A model and its handle are one object: one state, one type to pass on, whatever class the program holds it by.
#include <sstream>

#include "tests/amp/support.h"
#include "tests/amp/warnings.h"

namespace apex::test {
namespace {

using torch::Tensor;

class ModelObject : public AmpTest, public ::testing::WithParamInterface<const char*> {
 protected:
  const char* level() const { return GetParam(); }
  /// At O1 and O4 outputs stay as operators make them.
  bool casts_operators() const { return level()[1] == '1' || level()[1] == '4'; }
};
INSTANTIATE_TEST_SUITE_P(Levels, ModelObject, ::testing::Values("O0", "O1", "O2", "O3", "O4", "O5"),
                         [](const auto& test) { return test.param; });

/// `fc` of the features in FP32, from weights as the level has rounded them.
Tensor linear_of(const torch::nn::Linear& fc) {
  const amp::disable_casts casts_off;
  return torch::linear(features(), fc->weight.to(torch::kFloat), fc->bias.to(torch::kFloat));
}

/// Adds up what it has seen, in a data member.
struct CounterImpl : torch::nn::Module {
  CounterImpl() { fc = register_module("fc", torch::nn::Linear(6, 3)); }
  Tensor forward(Tensor x) {
    ++calls;
    return fc(x) + offset;
  }
  void reset_state() { calls = 0; }
  int calls = 0;
  float offset = 0;
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(Counter);

TEST_P(ModelObject, StateIsOneForModelAndHandle) {
  Counter model;
  auto net = amp::initialize(model, level(), quiet());
  net->forward(features());
  model->forward(features());
  EXPECT_EQ(net->calls, 2);
  model->reset_state();
  EXPECT_EQ(net->calls, 0);
  const Tensor before = net->forward(features());
  model->offset = 4;
  EXPECT_TRUE(torch::allclose(net->forward(features()), before + 4, 0, 0.05)) << "4 * 2^-8 is BF16's rounding of about 8";
}

/// A part that does not know of its parent, which has it registered.
struct DroppingImpl : torch::nn::Module {
  DroppingImpl() : fc(register_module("fc", torch::nn::Linear(6, 3))) {}
  Tensor forward(Tensor x) { return torch::dropout(fc(x), 0.5, is_training()); }
  torch::nn::Linear fc;
};
TORCH_MODULE(Dropping);

struct PairImpl : torch::nn::Module {
  PairImpl() : first(register_module("first", Dropping())), second(register_module("second", torch::nn::Linear(3, 3))) {}
  Tensor forward(Tensor x) { return second(first->forward(x)); }
  Dropping first;
  torch::nn::Linear second;
};
TORCH_MODULE(Pair);

TEST_P(ModelObject, FollowsTrainAndEvalOfAParent) {
  Pair pair;
  auto net = amp::initialize(pair->first, level(), quiet());
  pair->eval();
  EXPECT_FALSE(net->is_training());
  EXPECT_FALSE(pair->first->is_training());
  EXPECT_TRUE(torch::equal(pair->first->forward(features()), pair->first->forward(features())));
  pair->train();
  pair->first->fc->eval();
  net->forward(features());
  EXPECT_TRUE(net->is_training());
  EXPECT_FALSE(net->fc->is_training()) << "a child's own flag stays";
}

TEST_P(ModelObject, SaysWhereAParentKeepsAnotherModuleThanItTrains) {
  Pair pair;
  CaughtWarnings warnings;
  auto net = amp::initialize(pair->first, level(), quiet());
  const bool has_16bit_weights = pair->first->fc->weight.scalar_type() != torch::kFloat;
  EXPECT_EQ(contains(warnings.text, "parent->replace_module"), has_16bit_weights);

  pair->replace_module("first", pair->first);
  std::stringstream file;
  torch::save(pair, file);
  Pair plain;
  torch::load(plain, file);
  EXPECT_EQ(plain->first->fc->weight.scalar_type(), torch::kFloat);
  EXPECT_TRUE(torch::equal(plain->first->fc->weight, pair->first->fc->weight.to(torch::kFloat)));
}

TEST_P(ModelObject, SaysNothingWhereNobodyElseHoldsIt) {
  Dropping model;
  CaughtWarnings warnings;
  auto net = amp::initialize(model, level(), quiet());
  auto again = amp::initialize(model, level(), quiet());
  EXPECT_EQ(warnings.text, "");
}

TEST_P(ModelObject, StateIsOneForSharedPointers) {
  auto model = std::make_shared<CounterImpl>();
  auto net = amp::initialize(model, level(), quiet());
  model->forward(features());
  net->forward(features());
  EXPECT_EQ(model->calls, 2);
  EXPECT_EQ(static_cast<CounterImpl*>(net.get()), model.get());
}

void train_by_reference(Counter& model, torch::optim::Optimizer& optimizer) {
  for (int i = 0; i < 2; ++i) {
    optimizer.zero_grad();
    const Tensor loss = torch::mse_loss(model->forward(features()), torch::ones({4, 3}));
    { amp::scale_loss(loss, optimizer).backward(); }
    optimizer.step();
  }
}
Tensor by_value(Counter model) { return model->forward(features()); }
Tensor by_pointer(std::shared_ptr<CounterImpl>& model) { return model->forward(features()); }

TEST_P(ModelObject, HandlesPassWhereverTheHolderDoes) {
  Counter model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, level(), quiet().loss_scale(8.0));
  const auto before = bytes_of(*model);
  train_by_reference(net, opt);
  EXPECT_NE(bytes_of(*model), before);
  EXPECT_TRUE(torch::equal(by_value(net).to(torch::kFloat), net->forward(features())));
  auto pointer = std::make_shared<CounterImpl>();
  auto handle = amp::initialize(pointer, level(), quiet());
  EXPECT_TRUE(torch::equal(by_pointer(handle).to(torch::kFloat), handle(features()).to(torch::kFloat)));
}

/// What a program without amp reads from `stream`.
Tensor plain_output(std::istringstream stream) {
  const amp::disable_casts casts_off;
  Counter plain;
  torch::load(plain, stream);
  return plain->forward(features());
}

TEST_P(ModelObject, PlainSaveOfTheOriginalWritesFloat32) {
  Counter model;
  auto net = amp::initialize(model, level(), quiet());
  std::ostringstream of_model, of_net;
  torch::save(model, of_model);
  torch::save(net, of_net);
  const Tensor expected = linear_of(model->fc);
  EXPECT_TRUE(torch::equal(plain_output(std::istringstream(of_model.str())), expected));
  EXPECT_TRUE(torch::equal(plain_output(std::istringstream(of_net.str())), expected));
}

TEST_P(ModelObject, PlainLoadIntoTheOriginalReadsFloat32) {
  Counter saved, model;
  std::stringstream stream;
  torch::save(saved, stream);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, level(), quiet().loss_scale(8.0));
  const auto dtype = model->fc->weight.scalar_type();
  torch::load(model, stream);
  EXPECT_TRUE(torch::equal(model->fc->weight, saved->fc->weight.to(dtype)));
  { amp::scale_loss(net->forward(features()).sum() * 0, opt).backward(); }
  opt.step();
  EXPECT_TRUE(torch::equal(model->fc->weight, saved->fc->weight.to(dtype))) << "masters have the weights as well";
}

TEST_P(ModelObject, ASecondInitializePatchesTheSameObject) {
  Counter model;
  auto first = amp::initialize(model, level(), quiet());
  auto second = amp::initialize(model, level(), quiet());
  auto third = amp::initialize(first, level(), quiet());
  static_assert(std::is_same_v<decltype(third), amp::Model<Counter>>);
  EXPECT_EQ(first.get(), second.get());
  EXPECT_EQ(first.get(), third.get());
  EXPECT_EQ(model->name(), Counter()->name()) << "a patched module goes by its own name";
}

// ---- lambdas that hold the model's `this` ----

struct LambdaImpl : torch::nn::Module {
  LambdaImpl() : fc(register_module("fc", torch::nn::Linear(6, 3))) {
    body = register_module("body", torch::nn::Sequential(torch::nn::Functional([this](Tensor x) { return fc(x) * factor; })));
  }
  Tensor forward(Tensor x) { return body->forward(x); }
  torch::nn::Linear fc;
  torch::nn::Sequential body{nullptr};
  float factor = 2;
};
TORCH_MODULE(Lambda);
TORCH_MODULE_IMPL(PatchedLambda, amp::Amped<LambdaImpl>);  // AMP_MODULE under another name

TEST_P(ModelObject, ALambdasThisLivesAsLongAsTheHandle) {
  CaughtWarnings warnings;
  std::weak_ptr<LambdaImpl> original;
  auto net = [&] {
    Lambda model;
    original = model.ptr();
    return amp::initialize(model, level(), quiet());
  }();
  ASSERT_FALSE(original.expired());
  EXPECT_TRUE(contains(warnings.text, "Declare the class with AMP_MODULE"));
  const Tensor expected = linear_of(net->fc) * 2;
  EXPECT_TRUE(torch::allclose(net->forward(features()).to(torch::kFloat), expected, 0.02, 0.02)) << "BF16 has 8 bits";
}

struct MemberFunctionImpl : torch::nn::Module {
  MemberFunctionImpl() : fc(register_module("fc", torch::nn::Linear(6, 3))) {
    body = [this](Tensor x) { return fc(x); };
  }
  Tensor forward(Tensor x) { return body(x); }
  torch::nn::Linear fc;
  std::function<Tensor(Tensor)> body;
};
TORCH_MODULE(MemberFunction);

TEST_P(ModelObject, FunctionsThatHoldNoThisAreNotWarnedOf) {
  CaughtWarnings warnings;
  torch::nn::Sequential plain(torch::nn::Linear(6, 3), torch::nn::Functional(torch::relu),
                              torch::nn::Functional(torch::elu, 1, 0, 1));
  auto net = amp::initialize(plain, level(), quiet());
  Counter counter;
  auto other = amp::initialize(counter, level(), quiet());
  EXPECT_EQ(warnings.text, "");
  MemberFunction member;
  auto third = amp::initialize(member, level(), quiet());
  EXPECT_TRUE(contains(warnings.text, "Declare the class with AMP_MODULE"));
}

TEST_P(ModelObject, WithAmpModuleALambdasThisIsTheHandlesOwn) {
  PatchedLambda model;
  auto net = amp::initialize(model, level(), quiet());
  const Tensor before = net->forward(features());
  net->factor = 4;
  EXPECT_TRUE(torch::equal(net->forward(features()), before * 2));
}

// ---- a derived class behind its base ----

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

TEST_P(ModelObject, ADerivedClassHeldByItsBaseIsNotSliced) {
  std::shared_ptr<ShapeImpl> pointer = std::make_shared<CircleImpl>();
  Shape holder(std::shared_ptr<ShapeImpl>(std::make_shared<CircleImpl>()));
  CaughtWarnings warnings;
  auto [from_pointer, from_holder] = amp::initialize(std::tie(pointer, holder), level(), quiet());
  EXPECT_TRUE(contains(warnings.text, "CircleImpl, held as "));
  for (const Tensor& out : {from_pointer->forward(features()), from_pointer(features())}) {
    if (!casts_operators()) {
      EXPECT_EQ(out.scalar_type(), torch::kFloat);
    }
    EXPECT_TRUE(torch::allclose(out.to(torch::kFloat), linear_of(pointer->fc) * 3, 0.02, 0.02)) << "BF16 has 8 bits";
  }
  EXPECT_TRUE(torch::allclose(from_holder->forward(features()).to(torch::kFloat), linear_of(holder->fc) * 3, 0.02, 0.02));
  EXPECT_TRUE(torch::allclose(pointer->forward(features()).to(torch::kFloat), linear_of(pointer->fc) * 3, 0.02, 0.02));
  static_cast<CircleImpl&>(*pointer).radius = 0;
  EXPECT_EQ(from_pointer->forward(features()).abs().max().item<float>(), 0) << "the model itself is called";
}

struct Abstract : torch::nn::Module {
  virtual Tensor forward(Tensor x) = 0;
  virtual Tensor loss(Tensor out) = 0;
};
struct Concrete : Abstract {
  Tensor forward(Tensor x) override { return fc(x); }
  Tensor loss(Tensor out) override { return out.square().mean(); }
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(6, 3));
};

// What a plain module saves and loads is FP32 (MODEL-08), and what the handle loads reaches the masters.
TEST_P(ModelObject, AModelHeldByAnAbstractBaseSavesAndLoadsFloat32ThroughItsHandle) {
  const auto plain = std::make_shared<Concrete>();
  std::stringstream start, end;
  torch::save(plain, start);
  std::shared_ptr<Abstract> model = std::make_shared<Concrete>();
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
  const auto again = std::make_shared<Concrete>();
  torch::load(again, end);
  EXPECT_EQ(again->fc->weight.scalar_type(), torch::kFloat);
  EXPECT_TRUE(again->fc->weight.equal(model->parameters()[0].to(torch::kFloat)));
}

TEST_P(ModelObject, AVirtualForwardCastsWhateverItIsCalledThrough) {
  Shape model;
  auto net = amp::initialize(model, level(), quiet());
  Shape& as_base = net;
  EXPECT_EQ(as_base->forward(features()).scalar_type(), net->forward(features()).scalar_type());
}

/// Counts how often train() or eval() comes by.
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

// A network that grows by stages around it, each of them initialized.
TEST_P(ModelObject, TrainAndEvalReachNestedHandlesOnceEach) {
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
    EXPECT_LE(stage->counted->calls, 2) << "once by the handle's module, once by the one that it was copied from";
  }
  stages.back()->train();
  EXPECT_TRUE(stages.front()->is_training());
}

struct PatchedCircleImpl : ShapeImpl {
  Tensor forward(Tensor x) override { return fc(x) * 2; }
};
AMP_MODULE(PatchedCircle);

TEST_P(ModelObject, TrainAndEvalReachAPatchedModuleOfADerivedClass) {
  PatchedCircle circle;
  std::shared_ptr<ShapeImpl> model = circle.ptr();
  auto net = amp::initialize(model, level(), quiet());
  net->eval();
  EXPECT_FALSE(circle->is_training());
  EXPECT_FALSE(circle->fc->is_training());
  net->train();
  EXPECT_TRUE(circle->is_training());
}

TEST_P(ModelObject, TrainAndEvalReachADerivedClass) {
  std::shared_ptr<ShapeImpl> model = std::make_shared<CircleImpl>();
  auto net = amp::initialize(model, level(), quiet());
  net->eval();
  EXPECT_FALSE(model->is_training());
  model->train();
  net->forward(features());
  EXPECT_TRUE(net->is_training());
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

TEST_P(ModelObject, AnAbstractBaseIsAModel) {
  auto concrete = std::make_shared<ConcreteImpl>();
  std::shared_ptr<AbstractImpl> model = concrete;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, level(), quiet().loss_scale(8.0));
  const Tensor out = net->forward(features());
  EXPECT_TRUE(torch::allclose(out.to(torch::kFloat), linear_of(concrete->fc) * 3, 0.02, 0.02));
  EXPECT_EQ(out.scalar_type(), net(features()).scalar_type());
  const auto before = bytes_of(*model);
  { amp::scale_loss(out.sum(), opt).backward(); }
  opt.step();
  EXPECT_NE(bytes_of(*model), before);
}

TEST_P(ModelObject, AnAbstractBaseWithMoreToImplementIsAModel) {
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

// ---- calls of forward as the user's own class takes them ----

struct PairOfImpl : torch::nn::Module {
  PairOfImpl() { fc = register_module("fc", torch::nn::Linear(6, 3)); }
  Tensor forward(const std::vector<Tensor>& xs, bool negate = false) { return fc(negate ? -xs[0] : xs[0] + xs[1]); }
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(PairOf);

struct OverloadedImpl : torch::nn::Module {
  OverloadedImpl() { fc = register_module("fc", torch::nn::Linear(6, 3)); }
  Tensor forward(Tensor x) { return fc(x); }
  Tensor forward(const std::vector<Tensor>& xs) { return fc(xs[0] + xs[1]); }
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(Overloaded);

TEST_P(ModelObject, BracesMakeAVectorAsTheyDoWithoutAmp) {
  PairOf with_default;
  Overloaded overloaded;
  auto [pair, over] = amp::initialize(std::tie(with_default, overloaded), level(), quiet());
  const Tensor x = features(), y = torch::ones_like(x);
  EXPECT_TRUE(torch::equal(pair->forward({x, y}), pair->forward(std::vector<Tensor>{x, y}, false)));
  EXPECT_TRUE(torch::equal(pair->forward({x, y}, true), pair->forward({-x, y - y})));
  EXPECT_TRUE(torch::equal(over->forward({x, y}), over->forward(std::vector<Tensor>{x, y})));
  EXPECT_EQ(over->forward({x, y}).scalar_type(), over->forward(x).scalar_type());
}

TEST_P(ModelObject, SequentialsAreToldTheirResultsType) {
  torch::nn::Sequential model(torch::nn::LSTM(6, 3));
  auto net = amp::initialize(model, level(), quiet());
  using Output = std::tuple<Tensor, std::tuple<Tensor, Tensor>>;
  const auto [out, state] = net->forward<Output>(features().unsqueeze(0));
  EXPECT_EQ(out.sizes(), torch::IntArrayRef({1, 4, 3}));
  if (!casts_operators()) {
    EXPECT_EQ(out.scalar_type(), torch::kFloat);
  }
  torch::nn::Sequential linear(torch::nn::Linear(6, 3));
  auto plain = amp::initialize(linear, level(), quiet());
  EXPECT_TRUE(torch::equal(plain->forward<Tensor>(features()), plain->forward(features())));
}

}  // namespace
}  // namespace apex::test
