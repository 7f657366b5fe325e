// Tests the functor of examples/multi_tensor_functor.
#include "lion.h"

#include "support.h"

#include "tests/needs_gpus.h"

namespace {

using namespace amp_C_test;

class Lion : public testing::TestWithParam<std::tuple<at::ScalarType, at::DeviceType>> {
 protected:
  void SetUp() override {
    if (device() == at::kCPU) return;
    APEX_CPP_NEEDS_GPUS(1);
  }

  at::ScalarType dtype() const { return std::get<0>(GetParam()); }
  at::DeviceType device() const { return std::get<1>(GetParam()); }

  Tensors on_device(Tensors list) const {
    for (at::Tensor& tensor : list) tensor = tensor.to(device());
    return list;
  }

  TensorLists lists() const {
    return {on_device(random_list(dtype())), on_device(random_list(dtype())), on_device(random_list(at::kFloat))};
  }
};

TEST_P(Lion, FollowsTheFormula) {
  const TensorLists l = lists();
  const double lr = 0.125, b1 = 0.75, b2 = 0.875, decay = 0.0625;
  Tensors params, means;
  for (size_t i = 0; i < l[0].size(); ++i) {
    const at::Tensor g = l[0][i].to(at::kDouble), p = l[1][i].to(at::kDouble), m = l[2][i].to(at::kDouble);
    params.push_back(p - lr * ((b1 * m + (1 - b1) * g).sign() + decay * p));
    means.push_back(b2 * m + (1 - b2) * g);
  }
  multi_tensor_lion_cuda(1000, flag().to(device()), l, 0.125f, 0.75f, 0.875f, 0.0625f);
  expect_near(l[1], params);
  expect_near(l[2], means);
}

TEST_P(Lion, ASetFlagChangesNothing) {
  const TensorLists l = lists();
  const TensorLists before = clones(l);
  multi_tensor_lion_cuda(1000, flag(1).to(device()), l, 0.125f, 0.75f, 0.875f, 0.0625f);
  expect_equal(l, before);
}

// MTA-05, MTA-06: several launches, split by tensors and by blocks, with empty tensors in between.
TEST_P(Lion, StepsAnyNumberOfTensors) {
  TensorLists l(3);
  const at::TensorOptions options = at::TensorOptions(device()).dtype(dtype());
  for (int64_t i = 0; i < 300; ++i) {
    l[0].push_back(at::full({i % 5 * 10}, i % 2 == 0 ? 1.0 : -1.0, options));
    l[1].push_back(at::full({i % 5 * 10}, static_cast<double>(i % 100), options));
    l[2].push_back(at::zeros({i % 5 * 10}, options.dtype(at::kFloat)));
  }
  multi_tensor_lion_cuda(4, flag().to(device()), l, 1.0f, 0.5f, 0.5f, 0.0f);
  for (int64_t i = 0; i < 300; ++i) {
    const at::Tensor& param = l[1][static_cast<size_t>(i)];
    const double step = i % 2 == 0 ? -1 : 1;
    EXPECT_TRUE(at::equal(param, at::full_like(param, static_cast<double>(i % 100) + step))) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(
    , Lion, testing::Combine(testing::Values(at::kFloat, at::kHalf, at::kBFloat16), testing::Values(at::kCPU, at::kCUDA)),
    [](const auto& test) {
      return std::string(toString(std::get<0>(test.param))) + c10::DeviceTypeName(std::get<1>(test.param), /*lower_case=*/true);
    });

TEST(LionLists, AListOfAnotherDtypeIsAnErrorThatNamesIt) {
  const Tensors floats = {at::ones({4})}, halves = {at::ones({4}, at::kHalf)};
  expect_error([&] { multi_tensor_lion_cuda(kChunk, flag(), {halves, floats, floats}, 1, 0, 0, 0); }, {"grads are Half"});
  expect_error([&] { multi_tensor_lion_cuda(kChunk, flag(), {halves, halves, halves}, 1, 0, 0, 0); }, {"exp_avgs are Half"});
  const Tensors doubles = {at::ones({4}, at::kDouble)};
  expect_error([&] { multi_tensor_lion_cuda(kChunk, flag(), {doubles, doubles, floats}, 1, 0, 0, 0); }, {"params are Double"});
}

}  // namespace
