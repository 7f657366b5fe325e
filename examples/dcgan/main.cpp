// Trains a generator of handwritten digits: two models, two optimizers, and three losses with their own loss scales.
// dcgan [digits.csv [opt_level [epochs]]] writes the generated digits to samples.pgm and the weights to *.safetensors.
#include <apex_cpp/amp.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <fstream>
#include <string>

#include "command_line.h"
#include "digits.h"
#include "networks.h"

namespace {

namespace amp = apex::amp;

constexpr int64_t kNoise = 32;
constexpr int64_t kWidth = 32;
constexpr int64_t kBatch = 64;

// Indices of the three losses. Each has its own loss scale, because their gradients differ in size.
enum Loss { kRealLoss, kFakeLoss, kGeneratorLoss, kLosses };

torch::Tensor noise(int64_t count) { return torch::randn({count, kNoise, 1, 1}); }

/// Binary cross entropy of logits. Losses run in FP32 at every level.
torch::Tensor cross_entropy(const torch::Tensor& logits, double label) {
  return torch::binary_cross_entropy_with_logits(logits, torch::full_like(logits, label));
}

/// Writes grey images, eight per row, as a portable graymap.
void write_images(const std::string& path, const torch::Tensor& images) {
  const auto rows = images.view({-1, 8, 8, 8}).transpose(1, 2).reshape({-1, 64});  // 8 images side by side
  const auto pixels = ((rows + 1) * 127.5).round().clamp(0, 255).to(torch::kByte).contiguous();
  std::ofstream file(path, std::ios::binary);
  file << "P5 64 " << pixels.size(0) << " 255\n";
  file.write(reinterpret_cast<const char*>(pixels.const_data_ptr<uint8_t>()), pixels.numel());
}

/// The Euclidean distance between the statistics of generated and real images: mean and standard deviation of each pixel.
template <class Net>
double distance(Net& generator, const torch::Tensor& real) {
  const torch::NoGradGuard no_grad;
  generator->eval();
  const torch::Tensor fake = generator->forward(noise(real.size(0)));
  generator->train();
  const torch::Tensor means = (fake.mean(0) - real.mean(0)).square().sum();
  const torch::Tensor deviations = (fake.std(0) - real.std(0)).square().sum();
  return (means + deviations).sqrt().item<double>();
}

void train(const DigitsSplit& data, const std::string& opt_level, int epochs) {
  Generator generator(kNoise, kWidth);
  Discriminator discriminator(kWidth);
  init_weights(*generator);
  init_weights(*discriminator);
  const auto options = torch::optim::AdamOptions(1e-3).betas({0.5, 0.999});
  torch::optim::Adam generator_adam(generator->parameters(), options);
  torch::optim::Adam discriminator_adam(discriminator->parameters(), options);

  auto [nets, opts] = amp::initialize(std::tie(discriminator, generator), std::tie(discriminator_adam, generator_adam),
                                      opt_level, amp::InitializeOptions().num_losses(kLosses));
  auto& [d, g] = nets;
  auto& [opt_d, opt_g] = opts;

  const auto all_real = data.train.images * 2 - 1;
  const auto fixed_noise = noise(64);
  std::printf("untrained: distance %.3f\n", distance(g, all_real));
  for (int epoch = 1; epoch <= epochs; ++epoch) {
    torch::Tensor real_loss, fake_loss, generator_loss;
    for (const auto& batch : data.train.batches(kBatch)) {
      const auto real = batch.images * 2 - 1;
      const auto fake = g->forward(noise(batch.size()));

      // Trains the discriminator to score real images high and generated ones low. The gradients of both losses accumulate.
      opt_d.zero_grad();
      real_loss = cross_entropy(d->forward(real), 1);
      amp::scale_loss(real_loss, opt_d, kRealLoss).backward();
      fake_loss = cross_entropy(d->forward(fake.detach()), 0);
      amp::scale_loss(fake_loss, opt_d, kFakeLoss).backward();
      opt_d.step();

      // Trains the generator to pass its images off as real. The discriminator also gets gradients here, which zero_grad clears
      // above.
      opt_g.zero_grad();
      generator_loss = cross_entropy(d->forward(fake), 1);
      amp::scale_loss(generator_loss, opt_g, kGeneratorLoss).backward();
      opt_g.step();
    }
    std::printf("[%d/%d] Loss_D: %.4f Loss_G: %.4f distance %.3f\n", epoch, epochs,
                real_loss.item<double>() + fake_loss.item<double>(), generator_loss.item<double>(), distance(g, all_real));
  }

  for (const auto& scaler : amp::state_dict()) {
    std::printf("%s: %.0f, %zd steps unskipped\n", scaler.key().c_str(), scaler.value().loss_scale, scaler.value().unskipped);
  }
  const torch::NoGradGuard no_grad;
  g->eval();
  write_images("samples.pgm", g->forward(fixed_noise));
  amp::save_safetensors("generator.safetensors", g);
  amp::save_safetensors("discriminator.safetensors", d);
}

constexpr char kUsage[] = "dcgan [digits.csv [opt_level [epochs]]]";

}  // namespace

int main(int argc, char** argv) try {
  torch::manual_seed(0);
  train(read_digits(argc > 1 ? argv[1] : "digits.csv"), argc > 2 ? argv[2] : "O1",
        argc > 3 ? read_epochs(argv[3], kUsage) : 25);
} catch (const c10::Error& error) {
  std::fprintf(stderr, "%s\n", error.what_without_backtrace());
  return 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
