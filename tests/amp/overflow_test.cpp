// An overflow at any step, in any element, of any kind: no bit of parameters, masters, optimizer state or counters changes.
#include "tests/amp/optimizers.h"

namespace apex::test {
namespace {

using torch::Tensor;

// Low enough that no gradient overflows by itself.
constexpr double kScale = 128.0;

template <class Kind>
class Overflow : public AmpTest {};
TYPED_TEST_SUITE(Overflow, AllOptimizers);

/// Backward on `input`, with `value` written into one element of one parameter's gradient inside the block.
template <class Net, class Opt>
void poisoned_backward(Net& net, Opt& opt, const Tensor& input, size_t param, int64_t element, float value) {
  auto scaled = amp::scale_loss(net->forward(input).square().mean(), opt);
  scaled.backward();
  net->parameters()[param].mutable_grad().view(-1)[element] = value;
}

TYPED_TEST(Overflow, ASkippedStepChangesNoBit) {
  for (const char* level : {"O0", "O2", "O3", "O5"}) {
    for (int warm_up : {0, 2}) {  // the very first step, and one with state behind it
      ConvNet model;
      auto optimizer = TypeParam::make(model->parameters());
      auto [net, opt] = amp::initialize(model, optimizer, level, quiet().loss_scale("dynamic").max_loss_scale(kScale));
      opt.zero_grad();
      for (int i = 0; i < warm_up; ++i) train_step(net, opt, images());
      const auto params = net->parameters();
      for (size_t p = 0; p < params.size(); ++p) {
        for (int64_t element : {int64_t{0}, params[p].numel() / 2, params[p].numel() - 1}) {
          for (float value : {kInf, -kInf, kNan}) {
            opt.zero_grad();
            // The forward pass itself moves the batch norm's statistics.
            net->eval();
            const auto model_before = bytes_of(*model);
            const auto optimizer_before = bytes_of(opt);
            poisoned_backward(net, opt, images(), p, element, value);
            opt.step();
            ASSERT_EQ(bytes_of(*model), model_before) << level << " param " << p << " element " << element;
            ASSERT_EQ(bytes_of(opt), optimizer_before) << level << " param " << p << " element " << element;
            EXPECT_TRUE(amp::step_result(opt).skipped);
            EXPECT_EQ(amp::step_result(opt).first_nonfinite, net->named_parameters().keys()[p]);
            EXPECT_EQ(amp::loss_scaler().loss_scale(), kScale / 2);
            EXPECT_EQ(amp::step_result(opt).loss_scale, kScale / 2);
            amp::loss_scaler().restore(kScale, 0);
          }
        }
      }
      net->train();
      opt.zero_grad();
      const auto before = bytes_of(opt);
      train_step(net, opt, images());
      EXPECT_FALSE(amp::step_result(opt).skipped);
      EXPECT_NE(bytes_of(opt), before) << "training goes on afterwards";
    }
  }
}

class OverflowInDestructor : public AmpTest {};

TEST_F(OverflowInDestructor, IsThrownByTheNextStep) {
  Mlp model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  amp::loss_scaler().restore(2e-38, 0);
  { amp::scale_loss(net->forward(features()).sum() * kInf, opt).backward(); }
  const auto before = bytes_of(*model);
  EXPECT_TRUE(contains(message_of([&, &opt = opt] { opt.step(); }), "min_loss_scale"));
  EXPECT_EQ(bytes_of(*model), before);
}

}  // namespace
}  // namespace apex::test
