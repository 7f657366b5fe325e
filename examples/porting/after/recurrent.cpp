// Classifies handwritten digits row by row with an LSTM, accumulating the gradients of large batches: recurrent [digits.csv
// [epochs]]
#include <apex_cpp/amp.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <memory>

#include "../command_line.h"
#include "../digits.h"

namespace {

namespace nn = torch::nn;

constexpr int kAccumulationSteps = 4;

struct ReaderImpl : nn::Module {
  torch::Tensor forward(const torch::Tensor& images) {
    const auto rows = std::get<0>(lstm(images.flatten(1, 2)));  // (count, 8, 64)
    return head(rows.select(1, -1));
  }

  nn::LSTM lstm = register_module("lstm", nn::LSTM(nn::LSTMOptions(8, 64).num_layers(2).batch_first(true)));
  nn::Linear head = register_module("head", nn::Linear(64, 10));
};
TORCH_MODULE(Reader);

double accuracy(Reader& model, const Digits& data) {
  const torch::NoGradGuard no_grad;
  model->eval();
  return model->forward(data.images).argmax(1).eq(data.labels).to(torch::kDouble).mean().item<double>();
}

void train(const DigitsSplit& data, int epochs) {
  Reader model;
  std::unique_ptr<torch::optim::Optimizer> optimizer =
      std::make_unique<torch::optim::Adam>(model->parameters(), torch::optim::AdamOptions(5e-3));
  std::tie(model, optimizer) = apex::amp::initialize(model, optimizer, "O2");

  for (int epoch = 1; epoch <= epochs; ++epoch) {
    double total = 0;
    model->train();
    for (const auto& batch : data.train.batches(128)) {
      optimizer->zero_grad();  // once per step: the passes below accumulate
      for (const auto& rows : torch::arange(batch.size()).chunk(kAccumulationSteps)) {
        const auto part = batch.at(rows);
        const auto share = static_cast<double>(part.size()) / static_cast<double>(batch.size());
        const auto loss = torch::cross_entropy_loss(model->forward(part.images), part.labels) * share;
        apex::amp::scale_loss(loss, optimizer).backward();
        total += loss.item<double>() * static_cast<double>(batch.size());
      }
      optimizer->step();
    }
    std::printf("epoch %d: loss %.4f, accuracy %.4f\n", epoch, total / static_cast<double>(data.train.size()),
                accuracy(model, data.test));
  }
  torch::save(model, "recurrent.pt");
}

constexpr char kUsage[] = "recurrent [digits.csv [epochs]]";

}  // namespace

int main(int argc, char** argv) try {
  torch::manual_seed(0);
  train(read_digits(argc > 1 ? argv[1] : "digits.csv"), argc > 2 ? read_epochs(argv[2], kUsage) : 12);
} catch (const c10::Error& error) {
  std::fprintf(stderr, "%s\n", error.what_without_backtrace());
  return 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
