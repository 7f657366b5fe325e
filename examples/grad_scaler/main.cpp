// PyTorch's autocast and GradScaler recipe in C++: grad_scaler [digits.csv [epochs [checkpoint]]]
// If the checkpoint exists, training resumes from it, up to `epochs`.
#include <apex_cpp/amp.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <string>

#include "command_line.h"
#include "digits.h"

namespace {

namespace amp = apex::amp;
namespace nn = torch::nn;

constexpr int kAccumulationSteps = 2;
constexpr char kCheckpoint[] = "grad_scaler.pt";

nn::Sequential make_model() {
  return nn::Sequential(nn::Flatten(), nn::Linear(64, 128), nn::ReLU(), nn::Dropout(0.1), nn::Linear(128, 128), nn::ReLU(),
                        nn::Linear(128, 10));
}

double accuracy(nn::Sequential& net, const Digits& data) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const amp::autocast autocast("cpu", torch::kHalf);
  return net->forward(data.images).argmax(1).eq(data.labels).to(torch::kDouble).mean().item<double>();
}

torch::Generator default_generator() { return torch::globalContext().defaultGenerator(torch::kCPU); }

/// Saves everything that the next epoch depends on: model, optimizer, scaler and random number generators.
void save(const nn::Sequential& net, const torch::optim::Optimizer& optimizer, const amp::GradScaler& scaler, int epoch) {
  torch::serialize::OutputArchive file, model_part, optimizer_part, scaler_part;
  net->save(model_part);
  optimizer.save(optimizer_part);
  scaler_part << scaler;
  file.write("model", model_part);
  file.write("optimizer", optimizer_part);
  file.write("scaler", scaler_part);
  file.write("random", default_generator().get_state());
  file.write("epoch", c10::IValue(epoch));
  file.save_to(kCheckpoint);
}

int load(const std::string& path, nn::Sequential& net, torch::optim::Optimizer& optimizer, amp::GradScaler& scaler) {
  torch::serialize::InputArchive file, model_part, optimizer_part, scaler_part;
  file.load_from(path);
  file.read("model", model_part);
  file.read("optimizer", optimizer_part);
  file.read("scaler", scaler_part);
  net->load(model_part);
  optimizer.load(optimizer_part);
  scaler_part >> scaler;
  torch::Tensor random;
  c10::IValue epoch;
  file.read("random", random);
  file.read("epoch", epoch);
  default_generator().set_state(random);
  return static_cast<int>(epoch.toInt());
}

void train(const DigitsSplit& data, int epochs, const std::string& checkpoint) {
  auto net = make_model();
  torch::optim::AdamW optimizer(net->parameters(), torch::optim::AdamWOptions(2e-3));
  amp::GradScaler scaler("cpu");  // on a GPU "cuda", the default of GradScaler and autocast

  const int done = checkpoint.empty() ? 0 : load(checkpoint, net, optimizer, scaler);
  for (int epoch = done + 1; epoch <= epochs; ++epoch) {
    net->train();
    int64_t skipped = 0;
    for (const auto& batch : data.train.batches(128)) {
      optimizer.zero_grad();
      for (const auto& rows : torch::arange(batch.size()).chunk(kAccumulationSteps)) {
        const auto part = batch.at(rows);
        const auto share = static_cast<double>(part.size()) / static_cast<double>(batch.size());
        torch::Tensor loss;
        {
          const amp::autocast autocast("cpu", torch::kHalf);  // around the forward pass and the loss only
          loss = torch::cross_entropy_loss(net->forward(part.images), part.labels) * share;
        }
        scaler.scale(loss).backward();
      }
      scaler.unscale_(optimizer);  // so that clipping sees the unscaled gradients
      nn::utils::clip_grad_norm_(net->parameters(), 1.0);
      skipped += !scaler.step(optimizer).has_value();
      scaler.update();
    }
    std::printf("epoch %d: accuracy %.4f, scale %g, %zd steps skipped\n", epoch, accuracy(net, data.test), scaler.get_scale(),
                skipped);
    save(net, optimizer, scaler, epoch);
  }
}

constexpr char kUsage[] = "grad_scaler [digits.csv [epochs [checkpoint]]]";

}  // namespace

int main(int argc, char** argv) try {
  torch::manual_seed(0);
  train(read_digits(argc > 1 ? argv[1] : "digits.csv"), argc > 2 ? read_epochs(argv[2], kUsage) : 6, argc > 3 ? argv[3] : "");
} catch (const c10::Error& error) {
  std::fprintf(stderr, "%s\n", error.what_without_backtrace());
  return 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
