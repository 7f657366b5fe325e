// Finetunes a network whose backbone was trained in Python: first the new head alone, then the whole network.
// finetune backbone.safetensors [digits.csv [opt_level [epochs of each phase]]]
#include <apex_cpp/amp.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>
#include <memory>
#include <string>

#include "command_line.h"
#include "digits.h"
#include "network.h"

namespace {

namespace amp = apex::amp;

/// One optimizer for both phases, with a group per part. A parameter gets its FP32 master when it is first trained.
torch::optim::Adam make_optimizer(const Classifier& model) {
  const auto group = [](const torch::nn::Module& part, double lr) {
    return torch::optim::OptimizerParamGroup(part.parameters(), std::make_unique<torch::optim::AdamOptions>(lr));
  };
  return torch::optim::Adam({group(*model->backbone, 1e-3), group(*model->head, 1e-2)}, torch::optim::AdamOptions());
}

template <class Net>
double accuracy(Net& net, const Digits& data) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const torch::Tensor correct = net->forward(data.images).argmax(1).eq(data.labels).to(torch::kDouble);
  return correct.mean().item().toDouble();
}

template <class Net, class Optimizer>
void train_phase(const char* name, bool frozen, Net& net, Optimizer& opt, const DigitsSplit& data, int epochs) {
  for (int epoch = 1; epoch <= epochs; ++epoch) {
    net->train();
    net->freeze_backbone(frozen);
    for (const auto& batch : data.train.batches(64)) {
      opt.zero_grad();
      const torch::Tensor loss = torch::cross_entropy_loss(net->forward(batch.images), batch.labels);
      amp::scale_loss(loss, opt).backward();
      opt.step();
    }
    std::printf("%s, epoch %d: accuracy %.4f\n", name, epoch, accuracy(net, data.test));
  }
}

void finetune(const std::string& weights, const DigitsSplit& data, const std::string& opt_level, int epochs) {
  Classifier model;
  amp::load_safetensors(weights, model->backbone);
  auto optimizer = make_optimizer(model);
  auto [net, opt] = amp::initialize(model, optimizer, opt_level);

  train_phase("frozen", true, net, opt, data, epochs);
  amp::save_safetensors("frozen.safetensors", net);
  train_phase("unfrozen", false, net, opt, data, epochs);
  amp::save_safetensors("finetuned.safetensors", net);
}

constexpr char kUsage[] = "finetune backbone.safetensors [digits.csv [opt_level [epochs of each phase]]]";

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 2) throw std::invalid_argument(std::string("usage: ") + kUsage);
  torch::manual_seed(0);
  finetune(argv[1], read_digits(argc > 2 ? argv[2] : "digits.csv"), argc > 3 ? argv[3] : "O2",
           argc > 4 ? read_epochs(argv[4], kUsage) : 6);
} catch (const c10::Error& error) {
  std::fprintf(stderr, "%s\n", error.what_without_backtrace());
  return 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
