// FusedNovoGrad's running norms stay with their parameters when a group's parameter list changes.
#include "tests/optimizers/classes.h"
#include "tests/optimizers/support.h"

namespace test {
namespace {

using namespace apex::optimizers;

// Without bias correction the group's step count has no effect.
const auto kOptions = FusedNovoGradOptions(0.1).bias_correction(false);

// Steps `optimizer`, over `params` in any order, beside one optimizer per parameter that starts at its own first step.
class BesideLoneOptimizers {
 public:
  explicit BesideLoneOptimizers(std::vector<at::Tensor> params, const FusedNovoGradOptions& options = kOptions)
      : params_(std::move(params)) {
    for (const at::Tensor& param : params_) {
      copies_.push_back(param.detach().clone().requires_grad_());
      alone_.push_back(std::make_unique<FusedNovoGrad>(std::vector<at::Tensor>{copies_.back()}, options));
    }
  }

  void step(FusedNovoGrad& optimizer, const std::vector<size_t>& trained) {
    for (size_t i = 0; i < params_.size(); ++i) params_[i].mutable_grad().reset();
    for (const size_t i : trained) {
      params_[i].mutable_grad() = copies_[i].mutable_grad() = values(params_[i].sizes(), seed_++);
      alone_[i]->step();
    }
    optimizer.step();
    EXPECT_TRUE(same_bytes(params_, copies_));
    const auto& listed = optimizer.param_groups()[0].params();
    for (const size_t i : trained) {
      const auto at = std::find_if(listed.begin(), listed.end(), [&](const auto& each) { return each.is_same(params_[i]); });
      EXPECT_EQ(optimizer.exp_avg_sq()[at - listed.begin()].item<float>(), alone_[i]->exp_avg_sq()[0].item<float>()) << i;
    }
  }

 private:
  std::vector<at::Tensor> params_, copies_;
  std::vector<std::unique_ptr<FusedNovoGrad>> alone_;
  int64_t seed_ = 20;
};

TEST(NovoGradsNorms, OfAGroupWithoutParametersAreUndefinedAndSurviveLoading) {
  const auto params = make_params(1), loaded_params = make_params(1);
  FusedNovoGrad optimizer(params, kOptions), loaded(loaded_params, kOptions);
  for (auto* each : {&optimizer, &loaded}) each->add_param_group(torch::optim::OptimizerParamGroup(std::vector<at::Tensor>{}));
  set_grads(params, 3);
  EXPECT_FALSE(optimizer.exp_avg_sq(0).defined()) << "before the first step";
  optimizer.step();
  EXPECT_TRUE(optimizer.exp_avg_sq(0).defined());
  EXPECT_FALSE(optimizer.exp_avg_sq(1).defined());
  EXPECT_FALSE(optimizer.exp_avg_sq(2).defined());
  load(loaded, saved(optimizer));
  EXPECT_TRUE(same_bytes(loaded.exp_avg_sq(0), optimizer.exp_avg_sq(0)));
  EXPECT_FALSE(loaded.exp_avg_sq(1).defined());
}

TEST(NovoGradsNorms, AreKeptWhenAParameterIsRemoved) {
  const auto params = make_params(1);
  FusedNovoGrad optimizer(params, kOptions);
  BesideLoneOptimizers check(params);
  check.step(optimizer, {0, 1, 2, 3});
  auto& listed = optimizer.param_groups()[0].params();
  listed.erase(listed.begin() + 1);
  check.step(optimizer, {0, 2, 3});
  check.step(optimizer, {3});
  check.step(optimizer, {0, 2});
}

TEST(NovoGradsNorms, AreKeptWhenAParameterIsRemovedAfterLoading) {
  const auto params = make_params(1);
  FusedNovoGrad optimizer(params, kOptions), resumed(params, kOptions);
  BesideLoneOptimizers check(params);
  check.step(optimizer, {0, 1, 2, 3});
  load(resumed, saved(optimizer));
  auto& listed = resumed.param_groups()[0].params();
  listed.erase(listed.begin() + 1);
  check.step(resumed, {0, 2, 3});
}

TEST(NovoGradsNorms, AreKeptWhenParametersChangePlaces) {
  const auto params = make_params(1);
  FusedNovoGrad optimizer(params, kOptions);
  BesideLoneOptimizers check(params);
  check.step(optimizer, {0, 1, 2, 3});
  auto& listed = optimizer.param_groups()[0].params();
  std::swap(listed[0], listed[2]);
  check.step(optimizer, {0, 1, 2, 3});
  check.step(optimizer, {2});
}

TEST(NovoGradsNorms, AreKeptWhenAParameterIsInsertedInFront) {
  for (const bool init_zero : {false, true}) {
    const auto params = make_params(1);
    auto options = kOptions;
    options.init_zero(init_zero);
    FusedNovoGrad optimizer(std::vector<at::Tensor>{params[0], params[1]}, options);
    BesideLoneOptimizers check(params, options);
    check.step(optimizer, {0, 1});
    auto& listed = optimizer.param_groups()[0].params();
    listed.insert(listed.begin(), params[2]);
    check.step(optimizer, {0});
    check.step(optimizer, {0, 1, 2});
    listed[0] = params[3];  // replaces a parameter that had a norm
    check.step(optimizer, {0, 1, 3});
  }
}

TEST(NovoGradsNorms, AreSavedInListOrder) {
  const auto params = make_params(1);
  FusedNovoGrad optimizer(params, kOptions);
  BesideLoneOptimizers check(params);
  check.step(optimizer, {0, 1, 2, 3});
  auto& listed = optimizer.param_groups()[0].params();
  listed.erase(listed.begin());
  FusedNovoGrad resumed({params[1], params[2], params[3]}, kOptions);
  load(resumed, saved(optimizer));
  check.step(resumed, {1, 2, 3});
}

TEST(NovoGradsNorms, OfAnErasedGroupAreNotSaved) {
  const auto params = make_params(1);
  FusedNovoGrad optimizer({torch::optim::OptimizerParamGroup({params[0]}), torch::optim::OptimizerParamGroup({params[1]})},
                          kOptions);
  for (const size_t i : {0, 1}) params[i].mutable_grad() = values(params[i].sizes(), i);
  optimizer.step();
  optimizer.param_groups().pop_back();
  FusedNovoGrad resumed(std::vector<at::Tensor>{params[0]}, kOptions);
  load(resumed, saved(optimizer));
  EXPECT_TRUE(torch::equal(resumed.exp_avg_sq(), optimizer.exp_avg_sq()));
}

}  // namespace
}  // namespace test
