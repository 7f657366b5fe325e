// FP16O-01: parameters that FP16_Optimizer rejects, and parameters added or removed after its construction.
#include <sstream>

#include "tests/errors.h"
#include "tests/fp16_utils/half_network.h"

namespace apex::test {
namespace {

using torch::Tensor;

constexpr double kScale = 64;

Tensor trained_ones(torch::Dtype dtype = torch::kHalf) { return torch::ones({4}, dtype).requires_grad_(); }
Tensor frozen_ones(torch::Dtype dtype = torch::kHalf) { return torch::ones({4}, dtype); }
torch::optim::SGD plain_sgd(const std::vector<Tensor>& params) { return torch::optim::SGD(params, 0.25); }
void add_group(torch::optim::Optimizer& optimizer, const Tensor& param) {
  optimizer.add_param_group(torch::optim::OptimizerParamGroup(std::vector<Tensor>{param}));
}
bool holds(const Tensor& tensor, double value) { return tensor.eq(value).all().item<bool>(); }
Tensor loss_of(const Tensor& a, const Tensor& b) { return (a.to(torch::kFloat) * b.to(torch::kFloat)).sum(); }

/// A parameter that is trained from the start, and one that comes later, in one of two ways.
class LateParams : public ::testing::TestWithParam<std::tuple<torch::Dtype, bool>> {
 protected:
  void add_late_param() {
    late.set_requires_grad(true);
    if (added()) add_group(sgd, late);
  }
  static bool added() { return std::get<1>(GetParam()); }
  static bool gets_master() { return std::get<0>(GetParam()) != torch::kFloat; }

  Tensor early = trained_ones(), late = frozen_ones(std::get<0>(GetParam()));
  torch::optim::SGD sgd = plain_sgd(added() ? std::vector<Tensor>{early} : std::vector<Tensor>{late, early});
  FP16_Optimizer optimizer{sgd, quiet().static_loss_scale(kScale)};
};

TEST_P(LateParams, AreSteppedWithUnscaledGradients) {
  add_late_param();
  for (int i = 0; i < 2; ++i) {
    optimizer.zero_grad();
    optimizer.backward(loss_of(early, late));
    EXPECT_TRUE(holds(late.grad(), (i == 0 ? 1 : 0.75) * (gets_master() ? kScale : 1)));
    optimizer.step();
  }
  // w <- w - w / 4, exactly: 1, 3/4, 9/16.
  EXPECT_TRUE(holds(late, 0.5625)) << late;
  EXPECT_TRUE(holds(early, 0.5625)) << early;
  std::vector<Tensor> halves = {early};
  if (gets_master()) halves.insert(added() ? halves.end() : halves.begin(), late);
  ASSERT_EQ(optimizer.fp16_params().size(), halves.size());
  for (size_t i = 0; i < halves.size(); ++i) EXPECT_TRUE(optimizer.fp16_params()[i].is_same(halves[i])) << i;
}

TEST_P(LateParams, AccumulateOverSeveralPasses) {
  optimizer.backward(loss_of(early, late), /*update_master_grads=*/false);
  add_late_param();
  for (int i = 0; i < 2; ++i) optimizer.backward(loss_of(early, late), /*update_master_grads=*/false);
  optimizer.update_master_grads();
  optimizer.step();
  EXPECT_TRUE(holds(late, 0.5)) << "two passes";
  EXPECT_TRUE(holds(early, 0.25)) << "three passes";
}

TEST_P(LateParams, AreAcceptedWithHandmadeGradients) {
  add_late_param();
  (loss_of(early, late) * kScale).backward();
  optimizer.update_master_grads();
  optimizer.step();
  EXPECT_TRUE(holds(late, 0.75)) << late;
}

TEST_P(LateParams, AreSteppedWithAClosure) {
  add_late_param();
  optimizer.step([&] {
    optimizer.zero_grad();
    const Tensor loss = loss_of(early, late);
    optimizer.backward(loss);
    return loss;
  });
  EXPECT_TRUE(holds(late, 0.75)) << late;
}

TEST_P(LateParams, AScaledGradientIsAnErrorAndChangesNothing) {
  optimizer.backward(loss_of(early, late));
  add_late_param();
  late.mutable_grad() = torch::ones_like(late);
  EXPECT_THROW(optimizer.step(), c10::Error);
  EXPECT_TRUE(holds(early, 1) && holds(optimizer.fp32_from_fp16_params()[0], 1) && holds(late, 1));
  optimizer.zero_grad();
  optimizer.backward(loss_of(early, late));
  optimizer.step();
  EXPECT_TRUE(holds(early, 0.75) && holds(late, 0.75));
}

// Masters are saved by position.
TEST_P(LateParams, AreSavedAndLoadedInTheGroupsOrder) {
  add_late_param();
  optimizer.backward(loss_of(early, torch::full({4}, 2.0)) + loss_of(late, torch::ones({4})));
  optimizer.step();
  std::stringstream file;
  torch::save(optimizer, file);

  Tensor early_copy = trained_ones(), late_copy = frozen_ones(late.scalar_type());
  auto sgd_copy = plain_sgd(added() ? std::vector<Tensor>{early_copy} : std::vector<Tensor>{late_copy, early_copy});
  FP16_Optimizer again(sgd_copy, quiet().static_loss_scale(kScale));
  late_copy.set_requires_grad(true);
  if (added()) add_group(sgd_copy, late_copy);
  torch::load(again, file);
  const auto& masters = again.fp32_from_fp16_params();
  ASSERT_EQ(masters.size(), gets_master() ? 2u : 1u);
  EXPECT_TRUE(holds(added() ? masters.front() : masters.back(), 0.5)) << "stepped by 2 / 4";
  EXPECT_TRUE(!gets_master() || holds(added() ? masters.back() : masters.front(), 0.75)) << "stepped by 1 / 4";
}

INSTANTIATE_TEST_SUITE_P(
    All, LateParams, ::testing::Combine(::testing::Values(torch::kHalf, torch::kBFloat16, torch::kFloat), ::testing::Bool()),
    [](const auto& test) {
      return std::string(c10::toString(std::get<0>(test.param))) + (std::get<1>(test.param) ? "Added" : "Unfrozen");
    });

TEST(LateParam, AnOverflowInItIsDetected) {
  Tensor early = trained_ones(), late = frozen_ones(torch::kFloat);
  auto sgd = plain_sgd({early, late});
  FP16_Optimizer optimizer(sgd, dynamic(kScale));
  late.set_requires_grad(true);
  optimizer.backward(loss_of(early, late * 1e38));
  EXPECT_TRUE(optimizer.overflow());
}

TEST(LateParam, AnUntrainableOneIsAnErrorAndChangesNothing) {
  Tensor early = trained_ones(), late = frozen_ones(torch::kDouble);
  auto sgd = plain_sgd({early, late});
  FP16_Optimizer optimizer(sgd, quiet());
  late.set_requires_grad(true);
  EXPECT_THROW(optimizer.backward(loss_of(early, late)), c10::TypeError);
  EXPECT_FALSE(early.grad().defined() || late.grad().defined());
  EXPECT_THROW(optimizer.update_master_grads(), c10::TypeError);
}

TEST(LateParam, ADuplicateIsNotSteppedTwice) {
  Tensor param = trained_ones();
  auto sgd = plain_sgd({param});
  FP16_Optimizer optimizer(sgd, quiet());
  sgd.param_groups()[0].params().push_back(param);
  optimizer.backward(loss_of(param, torch::ones({4})));
  optimizer.step();
  EXPECT_TRUE(holds(param, 0.75));
  add_group(sgd, param);
  EXPECT_THROW(optimizer.backward(loss_of(param, torch::ones({4}))), c10::ValueError);
  EXPECT_THROW(optimizer.step(), c10::ValueError);
  EXPECT_TRUE(sgd.param_groups()[1].params()[0].is_same(param)) << "nothing was changed";
  EXPECT_TRUE(holds(param, 0.75));
}

/// Two parameters, each in its own group.
class RemovedParams : public ::testing::TestWithParam<torch::Dtype> {
 protected:
  RemovedParams() { add_group(sgd, removed); }
  static FP16_OptimizerOptions options() { return quiet().static_loss_scale(kScale); }
  Tensor loss() { return kept.to(torch::kFloat).sum() + removed.to(torch::kFloat).sum(); }
  void write_removed(double value) { torch::nn::init::constant_(removed, value); }

  Tensor kept = trained_ones(GetParam()), removed = trained_ones(GetParam());
  torch::optim::SGD sgd = plain_sgd({kept});
};
INSTANTIATE_TEST_SUITE_P(Types, RemovedParams, ::testing::Values(torch::kHalf, torch::kBFloat16, torch::kFloat),
                         [](const auto& test) { return std::string(c10::toString(test.param)); });

TEST_P(RemovedParams, TrainInAnotherOptimizer) {
  FP16_Optimizer first(sgd, options());
  sgd.param_groups().pop_back();
  auto other_sgd = plain_sgd({removed});
  FP16_Optimizer second(other_sgd, options());
  for (int i = 0; i < 2; ++i) {
    first.zero_grad();
    second.zero_grad();
    second.backward(loss());
    first.update_master_grads();
    second.step();
    first.step();
  }
  EXPECT_TRUE(holds(kept, 0.5)) << kept;
  EXPECT_TRUE(holds(removed, 0.5)) << removed;
}

TEST_P(RemovedParams, AreNotWrittenByTheNextStep) {
  FP16_Optimizer optimizer(sgd, options());
  optimizer.backward(loss());
  sgd.param_groups().pop_back();
  write_removed(2);
  optimizer.step();
  EXPECT_TRUE(holds(kept, 0.75)) << kept;
  EXPECT_TRUE(holds(removed, 2)) << removed;
}

TEST_P(RemovedParams, AreNotSaved) {
  FP16_Optimizer optimizer(sgd, options());
  sgd.param_groups().pop_back();
  std::stringstream file;
  torch::save(optimizer, file);
  auto kept_sgd = plain_sgd({kept});
  FP16_Optimizer loaded(kept_sgd, options());
  EXPECT_NO_THROW(torch::load(loaded, file));
}

TEST_P(RemovedParams, ThatComeBackAreSteppedFromTheirValues) {
  FP16_Optimizer optimizer(sgd, options());
  const auto group = sgd.param_groups().back();
  sgd.param_groups().pop_back();
  optimizer.backward(loss());
  optimizer.step();
  write_removed(2);
  sgd.param_groups().push_back(group);
  optimizer.zero_grad();
  optimizer.backward(loss());
  optimizer.step();
  EXPECT_TRUE(holds(kept, 0.5)) << kept;
  EXPECT_TRUE(holds(removed, 1.75)) << removed;
}

TEST(ParamsWithGaps, In16BitsAreAnErrorAndChangeNothing) {
  for (const auto dtype : {torch::kHalf, torch::kBFloat16}) {
    Tensor dense = trained_ones(dtype);
    Tensor gaps = torch::ones({4, 8}, dtype).narrow(1, 0, 4).detach().requires_grad_();
    auto sgd = plain_sgd({dense, gaps});
    expect_error<c10::ValueError>([&] { FP16_Optimizer(sgd, quiet()); },
                                  {"parameter 1 of group 0, of shape [4, 4] and strides [8, 1]"});
    EXPECT_TRUE(sgd.param_groups()[0].params()[0].is_same(dense));
  }
}

TEST(ParamsWithGaps, InFloat32AreStepped) {
  const Tensor memory = torch::ones({4, 8});
  Tensor gaps = memory.narrow(1, 0, 4).detach().requires_grad_();
  auto sgd = plain_sgd({gaps});
  FP16_Optimizer optimizer(sgd, quiet().static_loss_scale(kScale));
  optimizer.backward(gaps.square().sum() / 2);
  optimizer.step();
  EXPECT_TRUE(holds(gaps, 0.75));
  EXPECT_TRUE(holds(memory.narrow(1, 4, 4), 1)) << "what lies between is left alone";
}

}  // namespace
}  // namespace apex::test
