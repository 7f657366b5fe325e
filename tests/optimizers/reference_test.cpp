// Steps compared with float64 references: torch::optim's classes for the formulas they have, plain code for the others.
#include <cmath>

#include "tests/optimizers/classes.h"
#include "tests/optimizers/support.h"

namespace test {
namespace {

using namespace apex::optimizers;

constexpr int kSteps = 5;
// Values stay below 2, an update has fewer than 16 operations that round to float32, and errors of earlier steps are multiplied
// by at most 1.
constexpr double kBound = kSteps * 16 * 0x1p-23;

std::vector<at::Tensor> doubles_of(const std::vector<at::Tensor>& params) {
  std::vector<at::Tensor> doubles;
  for (const at::Tensor& param : params) doubles.push_back(param.detach().to(at::kDouble).requires_grad_());
  return doubles;
}

void copy_grads(const std::vector<at::Tensor>& from, const std::vector<at::Tensor>& to) {
  for (size_t i = 0; i < from.size(); ++i) {
    to[i].mutable_grad() = from[i].grad().defined() ? from[i].grad().to(at::kDouble) : at::Tensor();
  }
}

void expect_close(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected) {
  for (size_t i = 0; i < got.size(); ++i) {
    EXPECT_LE((got[i].detach().to(at::kDouble) - expected[i].detach()).abs().max().item<double>(), kBound) << "parameter " << i;
  }
}

enum class Gradients { all, one_missing };

// Runs both with the same float32 gradients for some steps; parameter 1 may have none in the third step.
template <class Step>
void run_side_by_side(torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& params,
                      const std::vector<at::Tensor>& references, Gradients gradients, const Step& step_references) {
  for (int step = 1; step <= kSteps; ++step) {
    set_grads(params, 100 * step);
    if (step == 3 && gradients == Gradients::one_missing) params[1].mutable_grad().reset();
    copy_grads(params, references);
    step_references(step);
    optimizer.step();
    expect_close(params, references);
  }
}

// The parameters in two groups with different options.
template <class Options>
Groups two_groups(const std::vector<at::Tensor>& params, const Options& first, const Options& second) {
  Groups groups;
  groups.emplace_back(std::vector<at::Tensor>(params.begin(), params.begin() + 2), first.clone());
  groups.emplace_back(std::vector<at::Tensor>(params.begin() + 2, params.end()), second.clone());
  return groups;
}

// As two_groups for torch's options, whose clone function is private.
template <class Options>
Groups torch_groups(const std::vector<at::Tensor>& params, const Options& first, const Options& second) {
  Groups groups;
  groups.emplace_back(std::vector<at::Tensor>(params.begin(), params.begin() + 2), std::make_unique<Options>(first));
  groups.emplace_back(std::vector<at::Tensor>(params.begin() + 2, params.end()), std::make_unique<Options>(second));
  return groups;
}

// The reference's defaults are those of its class: from 2.12 on, LibTorch takes them where a group's option equals that of the
// class.
template <class Opt, class Options, class Reference, class ReferenceOptions>
void compare(const Options& first, const Options& second, const ReferenceOptions& reference_first,
             const ReferenceOptions& reference_second, Gradients gradients = Gradients::one_missing) {
  const auto params = make_params(1);
  const auto references = doubles_of(params);
  Opt optimizer(two_groups(params, first, second), first);
  Reference reference(torch_groups(references, reference_first, reference_second), ReferenceOptions(0.1));
  run_side_by_side(optimizer, params, references, gradients, [&](int) { reference.step(); });
}

TEST(Reference, SgdMatchesTorch) {
  using O = torch::optim::SGDOptions;
  compare<FusedSGD, FusedSGDOptions, torch::optim::SGD, O>(
      FusedSGDOptions(0.1).momentum(0.9).dampening(0.2).weight_decay(0.03), FusedSGDOptions(0.05).momentum(0.8).nesterov(true),
      O(0.1).momentum(0.9).dampening(0.2).weight_decay(0.03), O(0.05).momentum(0.8).nesterov(true));
  compare<FusedSGD, FusedSGDOptions, torch::optim::SGD, O>(FusedSGDOptions(0.1), FusedSGDOptions(0.2).weight_decay(0.1), O(0.1),
                                                           O(0.2).weight_decay(0.1));
}

// torch counts steps by parameter, Apex by group (FOPT-02): with all gradients there the counts agree.
TEST(Reference, AdamMatchesTorch) {
  using O = torch::optim::AdamOptions;
  // eps above the noise of float32 gradients, so that a quotient of two small numbers does not amplify it
  const auto base_options = FusedAdamOptions(0.02).adam_w_mode(false).eps(1e-3);
  compare<FusedAdam, FusedAdamOptions, torch::optim::Adam, O>(
      FusedAdamOptions(base_options).weight_decay(0.03), FusedAdamOptions(base_options).betas({0.8, 0.95}).lr(0.05),
      O(0.02).eps(1e-3).weight_decay(0.03), O(0.05).eps(1e-3).betas({0.8, 0.95}), Gradients::all);
}

TEST(Reference, AdamWMatchesTorch) {
  using O = torch::optim::AdamWOptions;
  compare<FusedAdam, FusedAdamOptions, torch::optim::AdamW, O>(
      FusedAdamOptions(0.02).eps(1e-3).weight_decay(0.03), FusedAdamOptions(0.05).eps(1e-3).weight_decay(0.3),
      O(0.02).eps(1e-3).weight_decay(0.03), O(0.05).eps(1e-3).weight_decay(0.3), Gradients::all);
}

TEST(Reference, AdagradMatchesTorch) {
  using O = torch::optim::AdagradOptions;
  compare<FusedAdagrad, FusedAdagradOptions, torch::optim::Adagrad, O>(FusedAdagradOptions(0.02).eps(1e-3).weight_decay(0.03),
                                                                       FusedAdagradOptions(0.05).eps(1e-3),
                                                                       O(0.02).eps(1e-3).weight_decay(0.03), O(0.05).eps(1e-3));
}

// K-LARS, FOPT-13: as the kernel of Apex on ROCm computes it; the second group takes the plain rate.
TEST(Reference, LarsMatchesRocms) {
  const double lr = 0.1, trust = 0.25, eps = 1e-3, momentum = 0.9, decay = 0.03;
  for (const bool nesterov : {false, true}) {
    const auto params = make_params(1);
    const auto references = doubles_of(params);
    const auto options =
        FusedLARSOptions(lr).momentum(momentum).weight_decay(decay).trust_coefficient(trust).eps(eps).nesterov(nesterov);
    FusedLARS optimizer(two_groups(params, options, FusedLARSOptions(options).is_skipped(true)), options);
    std::vector<at::Tensor> buffers(params.size());
    run_side_by_side(optimizer, params, references, Gradients::one_missing, [&](int) {
      const at::NoGradGuard no_grad;
      for (size_t i = 0; i < references.size(); ++i) {
        const at::Tensor grad = references[i].grad();
        if (!grad.defined()) continue;
        if (!buffers[i].defined()) buffers[i] = at::zeros_like(grad);
        const double p = references[i].norm().item<double>(), g = grad.norm().item<double>();
        const double rate = i < 2 ? lr * trust * p / (g + decay * p + eps) : lr;
        const at::Tensor change = -rate * (grad + decay * references[i]);
        buffers[i] = momentum * buffers[i] + change;
        references[i].add_(nesterov ? momentum * buffers[i] + change : buffers[i]);
      }
    });
  }
}

// Without momentum or decay each step has the length lr * trust_coefficient * |param|.
TEST(Reference, AStepOfLarsHasItsLength) {
  const auto params = make_params(1);
  const auto before = copies_of(params);
  FusedLARS optimizer(params, FusedLARSOptions(0.5).trust_coefficient(0.25));
  set_grads(params, 3);
  optimizer.step();
  for (size_t i = 0; i < params.size(); ++i) {
    const double length = (params[i].detach() - before[i]).to(at::kDouble).norm().item<double>();
    const double expected = 0.125 * before[i].to(at::kDouble).norm().item<double>();
    // Norms, rate, change and sum are rounded: below eight roundings of 2^-24, of parameters eight times as long as the step.
    EXPECT_NEAR(length, expected, 16 * 0x1p-24 * 8 * expected) << i;
  }
}

// The sign of a mix is the same in float32 and in float64 unless the mix is as small as the roundings: five of 2^-24 at most.
// The test checks that none is.
TEST(Reference, LionMatchesThePaper) {
  const double beta1 = 0.75, beta2 = 0.875;
  const auto params = make_params(1);
  const auto references = doubles_of(params);
  FusedLion optimizer(two_groups(params, FusedLionOptions(0.02).betas({beta1, beta2}).weight_decay(0.1),
                                 FusedLionOptions(0.01).betas({beta1, beta2})));
  std::vector<at::Tensor> means(params.size());
  run_side_by_side(optimizer, params, references, Gradients::one_missing, [&](int) {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < references.size(); ++i) {
      const at::Tensor grad = references[i].grad();
      if (!grad.defined()) continue;
      if (!means[i].defined()) means[i] = at::zeros_like(grad);
      const double lr = i < 2 ? 0.02 : 0.01, decay = i < 2 ? 0.1 : 0;
      const at::Tensor mix = beta1 * means[i] + (1 - beta1) * grad;
      ASSERT_GT(mix.abs().min().item<double>(), 0x1p-20);
      const at::Tensor step = mix.sign() + decay * references[i];
      references[i].sub_(lr * step);
      means[i] = beta2 * means[i] + (1 - beta2) * grad;
    }
  });
}

// m and v of the Adam family, in float64.
struct Moments {
  at::Tensor mean, square;
  double norm = 0;
  bool seen = false;
};

TEST(Reference, NovoGradMatchesThePaper) {
  const double lr = 0.05, beta1 = 0.9, beta2 = 0.98, eps = 1e-3, decay = 0.02;
  for (const bool inside : {false, true}) {
    for (const int64_t norm_type : {0, 2}) {
      const auto params = make_params(1);
      const auto references = doubles_of(params);
      FusedNovoGrad optimizer(params, FusedNovoGradOptions(lr)
                                          .betas({beta1, beta2})
                                          .eps(eps)
                                          .weight_decay(decay)
                                          .reg_inside_moment(inside)
                                          .norm_type(norm_type));
      std::vector<Moments> states(params.size());
      run_side_by_side(optimizer, params, references, Gradients::one_missing, [&](int step) {
        const at::NoGradGuard no_grad;
        for (size_t i = 0; i < references.size(); ++i) {
          if (!references[i].grad().defined()) continue;
          at::Tensor grad = references[i].grad();
          Moments& state = states[i];
          const double norm = (norm_type == 2 ? grad.norm() : grad.abs().max()).item<double>();
          if (!state.seen) state = {at::zeros_like(grad), {}, norm, true};
          state.norm = norm_type == 2 ? std::sqrt(beta2 * state.norm * state.norm + (1 - beta2) * norm * norm)
                                      : beta2 * state.norm + (1 - beta2) * norm;
          const double divisor = state.norm / std::sqrt(1 - std::pow(beta2, step)) + eps;
          if (inside) grad = grad / divisor + decay * references[i];
          state.mean = beta1 * state.mean + (1 - beta1) * grad;
          at::Tensor update = state.mean / (1 - std::pow(beta1, step));
          if (!inside) update = update / divisor + decay * references[i];
          references[i].sub_(lr * update);
        }
      });
    }
  }
}

void expect_lamb(torch::optim::Optimizer& optimizer, const std::vector<at::Tensor>& params, double decay, double max_norm) {
  const double lr = 0.02, beta1 = 0.9, beta2 = 0.98, eps = 1e-3;
  const auto references = doubles_of(params);
  std::vector<Moments> states(params.size());
  run_side_by_side(optimizer, params, references, Gradients::one_missing, [&](int step) {
    const at::NoGradGuard no_grad;
    double squares = 0;
    for (const auto& reference : references) {
      if (reference.grad().defined()) squares += reference.grad().square().sum().item<double>();
    }
    const double clip = std::max(1.0, std::sqrt(squares) / max_norm);
    for (size_t i = 0; i < references.size(); ++i) {
      if (!references[i].grad().defined()) continue;
      const at::Tensor grad = references[i].grad() / clip;
      Moments& state = states[i];
      if (!state.seen) state = {at::zeros_like(grad), at::zeros_like(grad), 0, true};
      state.mean = beta1 * state.mean + (1 - beta1) * grad;
      state.square = beta2 * state.square + (1 - beta2) * grad.square();
      const at::Tensor update =
          (state.mean / (1 - std::pow(beta1, step))) / ((state.square / (1 - std::pow(beta2, step))).sqrt() + eps) +
          decay * references[i];
      const double param_norm = references[i].norm().item<double>(), update_norm = update.norm().item<double>();
      const double ratio = decay != 0 && param_norm != 0 && update_norm != 0 ? param_norm / update_norm : 1.0;
      references[i].sub_(lr * ratio * update);
    }
  });
}

FusedLAMBOptions lamb_options(double decay, double max_norm) {
  return FusedLAMBOptions(0.02).betas({0.9, 0.98}).eps(1e-3).weight_decay(decay).max_grad_norm(max_norm);
}

TEST(Reference, LambMatchesNvidias) {
  for (const double decay : {0.0, 0.05}) {
    for (const double max_norm : {1.0, 1000.0}) {
      const auto params = make_params(1);
      FusedLAMB optimizer(params, lamb_options(decay, max_norm));
      expect_lamb(optimizer, params, decay, max_norm);
      const auto mixed_params = make_params(1);
      FusedMixedPrecisionLamb mixed(
          mixed_params,
          FusedMixedPrecisionLambOptions(0.02).betas({0.9, 0.98}).eps(1e-3).weight_decay(decay).max_grad_norm(max_norm));
      expect_lamb(mixed, mixed_params, decay, max_norm);
    }
  }
}

// A maximum of 0 means no clipping. Apex would divide by it, so that the gradients become zero.
TEST(Reference, LambWithoutAMaximumDoesNotClip) {
  for (const double max_norm : {0.0, -1.0}) {
    const auto params = make_params(1);
    FusedLAMB optimizer(params, lamb_options(0.05, max_norm));
    expect_lamb(optimizer, params, 0.05, INFINITY);
    const auto mixed_params = make_params(1);
    FusedMixedPrecisionLamb mixed(
        mixed_params,
        FusedMixedPrecisionLambOptions(0.02).betas({0.9, 0.98}).eps(1e-3).weight_decay(0.05).max_grad_norm(max_norm));
    expect_lamb(mixed, mixed_params, 0.05, INFINITY);
  }
}

// FOPT-08: the norm spans all groups, and max_grad_norm is the optimizer's, not a group's.
TEST(Reference, LambClipsByTheNormOfAllGroups) {
  const auto params = make_params(1);
  FusedLAMB optimizer(two_groups(params, lamb_options(0.05, 1000), lamb_options(0.05, 1000)), lamb_options(0.05, 1));
  expect_lamb(optimizer, params, 0.05, 1);
}

// A parameter of each dtype is updated like its float32 value and rounded once.
class SixteenBits : public ::testing::TestWithParam<OptimizerClass> {};
INSTANTIATE_TEST_SUITE_P(Classes, SixteenBits, ::testing::ValuesIn(optimizer_classes()), name_of_class);

TEST_P(SixteenBits, FirstStepRoundsTheFloat32Step) {
  // LAMB stores the update in the 16-bit gradient, which rounds it once more.
  const int spacings = GetParam().name == "FusedLAMB" ? 2 : 1;
  for (const auto dtype : {at::kHalf, at::kBFloat16}) {
    const auto low = make_params(1, dtype);
    std::vector<at::Tensor> wide;
    for (const auto& param : low) wide.push_back(param.detach().to(at::kFloat).requires_grad_());
    auto low_optimizer = make(GetParam(), low);
    auto wide_optimizer = make(GetParam(), wide);
    set_grads(low, 5);
    for (size_t i = 0; i < low.size(); ++i) wide[i].mutable_grad() = low[i].grad().to(at::kFloat);
    low_optimizer->step();
    wide_optimizer->step();
    const double epsilon = dtype == at::kHalf ? 0x1p-10 : 0x1p-7;
    for (size_t i = 0; i < low.size(); ++i) {
      const at::Tensor expected = wide[i].detach().to(at::kDouble);
      const at::Tensor error = (low[i].detach().to(at::kDouble) - expected).abs();
      // Half a spacing if nothing else rounds. Values below 2^-4 use the spacing at 2^-4.
      const at::Tensor bound = expected.abs().clamp_min(0x1p-4) * (spacings * epsilon);
      EXPECT_TRUE(error.le(bound).all().item<bool>()) << "parameter " << i << ", " << dtype;
    }
  }
}

}  // namespace
}  // namespace test
