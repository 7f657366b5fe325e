// ExponentialMovingAverage of one weight, without amp: its formula, its state and its errors.
#include <apex_cpp/swa_utils.h>

#include <cmath>
#include <sstream>

#include "tests/amp/support.h"
#include "tests/amp/warnings.h"

namespace apex::test {
namespace {

using swa_utils::ExponentialMovingAverage;
using swa_utils::ExponentialMovingAverageOptions;
using torch::Tensor;

/// One weight that the test sets, without amp.
struct OneWeight {
  explicit OneWeight(torch::ScalarType dtype = torch::kDouble)
      : weight(torch::zeros({1}, torch::TensorOptions(dtype).requires_grad(true))),
        sgd({weight}, torch::optim::SGDOptions(0.1)) {}
  void set(double value) {
    const torch::NoGradGuard no_grad;
    weight.fill_(value);
  }
  Tensor weight;
  torch::optim::SGD sgd;
};

double only(const ExponentialMovingAverage& ema) { return ema.averages().at(0).item<double>(); }

// The sum over all earlier weights. Each update rounds three times, to 2^-53 of values below 1.
TEST(AverageOfOneWeight, IsTheWeightedSum) {
  OneWeight one;
  ExponentialMovingAverage ema(one.sgd, 0.75);
  double expected = 0;
  for (int n = 0; n < 20; ++n) {
    const double value = std::sin(n + 1);
    one.set(value);
    ema.update();
    expected = n == 0 ? value : 0.75 * expected + 0.25 * value;
    EXPECT_NEAR(only(ema), expected, 4 * 4 * std::ldexp(1, -53)) << n;  // a fourth of the error before stays
  }
}

TEST(AverageOfOneWeight, UsesTheNumberOfUpdates) {
  OneWeight one;
  ExponentialMovingAverage ema(one.sgd, ExponentialMovingAverageOptions(0.3).use_num_updates(true));
  one.set(1);
  ema.update();
  one.set(0);
  double expected = 1;
  for (const double decay : {2.0 / 11, 3.0 / 12, 0.3, 0.3}) {  // 4 / 13 is above 0.3
    ema.update();
    expected *= decay;
    EXPECT_DOUBLE_EQ(only(ema), expected);
  }
}

TEST(AverageOfOneWeight, IsFloat32ForA16BitWeight) {
  OneWeight one(torch::kBFloat16);
  ExponentialMovingAverage ema(one.sgd, 0.5);
  for (const double value : {1.0, 1.0078125, 1.0}) {
    one.set(value);
    ema.update();
  }
  EXPECT_EQ(ema.averages()[0].scalar_type(), torch::kFloat);
  EXPECT_EQ(only(ema), 1.001953125);  // 1 + 2^-9, which bfloat16 lacks
}

TEST(AverageOfOneWeight, KeepsEveryBitOfOddWeights) {
  OneWeight one(torch::kHalf);
  one.set(-0.0);
  ExponentialMovingAverage ema(one.sgd, 0.5);
  for (const double value : {-0.0, static_cast<double>(kNan), static_cast<double>(kInf)}) {
    one.set(value);
    const auto before = test::bytes_of(one.weight);
    { const auto averaged = ema.average_parameters(); }
    EXPECT_EQ(test::bytes_of(one.weight), before);
  }
}

TEST(AverageOfOneWeight, IsSavedAlone) {
  OneWeight one, another;
  ExponentialMovingAverage ema(one.sgd, 0.5), loaded(another.sgd, 0.5);
  for (const double value : {1.0, 2.0}) {
    one.set(value);
    ema.update();
  }
  std::stringstream file;
  torch::serialize::OutputArchive out;
  ema.save(out);
  out.save_to(file);
  torch::serialize::InputArchive in;
  in.load_from(file);
  loaded.load(in);
  EXPECT_EQ(only(loaded), 1.5);
  EXPECT_EQ(loaded.n_averaged(), 2);
}

// At a level with masters the optimizer's groups have these in the place of the parameters.
TEST(AverageOfMovedParameters, StaysWithEach) {
  for (const char* level : {"O0", "O5"}) {
    amp::reset();
    torch::nn::Sequential model(torch::nn::Linear(3, 3), torch::nn::Linear(3, 3), torch::nn::Linear(3, 3));
    torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1));
    auto [net, opt] = amp::initialize(model, sgd, level, quiet());
    ExponentialMovingAverage ema(opt, 0.5);
    ema.update();
    const auto averages = ema.averages();
    const auto before = test::bytes_of(*net);
    auto& params = opt.param_groups()[0].params();
    torch::optim::OptimizerParamGroup slow({params[2], params[3]}, opt.param_groups()[0].options().clone());
    params.erase(params.begin() + 2, params.begin() + 4);
    std::swap(params[0], params[1]);
    opt.param_groups().push_back(slow);
    ema.update();
    {
      const auto averaged = ema.average_parameters();
      EXPECT_EQ(test::bytes_of(*net), before) << level;
    }
    EXPECT_EQ(test::bytes_of(*net), before) << level;
    for (size_t i = 0; i < averages.size(); ++i) {
      // An average of equal values is that value, and a master rounds to its weight.
      const Tensor weight = net->parameters()[i];
      EXPECT_TRUE(ema.averages()[i].to(weight.scalar_type()).equal(weight)) << level << ", " << i;
    }
  }
  amp::reset();
}

TEST(AverageErrors, OfArguments) {
  OneWeight one;
  expect_error<c10::ValueError>([&] { ExponentialMovingAverage(one.sgd, 1.5); }, {"decay is 1.5", "from 0 to 1"});
  expect_error<c10::ValueError>([&] { ExponentialMovingAverage(one.sgd, kNan); }, {"decay is nan"});
  torch::optim::SGD empty(std::vector<Tensor>{}, torch::optim::SGDOptions(0.1));
  expect_error([&] { ExponentialMovingAverage(empty, 0.5); }, {"has no parameters"});
}

TEST(AverageErrors, OfUseWithinAnEvaluation) {
  OneWeight one;
  ExponentialMovingAverage ema(one.sgd, 0.5);
  auto averaged = ema.average_parameters();
  expect_error([&] { ema.update(); }, {"::update", "average_parameters()"});
  expect_error([&] { const auto again = ema.average_parameters(); }, {"::average_parameters"});
  averaged.restore();
  averaged.restore();
  ema.update();
  EXPECT_EQ(ema.n_averaged(), 1);
}

TEST(AverageErrors, OfAWeightThatCannotBeWritten) {
  const auto zeros = [] { return torch::zeros({2}, torch::TensorOptions(torch::kDouble).requires_grad(true)); };
  Tensor first = zeros(), second = zeros();
  torch::optim::SGD sgd(std::vector<Tensor>{first, second}, torch::optim::SGDOptions(0.1));
  ExponentialMovingAverage ema(sgd, 0.5);
  {
    const torch::NoGradGuard no_grad;
    first.fill_(1);
  }
  second.set_data(torch::zeros({1}, torch::kDouble).expand({2}));
  expect_error([&] { const auto averaged = ema.average_parameters(); }, {"single memory location"});
  EXPECT_TRUE(first.equal(torch::ones({2}, torch::kDouble)));
  second.set_data(torch::zeros({2}, torch::kDouble));
  ema.update();
  EXPECT_EQ(ema.n_averaged(), 1);
}

TEST(AverageErrors, OfOtherParameters) {
  OneWeight one, two;
  ExponentialMovingAverage ema(one.sgd, 0.5);
  const auto before = test::bytes_of(ema.averages()[0]);
  one.sgd.add_param_group(torch::optim::OptimizerParamGroup({two.weight}));
  expect_error<c10::ValueError>([&] { ema.update(); }, {"has 2 parameters", "averages of 1", "new ExponentialMovingAverage"});
  one.sgd.param_groups().pop_back();
  one.sgd.param_groups()[0].params()[0] = torch::zeros({3}, torch::kDouble);
  expect_error<c10::ValueError>([&] { const auto again = ema.average_parameters(); },
                                {"the parameter of average 0, of shape [1], is not in the optimizer"});
  one.sgd.param_groups()[0].params()[0] = two.weight;
  expect_error<c10::ValueError>([&] { ema.update(); }, {"is not in the optimizer"});
  one.sgd.param_groups()[0].params()[0] = one.weight;
  one.weight.set_data(torch::zeros({3}, torch::kDouble));
  expect_error<c10::ValueError>([&] { ema.update(); }, {"has another shape"});
  EXPECT_EQ(test::bytes_of(ema.averages()[0]), before);
}

TEST(AverageErrors, OfAnotherModelsFile) {
  OneWeight one;
  Tensor wide = torch::ones({3}, torch::TensorOptions(torch::kDouble).requires_grad(true));
  torch::optim::SGD of_wide({wide}, torch::optim::SGDOptions(0.1));
  ExponentialMovingAverage ema(one.sgd, 0.5), of_another(of_wide, 0.5);
  of_another.update();  // a count that a refused load must not take over
  std::stringstream file;
  torch::serialize::OutputArchive out;
  of_another.save(out);
  out.save_to(file);
  torch::serialize::InputArchive in;
  in.load_from(file);
  expect_error<c10::ValueError>([&] { ema.load(in); }, {"'average_0' has shape [3]", "[1]"});
  EXPECT_EQ(ema.n_averaged(), 0);
  EXPECT_EQ(only(ema), 0);
  torch::optim::SGD of_two(std::vector<Tensor>{wide, one.weight}, torch::optim::SGDOptions(0.1));
  ExponentialMovingAverage two(of_two, 0.5);
  expect_error([&] { two.load(in); }, {"average_1"});
  EXPECT_EQ(two.n_averaged(), 0);
}

TEST(AverageErrors, OfAWeightThatCannotBeRestored) {
  Tensor weight = torch::zeros({1}, torch::TensorOptions(torch::kDouble).requires_grad(true));
  torch::optim::SGD sgd(std::vector<Tensor>{weight}, torch::optim::SGDOptions(0.1));
  ExponentialMovingAverage ema(sgd, 0.5);
  auto averaged = ema.average_parameters();
  weight.set_data(torch::zeros({2}, torch::kDouble));
  expect_error([&] { averaged.restore(); }, {"shape [1]", "has [2] now"});
  weight.set_data(torch::zeros({1}, torch::kDouble));
  CaughtWarnings caught;
  {
    const auto again = ema.average_parameters();
    weight.set_data(torch::zeros({2}, torch::kDouble));
  }
  EXPECT_TRUE(contains(caught.text, "could not restore the weights"));
}

TEST(AverageErrors, OfAReplacedOptimizer) {
  amp::reset();
  Mlp model;
  torch::optim::SGD sgd(model->parameters(), torch::optim::SGDOptions(0.1));
  auto [net, opt] = amp::initialize(model, sgd, "O2", quiet());
  expect_error([&] { ExponentialMovingAverage(sgd, 0.5); }, {"amp::initialize has replaced", "handle"});
  auto moved = std::move(opt);
  expect_error([&] { ExponentialMovingAverage(opt, 0.5); }, {"moved from"});
  EXPECT_EQ(ExponentialMovingAverage(moved, 0.5).averages().size(), 4u);
  amp::reset();
}

}  // namespace
}  // namespace apex::test
