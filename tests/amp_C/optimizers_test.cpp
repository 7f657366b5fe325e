// Compares SGD, Adagrad, LARS and NovoGrad with the formulas in float64 over several steps.
#include "support.h"

namespace {

using namespace amp_C_test;

struct SgdCase {
  std::string name;
  double momentum, dampening, weight_decay;
  bool nesterov, decay_after_momentum;
};

class Sgd : public testing::TestWithParam<SgdCase> {
 protected:
  void reference_step(const Tensors& grads, Tensors& params, Tensors& buffers, bool first_run, double lr, double scale) const {
    const SgdCase& c = GetParam();
    for (size_t i = 0; i < params.size(); ++i) {
      at::Tensor g = grads[i] * scale;
      if (!c.decay_after_momentum) g = g + c.weight_decay * params[i];
      if (c.momentum != 0) {
        buffers[i] = first_run ? g : c.momentum * buffers[i] + (1 - c.dampening) * g;
        g = c.nesterov ? g + c.momentum * buffers[i] : buffers[i];
      }
      if (c.decay_after_momentum) g = g + c.weight_decay * params[i];
      params[i] = params[i] - lr * g;
    }
  }

  void step(const at::Tensor& noop, const TensorLists& lists, bool first_run, double lr, double scale) const {
    const SgdCase& c = GetParam();
    multi_tensor_sgd_cuda(kChunk, noop, lists, static_cast<float>(c.weight_decay), static_cast<float>(c.momentum),
                          static_cast<float>(c.dampening), static_cast<float>(lr), c.nesterov, first_run,
                          c.decay_after_momentum, static_cast<float>(scale));
  }
};

// K-SGD, with float16 gradients, float32 masters and a model copy.
TEST_P(Sgd, FollowsTheFormula) {
  TensorLists lists = {random_list(at::kHalf), random_list(at::kFloat), random_list(at::kFloat), zeros_list(at::kHalf)};
  Tensors params = as_double(lists[1]);
  Tensors buffers = as_double(lists[2]);
  for (int run = 0; run < 3; ++run) {
    lists[0] = random_list(at::kHalf);
    reference_step(as_double(lists[0]), params, buffers, run == 0, 0.125, 0.25);
    step(flag(), lists, run == 0, 0.125, 0.25);
  }
  expect_near(lists[1], params);
  if (GetParam().momentum != 0) expect_near(lists[2], buffers);
  for (size_t i = 0; i < params.size(); ++i) EXPECT_TRUE(at::equal(lists[3][i], lists[1][i].to(at::kHalf))) << i;
}

// K-SGD: the flag stops the whole update.
TEST_P(Sgd, ASetFlagChangesNothing) {
  const TensorLists lists = {random_list(at::kHalf), random_list(at::kFloat), random_list(at::kFloat), random_list(at::kHalf)};
  const TensorLists before = clones(lists);
  step(flag(1), lists, false, 0.125, 0.25);
  expect_equal(lists, before);
}

INSTANTIATE_TEST_SUITE_P(, Sgd,
                         testing::Values(SgdCase{"plain", 0, 0, 0, false, false}, SgdCase{"decay", 0, 0, 0.125, false, false},
                                         SgdCase{"momentum", 0.875, 0, 0, false, false},
                                         SgdCase{"dampening", 0.875, 0.25, 0.125, false, false},
                                         SgdCase{"nesterov", 0.875, 0, 0.125, true, false},
                                         SgdCase{"decay_after", 0.875, 0, 0.125, true, true}),
                         [](const auto& test) { return test.param.name; });

TEST(SgdLists, WithoutMomentumBuffersAreNotChanged) {
  const TensorLists lists = {{at::ones({4})}, {at::ones({4})}, {at::full({4}, std::nan(""))}};
  multi_tensor_sgd_cuda(kChunk, flag(), lists, 0, 0, 0, 0.5f, false, false, false, 1);
  EXPECT_TRUE(at::equal(lists[1][0], at::full({4}, 0.5)));
  EXPECT_TRUE(lists[2][0].isnan().all().item<bool>());
}

TEST(SgdLists, WithoutMomentumBuffersMayBeAnything) {
  const Tensors params = {at::ones({4})};
  multi_tensor_sgd_cuda(kChunk, flag(), {{at::ones({4})}, params, params}, 0, 0, 0, 0.5f, false, false, false, 1);
  multi_tensor_sgd_cuda(kChunk, flag(), {{at::ones({4})}, params, {at::ones({4}, at::kInt)}}, 0, 0, 0, 0.5f, false, false,
                        false, 1);
  EXPECT_TRUE(at::equal(params[0], at::zeros({4})));
}

TEST(SgdLists, BufferedNanIsNotReadOnTheFirstRun) {
  const TensorLists lists = {{at::ones({4})}, {at::ones({4})}, {at::full({4}, std::nan(""))}};
  multi_tensor_sgd_cuda(kChunk, flag(), lists, 0, 0.5f, 0, 0.5f, false, true, false, 1);
  EXPECT_TRUE(at::equal(lists[2][0], at::ones({4})));
}

class Adagrad : public testing::TestWithParam<std::tuple<at::ScalarType, int>> {};

// K-ADAGRAD. As in Apex, float64 is computed in float32.
TEST_P(Adagrad, FollowsTheFormula) {
  const auto [dtype, mode] = GetParam();
  const double lr = 0.125, eps = 1e-3, decay = 0.0625;
  TensorLists lists = {random_list(dtype), random_list(dtype), positive_list(dtype)};
  Tensors params = as_double(lists[1]);
  Tensors sums = as_double(lists[2]);
  const Tensors grads = as_double(lists[0]);
  for (size_t i = 0; i < params.size(); ++i) {
    const at::Tensor g = mode == 0 ? grads[i] + decay * params[i] : grads[i];
    sums[i] = sums[i] + g * g;
    at::Tensor step = g / (sums[i].sqrt() + static_cast<float>(eps));
    if (mode == 1) step = step + decay * params[i];
    params[i] = params[i] - lr * step;
  }
  multi_tensor_adagrad_cuda(kChunk, flag(1), lists, static_cast<float>(lr), static_cast<float>(eps), mode,
                            static_cast<float>(decay));
  expect_near(lists[1], params);
  expect_near(lists[2], sums);
}

INSTANTIATE_TEST_SUITE_P(
    , Adagrad, testing::Combine(testing::Values(at::kFloat, at::kHalf, at::kBFloat16, at::kDouble), testing::Values(0, 1)),
    [](const auto& test) {
      return std::string(toString(std::get<0>(test.param))) + "_mode" + std::to_string(std::get<1>(test.param));
    });

struct LarsCase {
  std::string name;
  double momentum, weight_decay;
  bool nesterov, is_skipped;
};

class Lars : public testing::TestWithParam<LarsCase> {};

// K-LARS, with float16 gradients, float32 masters and a model copy. Dampening, first_run and wd_after_momentum have no effect.
TEST_P(Lars, FollowsTheFormula) {
  const LarsCase& c = GetParam();
  const double lr = 0.5, trust = 0.125, eps = 0.0625, scale = 0.25;
  TensorLists lists = {random_list(at::kHalf), random_list(at::kFloat), zeros_list(at::kFloat), zeros_list(at::kHalf)};
  Tensors params = as_double(lists[1]), buffers = as_double(lists[2]);
  for (int run = 0; run < 3; ++run) {
    lists[0] = random_list(at::kHalf);
    const Tensors grads = as_double(lists[0]);
    at::Tensor grad_norms = at::empty({static_cast<int64_t>(params.size())}), param_norms = at::empty_like(grad_norms);
    for (size_t i = 0; i < params.size(); ++i) {
      const double g = (grads[i] * scale).norm().item<double>(), p = params[i].norm().item<double>();
      grad_norms[static_cast<int64_t>(i)] = g, param_norms[static_cast<int64_t>(i)] = p;
      const double rate = c.is_skipped || g == 0 || p == 0 ? lr : lr * trust * p / (g + p * c.weight_decay + eps);
      const at::Tensor change = -rate * (grads[i] * scale + c.weight_decay * params[i]);
      buffers[i] = c.momentum * buffers[i] + change;
      params[i] = params[i] + (c.nesterov ? c.momentum * buffers[i] + change : buffers[i]);
    }
    multi_tensor_lars_cuda(kChunk, flag(), lists, grad_norms, param_norms, static_cast<float>(lr), static_cast<float>(trust),
                           static_cast<float>(eps), static_cast<float>(c.weight_decay), static_cast<float>(c.momentum),
                           /*dampening=*/0.75f, c.nesterov, /*first_run=*/run % 2 == 0, /*wd_after_momentum=*/run % 2 == 0,
                           static_cast<float>(scale), c.is_skipped);
  }
  expect_near(lists[1], params);
  expect_near(lists[2], buffers);
  for (size_t i = 0; i < params.size(); ++i) EXPECT_TRUE(at::equal(lists[3][i], lists[1][i].to(at::kHalf))) << i;
}

INSTANTIATE_TEST_SUITE_P(, Lars,
                         testing::Values(LarsCase{"plain", 0, 0, false, false}, LarsCase{"momentum", 0.875, 0, false, false},
                                         LarsCase{"decay", 0.875, 0.125, false, false},
                                         LarsCase{"nesterov", 0.875, 0.125, true, false},
                                         LarsCase{"skipped", 0.875, 0.125, false, true}),
                         [](const auto& test) { return test.param.name; });

struct NovoGradCase {
  std::string name;
  at::ScalarType dtype;
  int mode, norm_type, averaging, correction;
};

class NovoGrad : public testing::TestWithParam<NovoGradCase> {};

// K-NOVO
TEST_P(NovoGrad, FollowsTheFormula) {
  const NovoGradCase& c = GetParam();
  const double lr = 0.125, b1 = 0.75, b2 = 0.875, eps = 1e-3f, decay = 0.0625;
  const int step = 3;
  TensorLists lists = {random_list(c.dtype), random_list(c.dtype), random_list(c.dtype)};
  const auto count = static_cast<int64_t>(lists[0].size());
  const at::Tensor norms = at::rand({count}) + 0.5;
  const Tensors grads = as_double(lists[0]);
  Tensors params = as_double(lists[1]);
  Tensors means = as_double(lists[2]);
  at::Tensor running = norms.to(at::kDouble);
  const double c1 = c.correction ? 1 - std::pow(b1, step) : 1, c2 = c.correction ? std::sqrt(1 - std::pow(b2, step)) : 1;
  for (size_t i = 0; i < params.size(); ++i) {
    const auto index = static_cast<int64_t>(i);
    const bool l2 = c.norm_type == 2, empty = grads[i].numel() == 0;
    const double norm = empty ? 0 : (l2 ? grads[i].norm() : grads[i].abs().max()).item<double>();
    const double old = running[index].item<double>();
    const double now = l2 ? std::sqrt(b2 * old * old + (1 - b2) * norm * norm) : b2 * old + (1 - b2) * norm;
    running[index] = now;
    const double d = now / c2 + eps, b3 = c.averaging ? 1 - b1 : 1;
    const at::Tensor g = c.mode == 0 ? grads[i] / d + decay * params[i] : grads[i];
    means[i] = b1 * means[i] + b3 * g;
    params[i] = params[i] - lr * (c.mode == 0 ? means[i] / c1 : means[i] / c1 / d + decay * params[i]);
  }
  multi_tensor_novograd_cuda(kChunk, flag(), lists, norms, static_cast<float>(lr), static_cast<float>(b1),
                             static_cast<float>(b2), static_cast<float>(eps), step, c.correction, static_cast<float>(decay),
                             c.averaging, c.mode, c.norm_type);
  // Values are below 8, after some twenty roundings of 2^-24; larger norms are within the relative tolerance.
  expect_near(lists[1], params, 1e-5);
  expect_near(lists[2], means, 1e-5);
  expect_near({norms}, {running}, 1e-5);
}

INSTANTIATE_TEST_SUITE_P(, NovoGrad,
                         testing::Values(NovoGradCase{"inside_l2", at::kFloat, 0, 2, 1, 1},
                                         NovoGradCase{"inside_inf", at::kFloat, 0, 0, 0, 0},
                                         NovoGradCase{"outside_l2", at::kFloat, 1, 2, 0, 1},
                                         NovoGradCase{"outside_inf", at::kHalf, 1, 0, 1, 1},
                                         NovoGradCase{"inside_bfloat16", at::kBFloat16, 0, 2, 1, 0},
                                         NovoGradCase{"outside_float64", at::kDouble, 1, 2, 1, 1}),
                         [](const auto& test) { return test.param.name; });

}  // namespace
