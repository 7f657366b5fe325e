// Programs that call initialize several times: one after another, stage by stage, for training and then for use.
#include "tests/programs/program.h"

namespace apex::test::programs {
namespace {

class StagePrograms : public AmpTest {};

struct Strips {
  Tensor x = torch::randn({32, 4});
  Tensor y = torch::tanh(x.sum(1, true));
};

/// Models that were trained one after another are evaluated together.
TEST_F(StagePrograms, EnsembleTrainedOneByOne) {
  expect_trains_as_without_amp([](auto& amp) {
    const Strips data;
    std::vector<std::function<Tensor(const Tensor&)>> trained;
    for (int i = 0; i < 3; ++i) {
      Layers model(4, 8, 1);
      torch::optim::Adam optimizer(model->parameters(), adam(0.03));
      auto [net, opt] = amp.initialize(model, optimizer);
      auto kept = net;
      train(amp, opt, 30, [&] { return torch::mse_loss(kept->forward(data.x), data.y); });
      trained.push_back([kept](const Tensor& x) mutable { return kept->forward(x).to(torch::kFloat); });
    }
    const torch::NoGradGuard no_grad;
    amp.log(torch::mse_loss((trained[0](data.x) + trained[1](data.x) + trained[2](data.x)) / 3, data.y));
  });
}

struct CodecImpl : torch::nn::Module {
  CodecImpl() {
    encoder = register_module("encoder", Layers(4, 16, 8));
    decoder = register_module("decoder", torch::nn::Linear(8, 4));
  }
  Tensor forward(const Tensor& x) { return decoder(torch::relu(encoder(x))); }
  Layers encoder{nullptr};
  torch::nn::Linear decoder{nullptr};
};
TORCH_MODULE(Codec);

struct TunedImpl : torch::nn::Module {
  explicit TunedImpl(Layers pretrained) : encoder(register_module("encoder", std::move(pretrained))) {
    head = register_module("head", torch::nn::Linear(8, 1));
  }
  Tensor forward(const Tensor& x) { return head(torch::relu(encoder(x))); }
  Layers encoder;
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Tuned);

/// The encoder of a first model becomes a part of the second.
TEST_F(StagePrograms, EncoderPretrainedAndFineTuned) {
  expect_trains_as_without_amp([](auto& amp) {
    const Strips data;
    Codec codec;
    torch::optim::Adam optimizer(codec->parameters(), adam(0.03));
    auto [net, opt] = amp.initialize(codec, optimizer);
    auto& coder = net;
    train(amp, opt, 20, [&] { return torch::mse_loss(coder->forward(data.x), data.x); });
    Tuned model(net->encoder);
    torch::optim::Adam tuner(model->parameters(), adam(0.02));
    auto [tuned, tuned_opt] = amp.initialize(model, tuner);
    auto& network = tuned;
    train(amp, tuned_opt, 30, [&] { return torch::mse_loss(network->forward(data.x), data.y); });
  });
}

/// The same model, a new optimizer.
TEST_F(StagePrograms, SecondOptimizerForTheSameModel) {
  expect_trains_as_without_amp([](auto& amp) {
    const Strips data;
    Layers model(4, 16, 1);
    const auto stage = [&](auto optimizer) {
      auto [net, opt] = amp.initialize(model, optimizer);
      auto& network = net;
      train(amp, opt, 20, [&] { return torch::mse_loss(network->forward(data.x), data.y); });
    };
    stage(torch::optim::Adam(model->parameters(), adam(0.03)));
    stage(torch::optim::SGD(model->parameters(), torch::optim::SGDOptions(0.02).momentum(0.9)));
  });
}

/// Trained with amp, used without: FP32 weights in a model that amp never saw, by name.
TEST_F(StagePrograms, WeightsCopiedByNameIntoAPlainModel) {
  expect_trains_as_without_amp([](auto& amp) {
    const Strips data;
    Layers model(4, 16, 1), plain(4, 16, 1);
    torch::optim::Adam optimizer(model->parameters(), adam(0.03));
    auto [net, opt] = amp.initialize(model, optimizer);
    auto& network = net;
    train(amp, opt, 40, [&] { return torch::mse_loss(network->forward(data.x), data.y); });
    const torch::NoGradGuard no_grad;
    const auto trained = net->named_parameters();
    for (auto& item : plain->named_parameters()) item.value().copy_(trained[item.key()]);
    amp.log(torch::mse_loss(plain->forward(data.x).to(torch::kFloat), data.y));
  });
}

}  // namespace
}  // namespace apex::test::programs
