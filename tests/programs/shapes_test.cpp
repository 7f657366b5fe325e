// Networks of other shapes and layers: images in and out, norms, attention by einsum, sequences with CTC.
#include "tests/programs/program.h"

namespace apex::test::programs {
namespace {

class ShapePrograms : public AmpTest {};

struct UNetImpl : torch::nn::Module {
  UNetImpl() {
    down = register_module("down", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).padding(1)));
    norm = register_module("norm", torch::nn::GroupNorm(2, 4));
    middle = register_module("middle", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 4, 3).padding(1)));
    instance = register_module("instance", torch::nn::InstanceNorm2d(torch::nn::InstanceNorm2dOptions(4).affine(true)));
    up = register_module("up", torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(4, 4, 2).stride(2)));
    out = register_module("out", torch::nn::Conv2d(8, 1, 1));
  }
  Tensor forward(const Tensor& x) {
    const auto a = torch::silu(norm(down(x)));
    const auto b = torch::gelu(instance(middle(torch::avg_pool2d(a, 2))));
    const auto upsampled = torch::nn::functional::interpolate(b, torch::nn::functional::InterpolateFuncOptions()
                                                                     .scale_factor(std::vector<double>{2, 2})
                                                                     .mode(torch::kBilinear)
                                                                     .align_corners(false));
    return out(torch::cat({a, up(b) + upsampled}, 1));
  }
  torch::nn::Conv2d down{nullptr}, middle{nullptr}, out{nullptr};
  torch::nn::GroupNorm norm{nullptr};
  torch::nn::InstanceNorm2d instance{nullptr};
  torch::nn::ConvTranspose2d up{nullptr};
};
TORCH_MODULE(UNet);

TEST_F(ShapePrograms, UNetForSegmentation) {
  expect_trains_as_without_amp([](auto& amp) {
    UNet model;
    torch::optim::Adam optimizer(model->parameters(), adam(0.03));
    auto [net, opt] = amp.initialize(model, optimizer);
    auto y = torch::zeros({4, 1, 8, 8});
    for (int64_t i = 0; i < 4; ++i) y[i][0].slice(0, i, i + 4).slice(1, 4 - i, 8 - i) = 1;
    const auto x = y + 0.5 * torch::randn_like(y);
    torch::nn::BCEWithLogitsLoss criterion(torch::nn::BCEWithLogitsLossOptions().pos_weight(torch::full({1}, 2.0)));
    auto& network = net;
    train(amp, opt, 25, [&] {
      const auto logits = network(x);
      amp.output(logits);
      return criterion(logits, y);
    });
  });
}

/// Custom norms: a functional batch norm with its own parameters, and an RMS norm.
struct OwnNormsImpl : torch::nn::Module {
  OwnNormsImpl() {
    layers = register_module(
        "layers", torch::nn::ModuleList(torch::nn::Linear(4, 16), torch::nn::Linear(16, 16), torch::nn::Linear(16, 2)));
    weight = register_parameter("weight", torch::ones({16}));
    bias = register_parameter("bias", torch::zeros({16}));
    scale = register_parameter("scale", torch::ones({16}));
    mean = register_buffer("mean", torch::zeros({16}));
    variance = register_buffer("variance", torch::ones({16}));
  }
  Tensor layer(int64_t i, const Tensor& x) { return layers->ptr<torch::nn::LinearImpl>(i)->forward(x); }
  Tensor forward(const Tensor& x) {
    auto h = torch::batch_norm(layer(0, x), weight, bias, mean, variance, is_training(), 0.1, 1e-5, false);
    h = layer(1, torch::relu(h));
    h = h * torch::rsqrt(h.pow(2).mean(-1, true) + 1e-3) * scale;
    return layer(2, torch::relu(h));
  }
  torch::nn::ModuleList layers{nullptr};
  Tensor weight, bias, scale, mean, variance;
};
TORCH_MODULE(OwnNorms);

TEST_F(ShapePrograms, CustomNorms) {
  expect_trains_as_without_amp([](auto& amp) {
    OwnNorms model;
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
    auto [net, opt] = amp.initialize(model, optimizer);
    const auto x = torch::randn({32, 4});
    const auto labels = (x.select(1, 0) * x.select(1, 1) > 0).to(torch::kLong);
    torch::nn::CrossEntropyLoss criterion(
        torch::nn::CrossEntropyLossOptions().weight(torch::tensor({1.0, 2.0})).label_smoothing(0.05));
    auto& network = net;
    train(amp, opt, 50, [&] { return criterion(network(x), labels); });
    net->eval();
    amp.log(criterion(net(x), labels));
  });
}

/// Letters to be read out of a longer sequence.
struct ReaderImpl : torch::nn::Module {
  ReaderImpl() {
    gru = register_module("gru", torch::nn::GRU(torch::nn::GRUOptions(3, 8).bidirectional(true)));
    head = register_module("head", torch::nn::Linear(16, 4));
  }
  Tensor forward(const Tensor& x) { return head(std::get<0>(gru(x))).log_softmax(2); }
  torch::nn::GRU gru{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Reader);

TEST_F(ShapePrograms, SequencesWithCtc) {
  expect_trains_as_without_amp([](auto& amp) {
    Reader model;
    torch::optim::Adam optimizer(model->parameters(), adam(0.05));
    auto [net, opt] = amp.initialize(model, optimizer);
    const auto letters = torch::randint(3, {8, 2});
    const auto x = torch::one_hot(letters, 3).to(torch::kFloat).repeat_interleave(3, 1).transpose(0, 1).contiguous();
    const auto lengths = torch::full({8}, 6, torch::kLong), target_lengths = torch::full({8}, 2, torch::kLong);
    torch::nn::CTCLoss criterion;
    auto& network = net;
    train(amp, opt, 40, [&] { return criterion(network(x), letters + 1, lengths, target_lengths); });
  });
}

struct EinsumImpl : torch::nn::Module {
  EinsumImpl() {
    for (const char* name : {"q", "k", "v", "o"}) weights[name] = register_parameter(name, torch::randn({8, 2, 4}) * 0.3);
    embed = register_module("embed", torch::nn::EmbeddingBag(6, 8));
  }
  Tensor forward(const Tensor& bags) {
    const auto x = embed(bags.flatten(0, 1)).view({bags.size(0), bags.size(1), 8});
    const auto project = [&](const char* name) { return torch::einsum("btd,dhe->bhte", {x, weights.at(name)}); };
    const auto y = torch::scaled_dot_product_attention(project("q"), project("k"), project("v"));
    return torch::einsum("bhte,dhe->btd", {y, weights.at("o")}) + x;
  }
  std::map<std::string, Tensor> weights;
  torch::nn::EmbeddingBag embed{nullptr};
};
TORCH_MODULE(Einsum);

TEST_F(ShapePrograms, AttentionByEinsumOverBags) {
  expect_trains_as_without_amp([](auto& amp) {
    Einsum model;
    torch::optim::Adam optimizer(model->parameters(), adam(0.03));
    auto [net, opt] = amp.initialize(model, optimizer);
    const auto bags = torch::randint(6, {8, 4, 3});
    const auto y = torch::tanh(bags.to(torch::kFloat).mean({1, 2}) - 2.5);
    auto& network = net;
    train(amp, opt, 50, [&] { return torch::mse_loss(network(bags).mean({1, 2}), y); });
  });
}

/// Answers a struct; its forward has defaults, is const and overloaded.
struct Answer {
  Tensor value;
  int64_t rows = 0;
};
struct SeveralForwardsImpl : torch::nn::Module {
  SeveralForwardsImpl() { layers = register_module("layers", Layers(2, 16, 1)); }
  Answer forward(const Tensor& x, double scale = 1.0) const { return {layers->forward(x) * scale, x.size(0)}; }
  Answer forward(const std::vector<Tensor>& parts) const { return forward(torch::cat(parts)); }
  mutable Layers layers{nullptr};
};
TORCH_MODULE(SeveralForwards);

TEST_F(ShapePrograms, StructsOutOfSeveralForwards) {
  expect_trains_as_without_amp([](auto& amp) {
    SeveralForwards model;
    torch::optim::Adam optimizer(model->parameters(), adam(0.03));
    auto [net, opt] = amp.initialize(model, optimizer);
    const auto x = torch::randn({32, 2});
    const auto y = x.sum(1, true).cos();
    auto& network = net;
    train(amp, opt, 50, [&] {
      EXPECT_EQ(network->forward(x, 2.0).rows, 32);
      const std::vector<Tensor> halves = {x.slice(0, 0, 16), x.slice(0, 16)};
      return torch::mse_loss(network->forward(halves).value.to(torch::kFloat), y);
    });
  });
}

}  // namespace
}  // namespace apex::test::programs
