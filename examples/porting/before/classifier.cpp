// Classifies handwritten digits with a small convolutional network: classifier [digits.csv [epochs]]
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <memory>

#include "../command_line.h"
#include "../digits.h"

namespace {

namespace nn = torch::nn;

struct NetImpl : nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(norm1(conv1(x)));
    x = torch::max_pool2d(torch::relu(norm2(conv2(x))), 2);
    return head(x.flatten(1));
  }

  nn::Conv2d conv1 = register_module("conv1", nn::Conv2d(nn::Conv2dOptions(1, 16, 3).padding(1).bias(false)));
  nn::BatchNorm2d norm1 = register_module("norm1", nn::BatchNorm2d(16));
  nn::Conv2d conv2 = register_module("conv2", nn::Conv2d(nn::Conv2dOptions(16, 32, 3).padding(1).bias(false)));
  nn::BatchNorm2d norm2 = register_module("norm2", nn::BatchNorm2d(32));
  nn::Linear head = register_module("head", nn::Linear(32 * 4 * 4, 10));
};
TORCH_MODULE(Net);

double accuracy(Net& model, const Digits& data) {
  const torch::NoGradGuard no_grad;
  model->eval();
  return model->forward(data.images).argmax(1).eq(data.labels).to(torch::kDouble).mean().item<double>();
}

void train(const DigitsSplit& data, int epochs) {
  Net model;
  std::unique_ptr<torch::optim::Optimizer> optimizer =
      std::make_unique<torch::optim::SGD>(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9).weight_decay(1e-4));
  torch::optim::StepLR schedule(*optimizer, /*step_size=*/4, /*gamma=*/0.5);

  for (int epoch = 1; epoch <= epochs; ++epoch) {
    double total = 0;
    model->train();
    for (const auto& batch : data.train.batches(64)) {
      optimizer->zero_grad();
      const auto loss = torch::cross_entropy_loss(model->forward(batch.images), batch.labels);
      loss.backward();
      optimizer->step();
      total += loss.item<double>() * static_cast<double>(batch.size());
    }
    schedule.step();
    std::printf("epoch %d: loss %.4f, accuracy %.4f\n", epoch, total / static_cast<double>(data.train.size()),
                accuracy(model, data.test));
  }
  torch::save(model, "classifier.pt");
}

constexpr char kUsage[] = "classifier [digits.csv [epochs]]";

}  // namespace

int main(int argc, char** argv) try {
  torch::manual_seed(0);
  train(read_digits(argc > 1 ? argv[1] : "digits.csv"), argc > 2 ? read_epochs(argv[2], kUsage) : 8);
} catch (const c10::Error& error) {
  std::fprintf(stderr, "%s\n", error.what_without_backtrace());
  return 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
