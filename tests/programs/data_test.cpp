// Inputs and outputs of models, and data loaders.
#include "tests/programs/program.h"

namespace apex::test::programs {
namespace {

class DataPrograms : public AmpTest {};

/// Images with a bright quarter; which one is the label.
struct Quarters : torch::data::datasets::Dataset<Quarters> {
  Quarters() : images(torch::randn({32, 1, 6, 6}) * 0.3), labels(torch::randint(4, {32})) {
    for (int64_t i = 0; i < 32; ++i) {
      const auto label = labels[i].item<int64_t>();
      images[i][0].slice(0, label / 2 * 3, label / 2 * 3 + 3).slice(1, label % 2 * 3, label % 2 * 3 + 3) += 1;
    }
  }
  torch::data::Example<> get(size_t index) override { return {images[index], labels[index]}; }
  torch::optional<size_t> size() const override { return 32; }
  Tensor images, labels;
};

struct ConvolutionsImpl : torch::nn::Module {
  ConvolutionsImpl() {
    layers = register_module("layers",
                             torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).bias(false)),
                                                   torch::nn::BatchNorm2d(4), torch::nn::ReLU(), torch::nn::MaxPool2d(2),
                                                   torch::nn::Flatten(), torch::nn::Dropout(0.1), torch::nn::Linear(16, 4)));
  }
  Tensor forward(const Tensor& x) { return torch::log_softmax(layers->forward(x), 1); }
  torch::nn::Sequential layers{nullptr};
};
TORCH_MODULE(Convolutions);

/// Two threads read; the model goes to eval and back after every epoch.
TEST_F(DataPrograms, LoaderThreadsAndEvaluationAfterEveryEpoch) {
  expect_trains_as_without_amp([](auto& amp) {
    const Quarters quarters;
    auto loader = torch::data::make_data_loader(Quarters(quarters).map(torch::data::transforms::Stack<>()),
                                                torch::data::DataLoaderOptions().batch_size(8).workers(2));
    Convolutions model;
    torch::optim::Adam optimizer(model->parameters(), adam(0.02));
    auto [net, opt] = amp.initialize(model, optimizer);
    for (int epoch = 0; epoch < 6; ++epoch) {
      net->eval();
      {
        const torch::NoGradGuard no_grad;
        const auto output = net->forward(quarters.images);
        amp.output(output);
        amp.log(torch::nll_loss(output, quarters.labels));
      }
      net->train();
      for (auto& batch : *loader) {
        opt.zero_grad();
        amp.backward(torch::nll_loss(net->forward(batch.data), batch.target), opt);
        opt.step();
      }
    }
  });
}

/// The input's embedding is the output's weight.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    embed = register_module("embed", torch::nn::Embedding(6, 8));
    hidden = register_module("hidden", torch::nn::Linear(8 + 3, 8));
    out = register_parameter("out", embed->weight);
  }
  Tensor forward(const Tensor& symbols, const Tensor& kinds) {
    const auto kind = torch::one_hot(kinds, 3).to(embed->weight.dtype());
    return torch::linear(torch::tanh(hidden(torch::cat({embed(symbols), kind}, 1))), out);
  }
  torch::nn::Embedding embed{nullptr};
  torch::nn::Linear hidden{nullptr};
  Tensor out;
};
TORCH_MODULE(Tied);

/// Integers in. torch's own optimizers step a parameter as often as it is listed, amp's once: at O0 runs differ.
TEST_F(DataPrograms, TiedEmbeddingAndOneHot) {
  const auto program = [](auto& amp) {
    Tied model;
    torch::optim::Adagrad optimizer(model->parameters(), torch::optim::AdagradOptions(0.1).eps(1e-4));
    auto [net, opt] = amp.initialize(model, optimizer);
    const auto symbols = torch::randint(6, {32}), kinds = torch::randint(3, {32});
    const auto next = (symbols + kinds) % 6;
    auto& network = net;
    train(amp, opt, 60, [&] {
      const auto logits = network->forward(symbols, kinds);
      amp.output(logits);
      return torch::cross_entropy_loss(logits, next);
    });
  };
  expect_trains_as_without_amp(program, kAllLevels, /*exact=*/false);
}

/// Two heads; the second returns a result only on request.
struct HeadsImpl : torch::nn::Module {
  HeadsImpl() {
    body = register_module("body", Layers(4, 16, 8));
    kind = register_module("kind", torch::nn::Linear(8, 2));
    size = register_module("size", torch::nn::Linear(8, 1));
  }
  std::tuple<Tensor, std::optional<Tensor>> forward(const Tensor& x, const std::optional<Tensor>& noise = std::nullopt,
                                                    bool with_size = true) {
    const auto features = torch::relu(body(noise ? x + *noise : x));
    return {kind(features), with_size ? std::optional<Tensor>(size(features)) : std::nullopt};
  }
  Layers body{nullptr};
  torch::nn::Linear kind{nullptr}, size{nullptr};
};
TORCH_MODULE(Heads);

TEST_F(DataPrograms, TwoTasksWithTuplesAndOptionals) {
  expect_trains_as_without_amp([](auto& amp) {
    Heads model;
    torch::optim::Adam optimizer(model->parameters(), adam(0.02));
    auto [net, opt] = amp.initialize(model, optimizer, amp::InitializeOptions().num_losses(2));
    const auto x = torch::randn({32, 4});
    const auto kinds = (x.select(1, 0) > x.select(1, 1)).to(torch::kLong);
    const auto sizes = x.norm(2, 1, true);
    for (int step = 0; step < 40; ++step) {
      opt.zero_grad();
      const auto [logits, size] = net->forward(x, torch::randn_like(x) * 0.1);
      amp.output(logits);
      amp.output(*size);
      const auto kind_loss = torch::cross_entropy_loss(logits, kinds), size_loss = torch::mse_loss(*size, sizes);
      amp.log(kind_loss + size_loss);
      {
        auto scaled_loss = amp.scale_loss(kind_loss, opt, 0);
        scaled_loss.backward({}, /*retain_graph=*/true);
      }
      amp.backward(size_loss, opt, 1);
      opt.step();
      EXPECT_FALSE(std::get<1>(net->forward(x, std::nullopt, false)).has_value());
    }
  });
}

/// A custom batch type with a cast method.
struct Batch {
  Tensor points;
  Tensor kinds;
  Batch to(torch::ScalarType type) const { return {points.to(type), kinds}; }
};

struct BatchModelImpl : torch::nn::Module {
  BatchModelImpl() {
    embed = register_module("embed", torch::nn::Embedding(3, 4));
    layers = register_module("layers", Layers(4, 16, 2));
  }
  std::map<std::string, Tensor> forward(const Batch& batch) {
    return {{"prediction", layers(batch.points + embed(batch.kinds))}, {"kinds", batch.kinds}};
  }
  torch::nn::Embedding embed{nullptr};
  Layers layers{nullptr};
};
TORCH_MODULE(BatchModel);

TEST_F(DataPrograms, StructsInAndMapsOut) {
  expect_trains_as_without_amp([](auto& amp) {
    BatchModel model;
    torch::optim::Adam optimizer(model->parameters(), adam(0.03));
    auto [net, opt] = amp.initialize(model, optimizer);
    const Batch batch{torch::randn({32, 4}), torch::randint(3, {32})};
    const auto y = torch::stack({batch.points.select(1, 0), batch.kinds.to(torch::kFloat)}, 1);
    auto& network = net;
    train(amp, opt, 40, [&] {
      auto outputs = network->forward(batch);
      EXPECT_EQ(outputs.at("kinds").scalar_type(), torch::kLong);
      amp.output(outputs.at("prediction"));
      return torch::mse_loss(outputs.at("prediction"), y);
    });
  });
}

/// Doubles, integers and complex numbers on their way through; the float it makes of them meets the weights.
struct SpectrumImpl : torch::nn::Module {
  SpectrumImpl() {
    window = register_buffer("window", torch::hann_window(8, torch::kDouble));
    layers = register_module("layers", Layers(10, 16, 2));
  }
  std::pair<Tensor, Tensor> forward(const Tensor& signal, const Tensor& spectrum) {
    const auto own = torch::fft::rfft(signal.to(torch::kFloat) * window.to(torch::kFloat));
    const auto power = (own * spectrum).abs();
    return {layers(torch::cat({torch::real(own), power}, 1).to(layers->first->weight.dtype())), own};
  }
  Tensor window;
  Layers layers{nullptr};
};
TORCH_MODULE(Spectrum);

TEST_F(DataPrograms, DoublesAndComplexNumbersPassingThrough) {
  expect_trains_as_without_amp([](auto& amp) {
    Spectrum model;
    torch::optim::Adam optimizer(model->parameters(), adam(0.03));
    auto [net, opt] = amp.initialize(model, optimizer);
    const auto signal = torch::randn({32, 8}, torch::kDouble);
    const auto filter = torch::fft::rfft(torch::randn({8}));
    const auto y = torch::stack({signal.select(1, 3), signal.mean(1)}, 1).to(torch::kFloat);
    auto& network = net;
    train(amp, opt, 60, [&] {
      const auto [prediction, spectrum] = network->forward(signal, filter);
      amp.output(prediction);
      EXPECT_EQ(spectrum.scalar_type(), torch::kComplexFloat);
      return torch::mse_loss(prediction, y);
    });
  });
}

/// Steps of a schedule, once as integers and once in FP32, and the schedule in a buffer.
struct NoiseLevelsImpl : torch::nn::Module {
  NoiseLevelsImpl() {
    schedule = register_buffer("schedule", torch::linspace(0.9999, 0.98, 3000));
    fc = register_module("fc", torch::nn::Linear(1, 1));
  }
  std::tuple<Tensor, Tensor, Tensor> forward(const Tensor& steps, const Tensor& steps_in_float) {
    const auto levels = schedule.index_select(0, steps);
    return {levels, steps_in_float, fc(levels.unsqueeze(1))};
  }
  Tensor schedule;
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(NoiseLevels);

/// In both 16-bit types 2049 is rounded to 2048.
TEST_F(DataPrograms, IntegersAndANamedBufferStayExactWhereFloatInputsAreRounded) {
  for (const char* level : {"O2", "O3", "O5", "O6"}) {
    SCOPED_TRACE(level);
    NoiseLevels model;
    const auto schedule = model->schedule.clone();
    auto net = amp::initialize(model, level, quiet().float32_modules(std::vector<std::string>{"schedule"}));
    const auto steps = torch::full({1}, 2049, torch::kLong);
    const auto [levels, steps_in_float, output] = net->forward(steps, steps.to(torch::kFloat));
    EXPECT_EQ(levels.item<float>(), schedule[2049].item<float>());
    EXPECT_EQ(steps_in_float.item<float>(), 2048);
    EXPECT_EQ(net->fc->weight.scalar_type(), level < std::string("O4") ? torch::kHalf : torch::kBFloat16);
    EXPECT_EQ(output.scalar_type(), torch::kFloat);
  }
}

}  // namespace
}  // namespace apex::test::programs
