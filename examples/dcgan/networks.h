#pragma once
// The two networks of a DCGAN for grey images of 8x8: strided convolutions with batch norm, as in Radford et al., 2015.
#include <torch/nn.h>

/// Maps noise (count, noise, 1, 1) to images (count, 1, 8, 8) with values from -1 to 1.
struct GeneratorImpl : torch::nn::Module {
  GeneratorImpl(int64_t noise, int64_t width)
      : layers(torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(noise, 4 * width, 2).bias(false)),
               torch::nn::BatchNorm2d(4 * width), torch::nn::ReLU(),
               torch::nn::ConvTranspose2d(
                   torch::nn::ConvTranspose2dOptions(4 * width, 2 * width, 4).stride(2).padding(1).bias(false)),
               torch::nn::BatchNorm2d(2 * width), torch::nn::ReLU(),
               torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(2 * width, 1, 4).stride(2).padding(1).bias(false)),
               torch::nn::Tanh()) {
    register_module("layers", layers);
  }
  torch::Tensor forward(const torch::Tensor& noise) { return layers->forward(noise); }

  torch::nn::Sequential layers;
};
TORCH_MODULE(Generator);

/// Maps images (count, 1, 8, 8) to logits (count): how real each image looks.
struct DiscriminatorImpl : torch::nn::Module {
  explicit DiscriminatorImpl(int64_t width)
      : layers(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, width, 4).stride(2).padding(1).bias(false)), leaky_relu(),
               torch::nn::Conv2d(torch::nn::Conv2dOptions(width, 2 * width, 4).stride(2).padding(1).bias(false)),
               torch::nn::BatchNorm2d(2 * width), leaky_relu(),
               torch::nn::Conv2d(torch::nn::Conv2dOptions(2 * width, 1, 2).bias(false))) {
    register_module("layers", layers);
  }
  torch::Tensor forward(const torch::Tensor& images) { return layers->forward(images).flatten(); }

  static torch::nn::LeakyReLU leaky_relu() { return torch::nn::LeakyReLU(torch::nn::LeakyReLUOptions().negative_slope(0.2)); }

  torch::nn::Sequential layers;
};
TORCH_MODULE(Discriminator);

/// The initial weights of both networks: N(0, 0.02) in convolutions, N(1, 0.02) in batch norms.
inline void init_weights(torch::nn::Module& network) {
  const torch::NoGradGuard no_grad;
  for (auto& parameter : network.named_parameters()) {
    auto& weight = parameter.value();
    if (weight.dim() > 1) {
      weight.normal_(0, 0.02);
    } else if (parameter.key().find("weight") != std::string::npos) {
      weight.normal_(1, 0.02);
    }
  }
}
