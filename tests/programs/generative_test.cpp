// Programs with two networks that train against or through each other: GAN, VAE.
#include "tests/programs/program.h"

namespace apex::test::programs {
namespace {

class GenerativePrograms : public AmpTest {};

TEST_F(GenerativePrograms, Gan) {
  expect_trains_as_without_amp([](auto& amp) {
    Layers generator(2, 8, 2), critic(2, 8, 1);
    torch::optim::Adam generator_optimizer(generator->parameters(), adam(0.02).betas({0.5, 0.9}));
    torch::optim::Adam critic_optimizer(critic->parameters(), adam(0.02).betas({0.5, 0.9}));
    auto [nets, opts] = amp.initialize(std::tie(generator, critic), std::tie(generator_optimizer, critic_optimizer),
                                       amp::InitializeOptions().num_losses(2));
    auto& [g, d] = nets;
    auto& [opt_g, opt_d] = opts;
    const auto loss = [](const Tensor& logits, double label) {
      return torch::binary_cross_entropy_with_logits(logits, torch::full_like(logits, label));
    };
    for (int step = 0; step < 80; ++step) {
      opt_d.zero_grad();
      const auto fake = g->forward(torch::randn({32, 2}));
      amp.output(fake);
      amp.log(distance_from_real(fake));
      const auto critic_loss = loss(d->forward(real_points()), 1) + loss(d->forward(fake.detach()), 0);
      amp.backward(critic_loss, opt_d, 0);
      opt_d.step();
      // The critic stands by: its parameters get gradients that nobody steps.
      opt_g.zero_grad();
      amp.backward(loss(d->forward(fake), 1), opt_g, 1);
      opt_g.step();
    }
  });
}

struct VaeImpl : torch::nn::Module {
  VaeImpl() {
    encoder = register_module("encoder", Layers(6, 12, 4));
    decoder = register_module("decoder", Layers(2, 12, 6));
  }
  /// What was decoded, mean and log variance of the code.
  std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& x) {
    const auto code = encoder(x).chunk(2, 1);
    const auto noise = torch::randn_like(code[0]);
    return {decoder(code[0] + noise * (code[1] * 0.5).exp()), code[0], code[1]};
  }
  Layers encoder{nullptr}, decoder{nullptr};
};
TORCH_MODULE(Vae);

TEST_F(GenerativePrograms, Vae) {
  expect_trains_as_without_amp([](auto& amp) {
    Vae model;
    torch::optim::Adam optimizer(model->parameters(), adam(0.02));
    auto [net, opt] = amp.initialize(model, optimizer);
    const auto x = torch::randn({32, 2}).matmul(torch::randn({2, 6}));
    // Structured bindings cannot be captured in C++17.
    auto& vae = net;
    train(amp, opt, 80, [&] {
      const auto [decoded, mean, log_variance] = vae->forward(x);
      amp.output(decoded);
      amp.output(log_variance);
      const auto divergence = -0.5 * (1 + log_variance - mean.pow(2) - log_variance.exp()).sum(1).mean();
      return torch::mse_loss(decoded, x) + 0.02 * divergence;
    });
  });
}

/// A critic that ends in a sigmoid, as DCGAN's, and is sure: its logit of four ones is 10.
struct SureCriticImpl : torch::nn::Module {
  SureCriticImpl() {
    fc = register_module("fc", torch::nn::Linear(4, 1));
    const torch::NoGradGuard no_grad;
    fc->weight.fill_(2.5);
    fc->bias.zero_();
  }
  Tensor forward(const Tensor& x) { return torch::sigmoid(fc(x)); }
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(SureCritic);

TEST_F(GenerativePrograms, AConfidentMistakeCountsIfTheSigmoidRunsInFloat32) {
  for (const char* level : {"O2", "O3", "O5", "O6"}) {
    SCOPED_TRACE(level);
    SureCritic rounded, kept;
    auto in_16_bits = amp::initialize(rounded, level, quiet());
    EXPECT_EQ(in_16_bits->forward(torch::ones({1, 4})).item<double>(), 1);
    auto in_float32 = amp::initialize(kept, level, quiet().float32_functions(std::vector<std::string>{"aten::sigmoid"}));
    const auto loss = torch::binary_cross_entropy(in_float32->forward(torch::ones({1, 4})), torch::zeros({1, 1}));
    // The logit, 10, is exact in each type. 1 - sigmoid(10) is 4.5e-5, and float32 has steps of 2^-24 just below 1: two of them
    // move the logarithm by 2^-23 / 4.5e-5 < 2.7e-3. The gradient is sigmoid(10), rounded to 16 bits.
    EXPECT_NEAR(loss.item<double>(), 10, 2.7e-3);
    EXPECT_NEAR(torch::autograd::grad({loss}, {in_float32->fc->bias})[0].item<double>(), 1, 0x1p-8);
  }
}

}  // namespace
}  // namespace apex::test::programs
