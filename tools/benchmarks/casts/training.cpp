// Training steps of a small transformer: amp at O4, torch's CPU autocast, and FP32.
#include <ATen/Functions.h>
#include <apex_cpp/amp/autocast.h>
#include <apex_cpp/amp/initialize.h>
#include <apex_cpp/amp/scale_loss.h>
#include <apex_cpp/amp/session.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/transformercoder.h>
#include <torch/nn/modules/transformerlayer.h>
#include <torch/optim/sgd.h>

#include "casts.h"

namespace bench::casts {
namespace {

constexpr const char* kTrainingGroup = "training";
constexpr const char* kName = "transformer";
constexpr int kSteps = 100;  // minimum total
constexpr int64_t kSequence = 64, kBatch = 8, kWidth = 128, kHeads = 4, kLayers = 2, kTokens = 256;

/// Predicts a token at every position.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    const auto layer = torch::nn::TransformerEncoderLayerOptions(kWidth, kHeads).dim_feedforward(4 * kWidth).dropout(0);
    embedding = register_module("embedding", torch::nn::Embedding(kTokens, kWidth));
    encoder = register_module("encoder", torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(layer, kLayers)));
    head = register_module("head", torch::nn::Linear(kWidth, kTokens));
  }
  at::Tensor forward(const at::Tensor& tokens) { return head(encoder(embedding(tokens))); }

  torch::nn::Embedding embedding{nullptr};
  torch::nn::TransformerEncoder encoder{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Net);

struct Data {
  at::Tensor tokens = at::randint(kTokens, {kSequence, kBatch}, at::kLong);
  at::Tensor targets = at::randint(kTokens, {kSequence * kBatch}, at::kLong);
};

template <class Model>
at::Tensor loss_of(Model& model, const Data& data) {
  return at::cross_entropy_loss(model->forward(data.tokens).flatten(0, 1), data.targets);
}

template <class Model>
void amp_step(Model& net, torch::optim::Optimizer& optimizer, const Data& data) {
  optimizer.zero_grad();
  const auto loss = loss_of(net, data);
  {
    auto scaled_loss = apex::amp::scale_loss(loss, optimizer);
    scaled_loss.backward();
  }
  optimizer.step();
}

void torch_step(Net& net, torch::optim::Optimizer& optimizer, const Data& data, bool casts) {
  const EngineOff off;
  optimizer.zero_grad();
  at::Tensor loss;
  {
    const apex::amp::autocast guard("cpu", at::kBFloat16, casts);
    loss = loss_of(net, data);
  }
  loss.backward();
  optimizer.step();
}

Result measure(Runner& runner, int threads) {
  const Data data;
  Net amp_model, torch_net, float_net;
  torch::optim::SGD amp_sgd(amp_model->parameters(), 0.01), torch_sgd(torch_net->parameters(), 0.01),
      float_sgd(float_net->parameters(), 0.01);
  auto amp = apex::amp::initialize(amp_model, amp_sgd, "O4", apex::amp::InitializeOptions().verbosity(0));
  const int steps = (kSteps + runner.rounds() - 1) / runner.rounds();
  const auto chunk = [&](std::string name, const std::function<void()>& step) {
    return Variant{std::move(name), [step, steps] { return nanoseconds_per_call(step, steps); }};
  };
  const auto medians = runner.medians(std::string(kTrainingGroup) + "/" + kName, threads,
                                      {chunk("amp", [&] { amp_step(amp.first, amp.second, data); }),
                                       chunk("torch", [&] { torch_step(torch_net, torch_sgd, data, true); }),
                                       chunk("float", [&] { torch_step(float_net, float_sgd, data, false); })});
  apex::amp::reset();
  return {kTrainingGroup,
          kName,
          threads,
          {{"amp us", medians[0] / 1000},
           {"torch us", medians[1] / 1000},
           {"float us", medians[2] / 1000},
           {"amp/torch", medians[0] / medians[1]},
           {"amp/float", medians[0] / medians[2]}}};
}

}  // namespace

void run_training(Runner& runner) {
  if (!runner.wants(kTrainingGroup, kName)) return;
  for (const int threads : runner.thread_counts()) runner.add(measure(runner, threads));
  runner.print_group();
}

}  // namespace bench::casts
