// FP32 tensors created in the forward pass: encodings, noise, results to be filled.
#include "tests/programs/program.h"

namespace apex::test::programs {
namespace {

class MadeInsidePrograms : public AmpTest {};

template <class Model, class Amp, class LossOf>
void fit_inside(Amp& amp, double rate, const LossOf& loss_of) {
  Model model;
  torch::optim::Adam optimizer(model->parameters(), adam(rate));
  auto [net, opt] = amp.initialize(model, optimizer);
  auto& network = net;
  train(amp, opt, 50, [&] { return loss_of(network); });
}

/// Sines of the position beside the embedding.
struct EncodedImpl : torch::nn::Module {
  EncodedImpl() {
    embed = register_module("embed", torch::nn::Embedding(5, 4));
    layers = register_module("layers", Layers(8, 16, 1));
  }
  Tensor forward(const Tensor& tokens) {
    const auto position = torch::arange(tokens.size(1)).to(torch::kFloat).unsqueeze(1) * torch::tensor({1.0, 0.3});
    const auto encoding = torch::cat({position.sin(), position.cos()}, 1).expand({tokens.size(0), -1, -1});
    return layers(torch::cat({embed(tokens), encoding}, 2)).squeeze(2);
  }
  torch::nn::Embedding embed{nullptr};
  Layers layers{nullptr};
};
TORCH_MODULE(Encoded);

TEST_F(MadeInsidePrograms, PositionalEncoding) {
  expect_trains_as_without_amp([](auto& amp) {
    const auto tokens = torch::randint(5, {16, 6});
    const auto y = tokens * torch::linspace(-0.5, 0.5, 6);
    fit_inside<Encoded>(amp, 0.03, [&](auto& net) { return torch::mse_loss(net->forward(tokens), y); });
  });
}

/// Noise of torch::randn, not randn_like.
struct NoisyImpl : torch::nn::Module {
  NoisyImpl() { layers = register_module("layers", Layers(4, 16, 2)); }
  Tensor forward(const Tensor& x) {
    const auto noise = is_training() ? torch::randn({x.size(0), 4}) * 0.05 : torch::zeros({x.size(0), 4});
    return layers(x + noise);
  }
  Layers layers{nullptr};
};
TORCH_MODULE(Noisy);

TEST_F(MadeInsidePrograms, Noise) {
  expect_trains_as_without_amp([](auto& amp) {
    const auto x = torch::randn({32, 4});
    const auto y = x.slice(1, 0, 2) * x.slice(1, 2, 4);
    fit_inside<Noisy>(amp, 0.03, [&](auto& net) { return torch::mse_loss(net->forward(x), y); });
  });
}

/// Each of two experts computes some of the rows and writes them into one result.
struct ExpertsImpl : torch::nn::Module {
  ExpertsImpl() {
    gate = register_module("gate", torch::nn::Linear(2, 2));
    for (int i = 0; i < 2; ++i) experts->push_back(Layers(2, 8, 4));
    register_module("experts", experts);
    head = register_module("head", torch::nn::Linear(4, 1));
  }
  Tensor forward(const Tensor& x) {
    const auto weights = torch::softmax(gate(x), 1);
    const auto chosen = x.select(1, 0) > 0;
    auto result = torch::zeros({x.size(0), 4});
    for (int64_t i = 0; i < 2; ++i) {
      const auto rows = torch::nonzero(chosen == (i == 1)).squeeze(1);
      const auto expert_output = experts->ptr<LayersImpl>(i)->forward(x.index_select(0, rows));
      result.index_put_({rows}, expert_output * weights.index_select(0, rows).select(1, i).unsqueeze(1));
    }
    return head(result);
  }
  torch::nn::Linear gate{nullptr}, head{nullptr};
  torch::nn::ModuleList experts;
};
TORCH_MODULE(Experts);

TEST_F(MadeInsidePrograms, ResultFilledByExperts) {
  expect_trains_as_without_amp([](auto& amp) {
    const auto x = torch::randn({32, 2});
    const auto y = torch::where(x.slice(1, 0, 1) > 0, x.slice(1, 1, 2), -x.slice(1, 1, 2));
    fit_inside<Experts>(amp, 0.03, [&](auto& net) { return torch::mse_loss(net->forward(x), y); });
  });
}

/// Sums over the neighbours of a graph, into zeros.
struct GraphImpl : torch::nn::Module {
  GraphImpl() {
    message = register_module("message", torch::nn::Linear(3, 8));
    head = register_module("head", torch::nn::Linear(8, 1));
  }
  Tensor forward(const Tensor& nodes, const Tensor& from, const Tensor& to) {
    const auto messages = torch::relu(message(nodes)).index_select(0, from);
    return head(torch::zeros({nodes.size(0), 8}).index_add_(0, to, messages));
  }
  torch::nn::Linear message{nullptr}, head{nullptr};
};
TORCH_MODULE(Graph);

TEST_F(MadeInsidePrograms, SumsOverAGraph) {
  expect_trains_as_without_amp([](auto& amp) {
    const auto nodes = torch::randn({24, 3});
    const auto from = torch::arange(24).repeat({3}), to = torch::randint(24, {72});
    const auto y = torch::zeros({24, 1}).index_add_(0, to, nodes.abs().sum(1, true).index_select(0, from) * 0.3);
    fit_inside<Graph>(amp, 0.03, [&](auto& net) { return torch::mse_loss(net->forward(nodes, from, to), y); });
  });
}

/// A codebook that is kept up by averages in buffers, not by gradients.
struct CodebookImpl : torch::nn::Module {
  CodebookImpl() {
    encoder = register_module("encoder", torch::nn::Linear(4, 2));
    decoder = register_module("decoder", torch::nn::Linear(2, 4));
    codes = register_buffer("codes", torch::randn({8, 2}));
  }
  std::tuple<Tensor, Tensor> forward(const Tensor& x) {
    const auto z = encoder(x);
    const auto nearest = torch::cdist(z, codes.to(z.dtype())).argmin(1);
    const auto quantized = codes.index_select(0, nearest).to(z.dtype());
    if (is_training()) {
      const torch::NoGradGuard no_grad;
      codes.index_copy_(0, nearest, (quantized * 0.8 + z * 0.2).to(codes.dtype()));
    }
    return {decoder(z + (quantized - z).detach()), torch::mse_loss(z, quantized.detach())};
  }
  torch::nn::Linear encoder{nullptr}, decoder{nullptr};
  Tensor codes;
};
TORCH_MODULE(Codebook);

TEST_F(MadeInsidePrograms, CodebookInABuffer) {
  expect_trains_as_without_amp([](auto& amp) {
    const auto x = torch::rand({32, 1}) * torch::tensor({1.0, -1.0, 0.5, 2.0}) + 0.1 * torch::randn({32, 4});
    fit_inside<Codebook>(amp, 0.03, [&](auto& net) {
      const auto [decoded, commitment] = net->forward(x);
      return torch::mse_loss(decoded, x) + 0.25 * commitment;
    });
  });
}

/// Keys and values are kept while a sequence is read symbol by symbol.
struct CachedImpl : torch::nn::Module {
  CachedImpl() {
    embed = register_module("embed", torch::nn::Embedding(4, 8));
    key = register_module("key", torch::nn::Linear(8, 8));
    value = register_module("value", torch::nn::Linear(8, 8));
    head = register_module("head", torch::nn::Linear(8, 4));
  }
  Tensor forward(const Tensor& tokens) {
    auto keys = torch::zeros({tokens.size(0), 1, 8}), values = torch::zeros({tokens.size(0), 1, 8});
    std::vector<Tensor> head_outputs;
    for (int64_t t = 0; t < tokens.size(1); ++t) {
      const auto x = embed(tokens.slice(1, t, t + 1));
      keys = torch::cat({keys, key(x)}, 1);
      values = torch::cat({values, value(x)}, 1);
      head_outputs.push_back(head(torch::softmax(torch::bmm(x, keys.transpose(1, 2)), 2).bmm(values)));
    }
    return torch::cat(head_outputs, 1);
  }
  torch::nn::Embedding embed{nullptr};
  torch::nn::Linear key{nullptr}, value{nullptr}, head{nullptr};
};
TORCH_MODULE(Cached);

TEST_F(MadeInsidePrograms, KeyValueCache) {
  expect_trains_as_without_amp([](auto& amp) {
    Cached model;
    torch::optim::Adam optimizer(model->parameters(), adam(0.03));
    auto [net, opt] = amp.initialize(model, optimizer);
    const auto tokens = torch::randint(4, {16, 5});
    auto& network = net;
    train(amp, opt, 40, [&] {
      return torch::cross_entropy_loss(network->forward(tokens).flatten(0, 1), tokens.select(1, 0).repeat_interleave(5));
    });
  });
}

/// A custom struct without a cast method.
struct Sample {
  Tensor points, kinds;
};

struct SampleModelImpl : torch::nn::Module {
  SampleModelImpl() {
    embed = register_module("embed", torch::nn::Embedding(3, 4));
    layers = register_module("layers", Layers(8, 16, 1));
  }
  Tensor forward(const Sample& sample) { return layers(torch::cat({sample.points, embed(sample.kinds)}, 1)); }
  torch::nn::Embedding embed{nullptr};
  Layers layers{nullptr};
};
TORCH_MODULE(SampleModel);

TEST_F(MadeInsidePrograms, StructWithoutACastMethod) {
  expect_trains_as_without_amp([](auto& amp) {
    const Sample sample{torch::randn({32, 4}), torch::randint(3, {32})};
    const auto y = sample.points.sum(1, true).sin() + sample.kinds.unsqueeze(1) - 1;
    fit_inside<SampleModel>(amp, 0.03, [&](auto& net) { return torch::mse_loss(net->forward(sample), y); });
  });
}

}  // namespace
}  // namespace apex::test::programs
