// Apex's tests/L0/run_amp/test_cache.py (CACHE-05..09): training, evaluation, training again, with the weight edited in
// between, never uses a stale cast of the weight or the graph of another iteration.
#include "tests/run_amp/run_amp.h"

namespace apex::test::run_amp {
namespace {

using Operations = torch::Tensor (*)(const torch::Tensor&, const torch::Tensor&);

torch::Tensor products(const torch::Tensor& x, const torch::Tensor& weight) { return x.mm(weight).mm(weight).sum(); }
torch::Tensor powers(const torch::Tensor& x, const torch::Tensor& weight) {
  return (x + torch::pow(weight, 2) + torch::pow(weight, 2)).sum();
}
torch::Tensor promotions(const torch::Tensor& x, const torch::Tensor& weight) { return ((x * weight) * weight).sum(); }

/// A weight that is used twice. Its values are small integers: every gradient below is exact in 16 bits.
struct TwiceImpl : torch::nn::Module {
  TwiceImpl(Operations ops, int64_t rows) : operations(ops) {
    weight = register_parameter("weight", torch::arange(rows * 8).remainder(5).view({rows, 8}).to(torch::kFloat));
  }
  torch::Tensor forward(const torch::Tensor& x) { return operations(x, weight); }
  Operations operations;
  torch::Tensor weight;
};
TORCH_MODULE(Twice);

class TestCache : public RunAmp {
 protected:
  enum class Weight { fp16, fp32 };

  torch::Tensor x() const { return torch::ones({2, 8}, of(torch::kFloat)); }

  /// The gradient in float32 with a fresh tensor for the weight, which no cache has seen.
  torch::Tensor reference_grad(const Twice& module) const {
    const amp::disable_casts off;
    const auto weight = module->weight.detach().to(torch::kFloat, /*non_blocking=*/false, /*copy=*/true).requires_grad_();
    module->operations(x(), weight).backward();
    return weight.grad();
  }

  void train_eval_train(Twice module, Weight weight_type) {
    amp::reset();
    module->to(device());
    torch::optim::SGD sgd(module->parameters(), 1.0);
    auto [net, optimizer] =
        amp::initialize(module, sgd, GetParam().level, amp::InitializeOptions().loss_scale(4.0).verbosity(0));
    // `initialize` refuses a 16-bit model (CHK-08); Apex's test switches that check off (CHK-11).
    if (weight_type == Weight::fp16) module->weight.set_data(module->weight.data().to(low()));

    training_step(module, net, optimizer);
    {
      const torch::NoGradGuard no_grad;
      EXPECT_EQ(net->forward(x()).scalar_type(), torch::kFloat);
    }
    training_step(module, net, optimizer);
  }

 private:
  template <class Net>
  void training_step(const Twice& module, Net& net, torch::optim::Optimizer& optimizer) {
    module->weight.mutable_grad().reset();
    const auto loss = net->forward(x());
    {
      auto scaled_loss = amp::scale_loss(loss, optimizer);
      scaled_loss.backward();
    }
    const auto& weight = module->weight;
    ASSERT_TRUE(weight.grad().defined());
    EXPECT_EQ(weight.grad().scalar_type(), weight.scalar_type());
    EXPECT_TRUE(torch::equal(weight.grad().to(torch::kFloat), reference_grad(module)));
    weight.data().sub_(1);  // leaves no trace in the version counter
  }
};

TEST_P(TestCache, test_whitelist_module_fp16_weight) { train_eval_train(Twice(products, 8), Weight::fp16); }
TEST_P(TestCache, test_whitelist_module_fp32_weight) { train_eval_train(Twice(products, 8), Weight::fp32); }
TEST_P(TestCache, test_blacklist_module_fp16_weight) { train_eval_train(Twice(powers, 2), Weight::fp16); }
TEST_P(TestCache, test_blacklist_module_fp32_weight) { train_eval_train(Twice(powers, 2), Weight::fp32); }
TEST_P(TestCache, test_promote_module_fp16_weight) { train_eval_train(Twice(promotions, 2), Weight::fp16); }
TEST_P(TestCache, test_promote_module_fp32_weight) { train_eval_train(Twice(promotions, 2), Weight::fp32); }

INSTANTIATE_TEST_SUITE_P(Devices, TestCache, ::testing::ValuesIn(all_settings()), name_of);

}  // namespace
}  // namespace apex::test::run_amp
