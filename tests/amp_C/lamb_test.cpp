#include "support.h"

namespace {

using namespace amp_C_test;

struct LambCase {
  std::string name;
  at::ScalarType dtype = at::kFloat;
  float decay = 0.0625f;
  int mode = 1, averaging = 1, correction = 1;
  bool nvlamb = false;
  double max_norm = 1.0;
};

// The lists after a step, in float64.
struct ExpectedLamb {
  Tensors updates, params, means, squares;
};

double rate_of(bool adapts, const at::Tensor& param, const at::Tensor& update) {
  const double p = param.norm().item<double>(), u = update.norm().item<double>();
  return adapts && p != 0 && u != 0 ? kLr * p / u : kLr;
}

ExpectedLamb reference(const LambCase& c, const TensorLists& lists, double global_norm, double inv_scale, double max_norm) {
  ExpectedLamb after = {as_double(lists[0]), as_double(lists[1]), as_double(lists[2]), as_double(lists[3])};
  const double b1 = kBeta1, b2 = kBeta2, b3 = c.averaging ? 1 - b1 : 1;
  const double c1 = c.correction ? 1 - std::pow(b1, kStep) : 1, c2 = c.correction ? 1 - std::pow(b2, kStep) : 1;
  const double clip = global_norm > max_norm ? global_norm / max_norm : 1;
  for (size_t i = 0; i < after.params.size(); ++i) {
    at::Tensor& p = after.params[i];
    at::Tensor g = after.updates[i] * inv_scale / clip;
    if (c.mode == 0) g = g + c.decay * p;
    after.means[i] = b1 * after.means[i] + b3 * g;
    after.squares[i] = b2 * after.squares[i] + (1 - b2) * g * g;
    at::Tensor update = after.means[i] / c1 / ((after.squares[i] / c2).sqrt() + kEps);
    if (c.mode == 1) update = update + c.decay * p;
    after.updates[i] = update;
    p = p - rate_of(c.nvlamb || c.decay != 0, p, update) * update;
  }
  return after;
}

class Lamb : public testing::TestWithParam<LambCase> {
 protected:
  TensorLists lists() const {
    const at::ScalarType dtype = GetParam().dtype;
    return {random_list(dtype), random_list(dtype), random_list(dtype), positive_list(dtype)};
  }

  // Updates are below 16, after some ten roundings of 2^-24: 1e-5. Those of 16-bit params are rounded to float16: 2^-8 = 4e-3.
  static constexpr double kAtol = 1e-5;
};

// K-LAMB: the update overwrites the gradients.
TEST_P(Lamb, FollowsTheFormula) {
  const LambCase& c = GetParam();
  const TensorLists l = lists();
  const double global_norm = 7.0;
  const ExpectedLamb expected = reference(c, l, global_norm, 1.0, c.max_norm);
  const at::Tensor noop = flag();
  multi_tensor_lamb_cuda(kChunk, noop, l, kLr, kBeta1, kBeta2, kEps, kStep, c.correction, c.decay, c.averaging, c.mode,
                         scalar(global_norm), static_cast<float>(c.max_norm), c.nvlamb);
  expect_near(l[0], expected.updates, kAtol);
  expect_near(l[1], expected.params, c.dtype == at::kFloat ? kAtol : 4e-3);
  expect_near(l[2], expected.means, kAtol);
  expect_near(l[3], expected.squares, kAtol);
  EXPECT_EQ(noop.item<int>(), 0);
}

// K-LAMBMP with a copy of the params: norms are those of the scaled gradients.
TEST_P(Lamb, MixedPrecisionFollowsTheFormula) {
  const LambCase& c = GetParam();
  const double inv_scale = 0.25, global_norm = 28.0, max_norm = 4.0 * c.max_norm;
  TensorLists l = {random_list(c.dtype), random_list(at::kFloat), random_list(at::kFloat), positive_list(at::kFloat),
                   zeros_list(c.dtype)};
  const ExpectedLamb expected = reference(c, l, global_norm, inv_scale, max_norm);
  const at::Tensor step = int_scalar(kStep);
  multi_tensor_lamb_mp_cuda(kChunk, flag(), l, scalar(kLr), kBeta1, kBeta2, kEps, step, c.correction, c.decay, c.averaging,
                            c.mode, scalar(global_norm), scalar(max_norm), c.nvlamb, scalar(0), scalar(inv_scale));
  expect_near(l[0], expected.updates, kAtol);
  expect_near(l[1], expected.params, c.dtype == at::kFloat ? kAtol : 4e-3);
  expect_near(l[2], expected.means, kAtol);
  expect_near(l[3], expected.squares, kAtol);
  for (size_t i = 0; i < l[1].size(); ++i) EXPECT_TRUE(at::equal(l[4][i], l[1][i].to(c.dtype))) << i;
  EXPECT_EQ(step.item<int>(), kStep) << "the caller counts steps";
}

INSTANTIATE_TEST_SUITE_P(, Lamb,
                         testing::Values(LambCase{"adamw"}, LambCase{"half", at::kHalf}, LambCase{"bfloat16", at::kBFloat16},
                                         LambCase{"l2", at::kFloat, 0.0625f, 0}, LambCase{"no_decay", at::kFloat, 0},
                                         LambCase{"nvlamb", at::kFloat, 0, 1, 1, 1, true},
                                         LambCase{"sums", at::kFloat, 0.0625f, 1, 0, 0},
                                         LambCase{"unclipped", at::kFloat, 0.0625f, 1, 1, 1, false, 100.0}),
                         [](const auto& test) { return test.param.name; });

// K-LAMBMP: R
TEST(LambMp, ASetFlagChangesNothing) {
  const TensorLists l = {random_list(at::kHalf), random_list(at::kFloat), random_list(at::kFloat), positive_list(at::kFloat),
                         random_list(at::kHalf)};
  const TensorLists before = clones(l);
  for (const int step : {kStep, 0}) {  // a caller that counts from 0 does not count a step that the flag stops
    multi_tensor_lamb_mp_cuda(kChunk, flag(1), l, scalar(kLr), kBeta1, kBeta2, kEps, int_scalar(step), 1, 0, 1, 1, scalar(1),
                              scalar(1), false, scalar(0), scalar(1));
    expect_equal(l, before);
  }
}

// K-L2MP: norms that are not finite raise the flag, which stops what comes after.
TEST(LambMp, ANonFiniteParameterSetsTheFlagAndChangesNothing) {
  const TensorLists l = {random_list(at::kFloat), random_list(at::kFloat), random_list(at::kFloat), positive_list(at::kFloat)};
  l[1][3][5] = INFINITY;
  const TensorLists before = clones(l);
  const at::Tensor noop = flag();
  multi_tensor_lamb_mp_cuda(kChunk, noop, l, scalar(kLr), kBeta1, kBeta2, kEps, int_scalar(kStep), 1, 0.5f, 1, 1, scalar(1),
                            scalar(1), false, scalar(0), scalar(1));
  EXPECT_EQ(noop.item<int>(), 1);
  expect_equal(l, before);
}

TEST(LambMp, ANonFiniteGradientSetsTheFlagAndKeepsTheParameters) {
  const TensorLists l = {random_list(at::kFloat), random_list(at::kFloat), random_list(at::kFloat), positive_list(at::kFloat)};
  l[0][3][5] = NAN;
  const Tensors params = clones(l[1]);
  const at::Tensor noop = flag();
  multi_tensor_lamb_mp_cuda(kChunk, noop, l, scalar(kLr), kBeta1, kBeta2, kEps, int_scalar(kStep), 1, 0.5f, 1, 1, scalar(1),
                            scalar(1), false, scalar(0), scalar(1));
  EXPECT_EQ(noop.item<int>(), 1);
  expect_equal(l[1], params);
}

// K-LS1 and K-LS2: one weight decay per tensor, steps from 0.
TEST(LambStages, FollowTheFormula) {
  const TensorLists l = {random_list(at::kHalf), random_list(at::kFloat), random_list(at::kFloat), positive_list(at::kFloat),
                         zeros_list(at::kFloat)};
  const auto count = static_cast<int64_t>(l[0].size());
  at::Tensor decays = at::zeros({count});
  for (int64_t i = 0; i < count; i += 2) decays[i] = 0.0625;
  LambCase plain, decayed;
  plain.decay = 0;
  const ExpectedLamb without = reference(plain, l, 7.0, 1.0, 1.0);
  const ExpectedLamb with = reference(decayed, l, 7.0, 1.0, 1.0);
  multi_tensor_lamb_stage1_cuda(kChunk, flag(1), l, decays, kStep - 1, kBeta1, kBeta2, kEps, scalar(7.0), 1.0f);
  Tensors expected;
  for (size_t i = 0; i < l[0].size(); ++i) expected.push_back((i % 2 == 0 ? with : without).updates[i]);
  // Here too, updates are below 16, after some ten roundings of 2^-24.
  expect_near(l[4], expected, 1e-5);
  expect_near(l[2], with.means, 1e-5);
  expect_near(l[3], with.squares, 1e-5);

  const Tensors params = as_double(l[1]);
  at::Tensor param_norms = at::empty({count}), update_norms = at::empty({count});
  Tensors moved;
  for (int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<size_t>(i);
    param_norms[i] = params[index].norm();
    update_norms[i] = l[4][index].norm();
    const at::Tensor update = l[4][index].to(at::kDouble);
    moved.push_back(params[index] - rate_of(true, params[index], update) * update);
  }
  multi_tensor_lamb_stage2_cuda(kChunk, flag(1), {l[1], l[4]}, param_norms, update_norms, kLr, 0.0625f, std::nullopt);
  expect_near(l[1], moved, 1e-5);
}

TEST(LambStages, WithoutDecayOnlyNvlambUsesTheTrustRatio) {
  const Tensors params = {at::full({4}, 3.0)}, updates = {at::ones({4})};
  const at::Tensor norms = at::full({1}, 6.0), ones = at::full({1}, 2.0);
  multi_tensor_lamb_stage2_cuda(kChunk, flag(), {params, updates}, norms, ones, 0.5f, 0.0f, std::nullopt);
  EXPECT_TRUE(at::equal(params[0], at::full({4}, 2.5)));
  multi_tensor_lamb_stage2_cuda(kChunk, flag(), {params, updates}, norms, ones, 0.5f, 0.0f, true);
  EXPECT_TRUE(at::equal(params[0], at::full({4}, 1.0)));
}

// The update runs once per weight decay, but all arguments are checked before the first run.
TEST(LambStages, AnErrorInALaterGroupChangesNothing) {
  const TensorLists l = {{at::ones({2}), at::ones({2})},
                         {at::ones({2}), at::ones({2})},
                         {at::ones({2}), at::ones({2})},
                         {at::ones({2}), at::ones({2})},
                         {at::zeros({2}), at::zeros({2})}};
  TensorLists overlapping = l;
  overlapping[4][1] = overlapping[2][0];
  expect_error(
      [&] {
        multi_tensor_lamb_stage1_cuda(kChunk, flag(), overlapping, at::tensor({0.0f, 1.0f}), 0, kBeta1, kBeta2, kEps, scalar(1),
                                      1);
      },
      {"shares memory"});
  EXPECT_TRUE(at::equal(l[2][0], at::ones({2})));
}

}  // namespace
