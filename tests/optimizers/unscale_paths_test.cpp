// Under amp with masters: materialized unscale (Apex's) and fused unscale give the same training.
#include <apex_cpp/amp.h>

#include <cmath>

#include "tests/optimizers/classes.h"
#include "tests/optimizers/support.h"

namespace test {
namespace {

namespace amp = apex::amp;
namespace nn = torch::nn;

// 16-bit layers around a float32 batch norm.
nn::Sequential make_net() {
  nn::Sequential net(nn::Linear(6, 9), nn::BatchNorm1d(9), nn::ReLU(), nn::Linear(9, 3));
  int64_t seed = 50;
  const at::NoGradGuard no_grad;
  for (auto& param : net->parameters()) param.copy_(values(param.sizes(), seed++));
  return net;
}

// A program: model, handle and training steps.
class Program {
 public:
  Program(const OptimizerClass& of, bool materialize, const std::string& level) : net_(make_net()) {
    OptimizerPtr optimizer = of.make(net_->parameters(), materialize);
    auto [model, handle] = amp::initialize(net_, optimizer, level, amp::InitializeOptions().verbosity(0));
    model_.emplace(std::move(model));
    optimizer_ = std::move(handle);
  }

  torch::optim::Optimizer& optimizer() { return *optimizer_; }
  std::vector<at::Tensor> masters() {
    std::vector<at::Tensor> all;
    for (const auto& group : optimizer_->param_groups()) all.insert(all.end(), group.params().begin(), group.params().end());
    return all;
  }
  std::vector<at::Tensor> model_params() { return net_->parameters(); }

  void zero_grad() { net_->zero_grad(); }
  // Writes `bad` into one gradient of parameter `index`.
  void backward(int64_t seed, double bad = 0, size_t index = 0) {
    const at::Tensor loss = (*model_)->forward(values({8, 6}, seed)).square().mean();
    auto scaled_loss = amp::scale_loss(loss, *optimizer_);
    scaled_loss.backward();
    if (bad != 0) model_params()[index].mutable_grad().flatten()[0].fill_(bad);
  }
  void train_step(int64_t seed) {
    zero_grad();
    backward(seed);
    optimizer_->step();
  }

 private:
  nn::Sequential net_;
  std::optional<amp::Model<nn::Sequential>> model_;
  OptimizerPtr optimizer_;
};

class UnscalePaths : public ::testing::TestWithParam<OptimizerClass> {};
INSTANTIATE_TEST_SUITE_P(Classes, UnscalePaths, ::testing::ValuesIn(optimizer_classes()), name_of_class);

void expect_same(Program& a, Program& b, const std::string& when) {
  EXPECT_TRUE(same_bytes(a.masters(), b.masters())) << when;
  EXPECT_TRUE(same_bytes(a.model_params(), b.model_params())) << when;
}

// Master gradients after two passes. The fused order rounds the sum to float16 once: half a spacing, 2^-11 of a value, or the
// smallest subnormal divided by the loss scale. Clipping coefficients are float32.
void expect_one_rounding_apart(Program& apex_order, Program& fused_order) {
  const auto wide = amp::master_params(apex_order.optimizer());
  const auto low = amp::master_params(fused_order.optimizer());
  for (size_t i = 0; i < wide.size(); ++i) {
    const at::Tensor error = (wide[i].grad() - low[i].grad()).abs();
    EXPECT_TRUE(error.le(wide[i].grad().abs() * 0x1p-11 + 0x1p-24 / 65536).all().item<bool>()) << i;
  }
}

// The loss scale is a power of two, so that unscaling is exact in either order.
TEST_P(UnscalePaths, TrainTheSameBitForBit) {
  for (const std::string level : {"O2", "O5", "O6"}) {
    Program apex_order(GetParam(), true, level), fused_order(GetParam(), false, level);
    for (int step = 0; step < 4; ++step) {
      apex_order.train_step(step);
      fused_order.train_step(step);
      expect_same(apex_order, fused_order, level + ", step " + std::to_string(step));
    }
  }
}

TEST_P(UnscalePaths, ModelParametersAreTheRoundedMasters) {
  for (const bool materialize : {true, false}) {
    Program program(GetParam(), materialize, "O2");
    for (int step = 0; step < 2; ++step) program.train_step(step);
    const auto masters = program.masters();
    const auto params = program.model_params();
    for (size_t i = 0; i < params.size(); ++i) EXPECT_TRUE(same_bytes(params[i], masters[i].to(params[i].scalar_type()))) << i;
  }
}

TEST_P(UnscalePaths, OverflowAnywhereChangesNoBit) {
  for (const bool materialize : {true, false}) {
    for (const double bad : {double(INFINITY), double(-INFINITY), double(NAN)}) {
      for (size_t index = 0; index < 6; ++index) {
        Program program(GetParam(), materialize, "O2");
        program.train_step(1);
        const auto masters = copies_of(program.masters());
        const auto params = copies_of(program.model_params());
        const std::string state = saved(program.optimizer());
        program.zero_grad();
        program.backward(2, bad, index);
        program.optimizer().step();
        EXPECT_TRUE(amp::step_result(program.optimizer()).skipped);
        EXPECT_TRUE(same_bytes(masters, copies_of(program.masters())));
        EXPECT_TRUE(same_bytes(params, copies_of(program.model_params())));
        EXPECT_EQ(state, saved(program.optimizer()));
      }
    }
  }
}

// A finite gradient over a tiny loss scale is more than float32 holds.
TEST_P(UnscalePaths, OverflowCausedByUnscalingChangesNoBit) {
  for (const bool materialize : {true, false}) {
    for (const size_t index : {0, 2, 5}) {
      Program program(GetParam(), materialize, "O2");
      program.train_step(1);
      amp::loss_scaler().restore(1e-36, 0);
      const auto masters = copies_of(program.masters());
      const auto params = copies_of(program.model_params());
      const std::string state = saved(program.optimizer());
      program.zero_grad();
      program.backward(2, 60000, index);
      program.optimizer().step();
      EXPECT_TRUE(amp::step_result(program.optimizer()).skipped);
      EXPECT_TRUE(same_bytes(masters, copies_of(program.masters())));
      EXPECT_TRUE(same_bytes(params, copies_of(program.model_params())));
      EXPECT_EQ(state, saved(program.optimizer()));
    }
  }
}

TEST_P(UnscalePaths, ContinueAfterASkippedStep) {
  Program apex_order(GetParam(), true, "O2"), fused_order(GetParam(), false, "O2");
  for (Program* program : {&apex_order, &fused_order}) {
    program->train_step(1);
    program->zero_grad();
    program->backward(2, INFINITY, 4);
    program->optimizer().step();
    program->train_step(3);
  }
  expect_same(apex_order, fused_order, "after the skipped step");
  EXPECT_FALSE(amp::step_result(fused_order.optimizer()).skipped);
}

// The coefficient is applied in one rounding in the fused order and in two in Apex's, so values differ in the last bits.
TEST_P(UnscalePaths, ClipTheSame) {
  Program apex_order(GetParam(), true, "O2"), fused_order(GetParam(), false, "O2");
  for (int step = 0; step < 3; ++step) {
    double norms[2];
    size_t i = 0;
    for (Program* program : {&apex_order, &fused_order}) {
      program->zero_grad();
      program->backward(step);
      norms[i++] = amp::clip_grad_norm_(program->optimizer(), 0.05);
      EXPECT_EQ(amp::step_result(program->optimizer()).grad_norm, norms[i - 1]);
      program->optimizer().step();
    }
    // The parameters of step 0 are equal, and so are its norms up to a few roundings of 2^-24. Afterwards FP16 weights may
    // round the other way, and so may what is computed from them: some twenty roundings of 2^-11.
    EXPECT_NEAR(norms[0], norms[1], (step == 0 ? 1e-6 : 1e-2) * norms[0]);
    const auto a = apex_order.masters(), b = fused_order.masters();
    for (size_t p = 0; p < a.size() && step == 0; ++p) {
      // Two float32 roundings of a gradient affect a step of at most twice the learning rate.
      EXPECT_LE((a[p] - b[p]).abs().max().item<double>(), 2 * 0.05 * 0x1p-20) << p;
    }
  }
}

// The 1e-6 in the coefficient's denominator takes 4e-6 of a norm of 0.25, which is 1e-6. Some ten roundings of 2^-24 take 6e-7
// of it.
TEST_P(UnscalePaths, ClippingTwiceClipsToTheSmaller) {
  for (const bool materialize : {true, false}) {
    Program program(GetParam(), materialize, "O2");
    program.zero_grad();
    program.backward(1);
    const double first = amp::clip_grad_norm_(program.optimizer(), 0.25);
    ASSERT_GT(first, 0.25);
    EXPECT_NEAR(amp::clip_grad_norm_(program.optimizer(), 0.125), 0.25, 2e-6);
    EXPECT_NEAR(amp::clip_grad_norm_(program.optimizer(), 1.0), 0.125, 2e-6);
  }
}

// Asking for master gradients in the fused order makes them, clipped as far as that was done, and the step takes what is there.
TEST_P(UnscalePaths, MasterParamsMaterializesGradients) {
  Program apex_order(GetParam(), true, "O2"), fused_order(GetParam(), false, "O2");
  apex_order.train_step(1);
  fused_order.train_step(1);
  for (Program* program : {&apex_order, &fused_order}) {
    program->zero_grad();
    program->backward(2);
    for (const at::Tensor& master : amp::master_params(program->optimizer())) {
      ASSERT_TRUE(master.grad().defined());
      EXPECT_EQ(master.grad().scalar_type(), at::kFloat);
      master.grad().mul_(0.5);
    }
    program->optimizer().step();
  }
  expect_same(apex_order, fused_order, "after editing gradients");
}

TEST_P(UnscalePaths, FusedUnscaleDoesNotSetMasterGradients) {
  Program program(GetParam(), false, "O2");
  program.zero_grad();
  program.backward(1);
  EXPECT_FALSE(program.masters()[0].grad().defined());
  EXPECT_EQ(program.model_params()[0].grad().scalar_type(), at::kHalf);
}

// Two passes before a step: Apex's order adds in float32 masters, the fused one in the model's 16 bits (BWD-30).
TEST_P(UnscalePaths, AccumulateOverBackwardPasses) {
  Program apex_order(GetParam(), true, "O2"), fused_order(GetParam(), false, "O2");
  for (Program* program : {&apex_order, &fused_order}) {
    program->zero_grad();
    program->backward(1);
    program->backward(2);
  }
  expect_one_rounding_apart(apex_order, fused_order);
}

// Clipping is about the gradients that are there, not about those of a later pass.
TEST_P(UnscalePaths, ClipBetweenTwoPasses) {
  Program apex_order(GetParam(), true, "O2"), fused_order(GetParam(), false, "O2");
  for (Program* program : {&apex_order, &fused_order}) {
    program->zero_grad();
    program->backward(1);
    amp::clip_grad_norm_(program->optimizer(), 0.01);
    program->backward(2);
  }
  expect_one_rounding_apart(apex_order, fused_order);
}

// A gradient that a step has used counts no more, whether or not it was zeroed, as master gradients in Apex (OPT-05); float32
// parameters' gradients stay until they are zeroed.
TEST_P(UnscalePaths, GradientsOfAStepAreNotUsedAgain) {
  if (GetParam().name == "FusedLAMB") return;  // in Apex's order it overwrites float32 gradients with the update
  Program apex_order(GetParam(), true, "O2"), fused_order(GetParam(), false, "O2");
  for (Program* program : {&apex_order, &fused_order}) {
    program->backward(1);
    program->optimizer().step();
    program->backward(2);  // without zero_grad
    program->optimizer().step();
  }
  expect_same(apex_order, fused_order, "after two steps without zero_grad");
}

TEST_P(UnscalePaths, ZeroGradBetweenPassesDropsTheFirst) {
  for (const bool materialize : {true, false}) {
    Program once(GetParam(), materialize, "O2"), twice(GetParam(), materialize, "O2");
    twice.backward(7);
    twice.zero_grad();
    once.train_step(1);
    twice.train_step(1);
    // Only the batch norm's running statistics have seen another batch; the parameters are equal.
    expect_same(once, twice, "after zero_grad");
  }
}

TEST_P(UnscalePaths, AnExceptionInTheBlockRestoresGradients) {
  for (const bool materialize : {true, false}) {
    Program once(GetParam(), materialize, "O2"), thrown(GetParam(), materialize, "O2");
    for (Program* program : {&once, &thrown}) {
      program->zero_grad();
      program->backward(1);
    }
    try {
      const at::Tensor loss = thrown.model_params()[0].to(at::kFloat).sum();
      auto scaled_loss = amp::scale_loss(loss, thrown.optimizer());
      scaled_loss.backward();
      throw std::runtime_error("interrupted");
    } catch (const std::runtime_error&) {
    }
    once.optimizer().step();
    thrown.optimizer().step();
    expect_same(once, thrown, "after an exception");
  }
}

TEST_P(UnscalePaths, ResumeBitwise) {
  for (const bool materialize : {true, false}) {
    Program whole(GetParam(), materialize, "O2"), resumed(GetParam(), materialize, "O2");
    for (int step = 0; step < 2; ++step) whole.train_step(step);
    load(resumed.optimizer(), saved(whole.optimizer()));
    const auto from = whole.model_params(), to = resumed.model_params();
    for (size_t i = 0; i < from.size(); ++i) to[i].detach().copy_(from[i].detach());
    for (int step = 2; step < 4; ++step) {
      whole.train_step(step);
      resumed.train_step(step);
      expect_same(whole, resumed, "step " + std::to_string(step));
    }
  }
}

}  // namespace
}  // namespace test
