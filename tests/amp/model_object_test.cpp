// A model and its handle are one object with one state, whichever class the program holds it by.
#include <sstream>

#include "tests/amp/every_level.h"
#include "tests/amp/support.h"
#include "tests/amp/warnings.h"

namespace apex::test {
namespace {

using torch::Tensor;

class ModelObject : public AtEveryLevel {};
INSTANTIATE_TEST_SUITE_P(Levels, ModelObject, kEveryLevel, [](const auto& test) { return test.param; });

/// Counts its calls in a data member.
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

TEST_P(ModelObject, ModelAndHandleShareDataMembers) {
  Counter model;
  auto net = amp::initialize(model, level(), quiet());
  net->forward(features());
  model->forward(features());
  EXPECT_EQ(net->calls, 2);
  model->reset_state();
  EXPECT_EQ(net->calls, 0);
  const Tensor before = net->forward(features());
  model->offset = 4;
  // The sum, from 1 to 7, is rounded once, by 2^-6 at most: from 4 to 8, BF16 numbers are 2^-5 apart.
  EXPECT_TRUE(torch::allclose(net->forward(features()), before + 4, 0, 0x1p-6));
}

/// A parent with two registered children.
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

/// Has a mode of its own, and counts changes in memory that copies of the module share, as weights are.
struct NoisyImpl : torch::nn::Module {
  void train(bool on = true) override {
    if (on != is_training()) ++*changes;
    torch::nn::Module::train(on);
    noisy = is_training();
  }
  Tensor forward(Tensor x) { return fc(x); }
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(6, 3));
  std::shared_ptr<int> changes = std::make_shared<int>(0);
  bool noisy = true;
};
TORCH_MODULE(Noisy);

TEST_P(ModelObject, AnOverriddenTrainRunsOnceAndSeesItsOwnMode) {
  Noisy model;
  const auto original = model.ptr();
  auto net = amp::initialize(model, level(), quiet());
  net->eval();
  EXPECT_FALSE(net->noisy);
  EXPECT_FALSE(original->is_training());
  EXPECT_EQ(*net->changes, 1);
  model->train();
  EXPECT_TRUE(net->noisy);
  EXPECT_EQ(*net->changes, 2);
  original->torch::nn::Module::train(false);  // as by a parent
  EXPECT_FALSE(net->is_training());
  net->train();
  EXPECT_TRUE(net->is_training());
  EXPECT_TRUE(original->is_training());
  EXPECT_EQ(*net->changes, 3);
}

/// Trains itself, as classes of many programs do; the functions hide those of Module.
struct SelfTrainedImpl : torch::nn::Module {
  Tensor forward(Tensor x) { return fc(x); }
  int train(int epochs) {
    eval();
    return done += epochs;
  }
  int train(const Tensor& x, int epochs) { return static_cast<int>(x.size(0)) * epochs; }
  std::shared_ptr<SelfTrainedImpl> clone() const { return nullptr; }
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(6, 3));
  int done = 0;
  std::string name = "self-trained";
};
TORCH_MODULE(SelfTrained);

/// Has both: the mode of Module, and functions of its own.
struct AlsoTrainedImpl : torch::nn::Module {
  Tensor forward(Tensor x) { return fc(x); }
  using torch::nn::Module::train;
  int train(int epochs) { return epochs; }
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(6, 3));
};
TORCH_MODULE(AlsoTrained);

/// With a virtual function beside the override of the mode.
struct FrozenNormImpl : torch::nn::Module {
  Tensor forward(Tensor x) { return norm(x); }
  virtual void train() { eval(); }
  void train(bool on) override {
    torch::nn::Module::train(on);
    norm->eval();
  }
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(6));
};
TORCH_MODULE(FrozenNorm);

/// With a protected override.
class GuardedImpl : public torch::nn::Module {
 public:
  Tensor forward(Tensor x) { return norm(x); }
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(6));

 protected:
  void train(bool on = true) override {
    torch::nn::Module::train(on);
    norm->eval();
  }
};
TORCH_MODULE(Guarded);

TEST_P(ModelObject, AProtectedOverrideOfTrainIsCalledAndAVirtualTrain) {
  Guarded model;
  auto net = amp::initialize(model, level(), quiet());
  net->train(true);
  EXPECT_TRUE(net->is_training());
  EXPECT_FALSE(net->norm->is_training());
  FrozenNorm other;
  auto frozen = amp::initialize(other, level(), quiet());
  frozen->train(true);
  EXPECT_TRUE(frozen->is_training());
  frozen->train();
  EXPECT_FALSE(frozen->is_training());
}

TEST_P(ModelObject, FunctionsThatHideThoseOfModuleAreCalledWithTheirOwnArguments) {
  SelfTrained model;
  auto net = amp::initialize(model, level(), quiet());
  EXPECT_EQ(net->train(5), 5);
  EXPECT_EQ(net->train(features(), 3), 12);
  EXPECT_FALSE(net->is_training());
  net->train();
  EXPECT_TRUE(net->is_training());
  EXPECT_EQ(net->done, 5);
  EXPECT_EQ(net->forward(features()).size(1), 3);
  AlsoTrained also;
  auto both = amp::initialize(also, level(), quiet());
  EXPECT_EQ(both->train(5), 5);
  both->train(false);
  EXPECT_FALSE(both->is_training());
}

/// Its copies are for use alone: they have no second head.
struct TwoHeadedImpl : torch::nn::Module {
  explicit TwoHeadedImpl(bool has_second = true) {
    if (has_second) second = register_module("second", torch::nn::Linear(6, 3));
  }
  Tensor forward(const Tensor& x) { return first(x); }
  std::shared_ptr<torch::nn::Module> clone(const std::optional<torch::Device>& = std::nullopt) const override {
    return std::make_shared<TwoHeadedImpl>(/*has_second=*/false);
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 3)), second{nullptr};
};
TORCH_MODULE(TwoHeaded);

TEST_P(ModelObject, ACloneWithFewerChildrenHasTheModesOfThoseThatItHas) {
  TwoHeaded model;
  auto net = amp::initialize(model, level(), quiet());
  net->first->eval();
  const auto copy = std::dynamic_pointer_cast<TwoHeadedImpl>(net->clone());
  ASSERT_TRUE(copy);
  EXPECT_TRUE(copy->is_training());
  EXPECT_FALSE(copy->first->is_training());
  EXPECT_EQ(copy->children().size(), 1u);
}

TEST_P(ModelObject, WarnsWhenAParentKeepsTheUnpatchedModule) {
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

TEST_P(ModelObject, NoWarningWithoutAParent) {
  Dropping model;
  CaughtWarnings warnings;
  auto net = amp::initialize(model, level(), quiet());
  auto again = amp::initialize(model, level(), quiet());
  EXPECT_EQ(warnings.text, "");
}

TEST_P(ModelObject, ASharedPointerAndItsHandleShareDataMembers) {
  auto model = std::make_shared<CounterImpl>();
  auto net = amp::initialize(model, level(), quiet());
  model->forward(features());
  net->forward(features());
  EXPECT_EQ(model->calls, 2);
  EXPECT_EQ(static_cast<CounterImpl*>(net.get()), model.get());
}

TEST_P(ModelObject, SwapAndResetOfAHandleOfASharedPointerChangeTheWholeHandle) {
  auto a = std::make_shared<torch::nn::LinearImpl>(6, 3), b = std::make_shared<torch::nn::LinearImpl>(6, 3);
  auto [first, second] = amp::initialize(std::tie(a, b), level(), quiet());
  const auto *of_first = first.get(), *of_second = second.get();
  first.swap(second);
  EXPECT_EQ(first.get(), of_second);
  EXPECT_EQ(second.get(), of_first);
  EXPECT_EQ(std::shared_ptr<torch::nn::LinearImpl>(first).get(), of_second);
  first.reset();
  EXPECT_TRUE(first.is_empty());
  EXPECT_FALSE(static_cast<bool>(first));
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

TEST_P(ModelObject, HandlesCanBePassedAsTheHolder) {
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

/// Reads `stream` as a program without amp does.
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

// ---- lambdas that capture the model's `this` ----

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

TEST_P(ModelObject, ThisCapturedByALambdaLivesAsLongAsTheHandle) {
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
  EXPECT_TRUE(torch::allclose(net->forward(features()).to(torch::kFloat), expected, kLinearBound, kLinearBound));
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

TEST_P(ModelObject, FunctionsWithoutACapturedThisCauseNoWarning) {
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

TEST_P(ModelObject, WithAmpModuleACapturedThisIsTheHandle) {
  PatchedLambda model;
  auto net = amp::initialize(model, level(), quiet());
  const Tensor before = net->forward(features());
  net->factor = 4;
  EXPECT_TRUE(torch::equal(net->forward(features()), before * 2));
}

// ---- calls of forward with the arguments of the user's class ----

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

TEST_P(ModelObject, BracedArgumentsOfForwardMakeAVectorAsWithoutAmp) {
  PairOf with_default;
  Overloaded overloaded;
  auto [pair, over] = amp::initialize(std::tie(with_default, overloaded), level(), quiet());
  const Tensor x = features(), y = torch::ones_like(x);
  EXPECT_TRUE(torch::equal(pair->forward({x, y}), pair->forward(std::vector<Tensor>{x, y}, false)));
  EXPECT_TRUE(torch::equal(pair->forward({x, y}, true), pair->forward({-x, y - y})));
  EXPECT_TRUE(torch::equal(over->forward({x, y}), over->forward(std::vector<Tensor>{x, y})));
  EXPECT_EQ(over->forward({x, y}).scalar_type(), over->forward(x).scalar_type());
}

TEST_P(ModelObject, SequentialForwardTakesItsResultType) {
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
