// LARC-01, LARC-02: the results against a reference in float64, and the state after a step.
#include <apex_cpp/optimizers.h>
#include <apex_cpp/parallel.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "tests/errors.h"

namespace apex::test {
namespace {

using parallel::LARC;
using parallel::LARCOptions;
using torch::optim::SGD;
using torch::optim::SGDOptions;

constexpr double kRate = 0.5, kMomentum = 0.9;

struct Setting {
  const char* name;
  double trust_coefficient;
  bool clip;
  double weight_decay;
};

// SGD with momentum for one parameter, in float64. `sizes` has what a parameter would be if nothing cancelled: roundings are
// relative to that.
struct Reference {
  std::vector<double> param, momentum, sizes, momentum_sizes;

  void step(std::vector<double> grad, const Setting& setting, double eps) {
    const auto norm = [](const std::vector<double>& values) {
      double squares = 0;
      for (const double value : values) squares += value * value;
      return std::sqrt(squares);
    };
    const double p = norm(param), g = norm(grad);
    std::vector<double> grad_sizes(grad.size());
    for (size_t i = 0; i < grad.size(); ++i) grad_sizes[i] = std::abs(grad[i]);
    if (p != 0 && g != 0) {
      double rate = setting.trust_coefficient * p / (g + p * setting.weight_decay + eps);
      if (setting.clip) rate = std::min(rate / kRate, 1.0);
      for (size_t i = 0; i < grad.size(); ++i) {
        grad[i] = (grad[i] + setting.weight_decay * param[i]) * rate;
        grad_sizes[i] = (grad_sizes[i] + setting.weight_decay * sizes[i]) * rate;
      }
    }
    const bool first = momentum.empty();
    if (first) momentum = grad, momentum_sizes = grad_sizes;
    for (size_t i = 0; i < grad.size(); ++i) {
      if (!first) momentum[i] = kMomentum * momentum[i] + grad[i];
      if (!first) momentum_sizes[i] = kMomentum * momentum_sizes[i] + grad_sizes[i];
      param[i] -= kRate * momentum[i];
      sizes[i] += kRate * momentum_sizes[i];
    }
  }
};

std::vector<double> values_of(const torch::Tensor& tensor) {
  const auto flat = tensor.detach().to(torch::kDouble).contiguous();
  return {flat.const_data_ptr<double>(), flat.const_data_ptr<double>() + flat.numel()};
}

SGDOptions sgd_options(double weight_decay = 0) { return SGDOptions(kRate).momentum(kMomentum).weight_decay(weight_decay); }

torch::Tensor leaf(torch::Tensor values) { return values.requires_grad_(); }

class LarcNumbers : public ::testing::TestWithParam<Setting> {};

// Includes a parameter of zeros and a gradient of zeros, which get neither an adaptive rate nor weight decay. A step rounds two
// norms (as sums, and as roots, which halve that), the rate, weight decay, a gradient three times (decay, sum, rate), its
// momentum three times and the parameter twice: 13 roundings, by 2^-24 each of what the values would be if nothing cancelled.
// Those of earlier steps count twice: in the parameter and, by its norm, in the rate.
TEST_P(LarcNumbers, Larc02FollowsTheReferenceInFloat64) {
  torch::manual_seed(3);
  std::vector<torch::Tensor> params = {leaf(torch::randn({7, 5})), leaf(torch::zeros({6})), leaf(torch::randn({4}) * 30)};
  std::vector<Reference> references;
  for (const auto& param : params) references.push_back({values_of(param), {}, values_of(param.abs()), {}});
  SGD sgd(params, sgd_options(GetParam().weight_decay));
  LARC larc(sgd, GetParam().trust_coefficient, GetParam().clip);
  for (int step = 0; step < 3; ++step) {
    for (size_t i = 0; i < params.size(); ++i) {
      params[i].mutable_grad() = torch::randn_like(params[i].detach()) * (i == 2 && step == 1 ? 0.0 : 1.0);
      references[i].step(values_of(params[i].grad()), GetParam(), 1e-8);
    }
    larc.step();
    const double bound = 13 * ((2 << step) - 1) * 0x1p-24;
    for (size_t i = 0; i < params.size(); ++i) {
      const auto got = values_of(params[i]);
      for (size_t j = 0; j < got.size(); ++j) {
        EXPECT_NEAR(got[j], references[i].param[j], bound * references[i].sizes[j]) << step << " " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Settings, LarcNumbers,
                         ::testing::Values(Setting{"Clip", 0.02, true, 0}, Setting{"ClipDecay", 0.02, true, 0.1},
                                           Setting{"ClippedAtOne", 40, true, 0.1}, Setting{"Scale", 0.02, false, 0},
                                           Setting{"ScaleDecay", 0.05, false, 0.1}),
                         [](const auto& test) { return test.param.name; });

TEST(Larc, Larc02WorksInPlaceWithEachGroupsRate) {
  const auto a = leaf(torch::full({4}, 2.0)), b = leaf(torch::full({4}, 2.0));
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<torch::Tensor>{a}, std::make_unique<SGDOptions>(SGDOptions(0.5)));
  groups.emplace_back(std::vector<torch::Tensor>{b}, std::make_unique<SGDOptions>(SGDOptions(0.25)));
  SGD sgd(groups, SGDOptions(0.5));
  LARC larc(sgd, LARCOptions().trust_coefficient(0.1));
  a.mutable_grad() = torch::ones({4});
  b.mutable_grad() = torch::ones({4});
  const torch::Tensor grad = a.grad();
  EXPECT_FALSE(larc.step().defined());
  EXPECT_TRUE(a.grad().is_same(grad));
  // Norms of 4 and 2 are exact. The rate that is made of them in float64 is rounded by 2^-24, as is the expected value; 1e-8 in
  // the denominator is less than 2^-26 of it.
  constexpr double kGrad = 2 * 0x1p-24 + 0x1p-26;
  EXPECT_TRUE(torch::allclose(a.grad(), torch::full({4}, 0.1 * 2 / 0.5), kGrad, 0));
  EXPECT_TRUE(torch::allclose(b.grad(), torch::full({4}, 0.1 * 2 / 0.25), kGrad, 0));
  // Both are 2 less 0.2, which is a rate times such a gradient; the product is rounded by 2^-27, the parameter by 2^-24.
  EXPECT_TRUE(torch::allclose(b, a, 0, 2 * (0.2 * kGrad + 0x1p-27 + 0x1p-24)))
      << "where clipping does not bite, the layer's rate is all that counts";
}

TEST(Larc, Larc02Accepts16BitParametersAndOtherStrides) {
  for (const auto dtype : {torch::kHalf, torch::kBFloat16}) {
    const auto param = leaf(torch::ones({3, 4}, dtype));
    SGD sgd({param}, SGDOptions(1.0));
    LARC larc(sgd, 0.1);
    param.mutable_grad() = torch::full({4, 3}, 2.0, dtype).t();
    larc.step();
    // The gradient and the parameter, both below 1, are rounded to the dtype once each, by 2^-9 at most.
    EXPECT_TRUE(torch::allclose(param.to(torch::kFloat), torch::full({3, 4}, 0.9), 0, 0x1p-8)) << dtype;
  }
}

TEST(Larc, Larc02AParameterWithoutGradientIsNotChanged) {
  const auto with = leaf(torch::ones({2})), without = leaf(torch::ones({2}));
  SGD sgd({without, with}, sgd_options(0.1));
  LARC larc(sgd);
  with.mutable_grad() = torch::ones({2});
  larc.step();
  EXPECT_TRUE(torch::equal(without, torch::ones({2})));
  EXPECT_FALSE(torch::equal(with, torch::ones({2})));
}

TEST(Larc, Larc02WeightDecayIsZeroOnlyDuringTheStep) {
  struct Watching : SGD {
    using SGD::SGD;
    double seen = -1;
    bool fails = false;
    torch::Tensor step(LossClosure closure = nullptr) override {
      seen = static_cast<const SGDOptions&>(param_groups()[0].options()).weight_decay();
      TORCH_CHECK(!fails, "no step today");
      return SGD::step(std::move(closure));
    }
  };
  const auto param = leaf(torch::ones({2}));
  Watching watching(std::vector<torch::Tensor>{param}, sgd_options(0.25));
  LARC larc(watching);
  const auto decay = [&] { return static_cast<const SGDOptions&>(larc.param_groups()[0].options()).weight_decay(); };
  param.mutable_grad() = torch::ones({2});
  larc.step();
  EXPECT_EQ(larc.seen, 0.0);
  EXPECT_EQ(decay(), 0.25);
  larc.fails = true;
  EXPECT_THROW(larc.step(), c10::Error);
  EXPECT_EQ(decay(), 0.25);
  EXPECT_FALSE(param.grad().defined()) << "a repeated step would adapt it again";
}

TEST(Larc, Larc01RejectsAClosureAndInvalidValues) {
  const auto param = leaf(torch::ones({2}));
  SGD sgd({param}, sgd_options());
  EXPECT_THROW(LARC(sgd, 0.0), c10::ValueError);
  EXPECT_THROW(LARC(sgd, INFINITY), c10::ValueError);
  EXPECT_THROW(LARC(sgd, 0.1, true, -1.0), c10::ValueError);
  EXPECT_THROW(LARC(sgd, 0.1, true, NAN), c10::ValueError);
  EXPECT_EQ(sgd.param_groups()[0].params()[0].data_ptr(), param.data_ptr()) << "nothing was taken over";
  LARC larc(sgd);
  param.mutable_grad() = torch::ones({2});
  EXPECT_THROW(larc.step([] { return torch::ones({}); }), c10::Error);
  EXPECT_TRUE(torch::equal(param, torch::ones({2})));
}

TEST(Larc, RejectsSparseGradientsAndDoubleAndChangesNothing) {
  const auto first = leaf(torch::ones({2}));
  for (const bool sparse : {true, false}) {
    const auto second = sparse ? leaf(torch::ones({3, 2})) : leaf(torch::ones({2}, torch::kDouble));
    SGD sgd({first, second}, sgd_options());
    LARC larc(sgd);
    first.mutable_grad() = torch::ones({2});
    second.mutable_grad() = sparse ? torch::eye(3).slice(1, 0, 2).to_sparse() : torch::ones({2}, torch::kDouble);
    expect_error([&] { larc.step(); },
                 {"parameter 1 of its group, of shape " + std::string(sparse ? "[3, 2]" : "[2]"),
                  sparse ? "is sparse; LARC takes dense gradients" : "has dtype Double; expected float32"});
    EXPECT_TRUE(torch::equal(first.grad(), torch::ones({2})));
  }
}

TEST(Larc, RejectsGapsAndOtherShapesInALaterGroupAndChangesNothing) {
  using Group = torch::optim::OptimizerParamGroup;
  for (const bool gaps : {true, false}) {
    const auto first = leaf(torch::ones({2}));
    const auto second = leaf(gaps ? torch::ones({4, 6}).narrow(1, 0, 3).detach() : torch::ones({4, 3}));
    SGD sgd({Group({first}), Group({second})}, sgd_options());
    LARC larc(sgd);
    first.mutable_grad() = torch::ones({2});
    second.mutable_grad() = gaps ? torch::ones({4, 3}) : torch::ones({3, 3});
    EXPECT_THROW(larc.step(), c10::Error);
    EXPECT_TRUE(torch::equal(first.grad(), torch::ones({2})));
  }
}

TEST(Larc, RejectsAParameterPutIntoASecondGroup) {
  const auto first = leaf(torch::ones({2})), second = leaf(torch::ones({2}));
  using Group = torch::optim::OptimizerParamGroup;
  SGD sgd({Group({first}), Group({second})}, sgd_options());
  LARC larc(sgd);
  larc.param_groups()[1].params()[0] = first;
  first.mutable_grad() = torch::ones({2});
  EXPECT_THROW(larc.step(), c10::ValueError);
  EXPECT_TRUE(torch::equal(first, torch::ones({2})));
}

// A fused optimizer unscales in its own step where a loss scaler on the device asks for it; here LARC has to, once.
TEST(Larc, UnscalesOnceWithAGradScaler) {
  const auto run = [](double scale, bool overflow) {
    const auto param = leaf(torch::full({8}, 2.0));
    optimizers::FusedAdam adam({param}, optimizers::FusedAdamOptions().lr(0.5).weight_decay(0.1));
    LARC larc(adam, 0.1);
    param.mutable_grad() = torch::arange(8, torch::kFloat) * scale;
    if (scale != 1) larc.grad_scale = torch::full({1}, scale);
    if (overflow) larc.found_inf = torch::ones({1});
    larc.step();
    EXPECT_EQ(larc.grad_scale.defined(), scale != 1);
    return param.detach();
  };
  EXPECT_TRUE(torch::equal(run(1, false), run(1024, false)));
  EXPECT_TRUE(torch::equal(run(1024, true), torch::full({8}, 2.0)));
}

// Below 2^-24 a true gradient would be 0.
TEST(Larc, RefusesToUnscaleFloat16Gradients) {
  const auto param = leaf(torch::full({8}, 2.0).to(torch::kHalf));
  optimizers::FusedSGD sgd({param}, optimizers::FusedSGDOptions(0.5));
  LARC larc(sgd, 0.1);
  param.mutable_grad() = torch::full({8}, 0x1p-20).to(torch::kHalf);
  larc.grad_scale = torch::full({1}, 1024.0f);
  EXPECT_THROW(larc.step(), c10::ValueError);
  EXPECT_TRUE(torch::equal(param, torch::full_like(param, 2.0)));
  EXPECT_TRUE(torch::equal(param.grad(), torch::full_like(param, 0x1p-20)));
  larc.grad_scale = torch::Tensor();
  param.mutable_grad().fill_(1);
  larc.step();
  EXPECT_FALSE(torch::equal(param, torch::full_like(param, 2.0)));
}

}  // namespace
}  // namespace apex::test
