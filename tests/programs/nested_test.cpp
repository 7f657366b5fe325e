// Models inside models, modules around models, and functions that take them.
#include "tests/programs/program.h"

namespace apex::test::programs {
namespace {

class NestedPrograms : public AmpTest {};

struct Waves {
  Tensor x = torch::rand({32, 1}) * 4 - 2;
  Tensor y = torch::cat({torch::sin(2 * x), x.abs()}, 1);
};

TEST_F(NestedPrograms, SequentialAsTheWholeModel) {
  expect_trains_as_without_amp([](auto& amp) {
    const Waves waves;
    torch::nn::Sequential model(torch::nn::Linear(1, 16), torch::nn::Tanh(), Layers(16, 16, 2));
    torch::optim::Adam optimizer(model->parameters(), adam(0.03));
    auto [net, opt] = amp.initialize(model, optimizer);
    auto& network = net;
    train(amp, opt, 50, [&] {
      const Tensor output = network->forward(waves.x);
      amp.output(output);
      return torch::mse_loss(output, waves.y);
    });
  });
}

/// Blocks in a ModuleList, heads in a ModuleDict, and one that is known only as an AnyModule.
struct BlocksImpl : torch::nn::Module {
  BlocksImpl() {
    blocks = register_module("blocks", torch::nn::ModuleList(Layers(1, 8, 16), Layers(16, 8, 16)));
    using Named = std::pair<std::string, std::shared_ptr<torch::nn::Module>>;
    heads = register_module("heads", torch::nn::ModuleDict(std::vector<Named>{{"waves", torch::nn::Linear(16, 2).ptr()}}));
    normalize = torch::nn::AnyModule(torch::nn::BatchNorm1d(16));
    register_module("normalize", normalize.ptr());
  }
  Tensor forward(Tensor x, const std::string& head) {
    for (const auto& block : *blocks) x = torch::tanh(block->as<Layers>()->forward(x));
    x = normalize.forward(x);
    return heads[head]->as<torch::nn::Linear>()->forward(x);
  }
  torch::nn::ModuleList blocks{nullptr};
  torch::nn::ModuleDict heads{nullptr};
  torch::nn::AnyModule normalize;
};
TORCH_MODULE(Blocks);

TEST_F(NestedPrograms, ListsDictionariesAndAnyModules) {
  expect_trains_as_without_amp([](auto& amp) {
    const Waves waves;
    Blocks model;
    torch::optim::Adam optimizer(model->parameters(), adam(0.02));
    auto [net, opt] = amp.initialize(model, optimizer);
    auto& network = net;
    train(amp, opt, 50, [&] {
      const auto output = network->forward(waves.x, "waves");
      amp.output(output);
      return torch::mse_loss(output, waves.y);
    });
  });
}

/// A program's own base class for training: it keeps model and optimizer, and knows nothing of amp but the three lines.
template <class Net, class Optimizer>
class Trainer {
 public:
  Trainer(Net net, Optimizer opt) : net_(std::move(net)), opt_(std::move(opt)) {}
  template <class Amp>
  void step(Amp& amp, const Waves& waves) {
    opt_.zero_grad();
    const auto loss = torch::mse_loss(net_->forward(waves.x), waves.y);
    amp.log(loss);
    amp.backward(loss, opt_);
    opt_.step();
  }

 private:
  Net net_;
  Optimizer opt_;
};

TEST_F(NestedPrograms, HandlesKeptByAnObject) {
  expect_trains_as_without_amp([](auto& amp) {
    const Waves waves;
    Layers model(1, 16, 2);
    torch::optim::Adam optimizer(model->parameters(), adam(0.03));
    auto handles = amp.initialize(model, optimizer);
    using Optimizer = std::decay_t<decltype(handles.second)>;
    Trainer<std::decay_t<decltype(handles.first)>, Optimizer> trainer(handles.first, std::move(handles.second));
    for (int step = 0; step < 50; ++step) trainer.step(amp, waves);
  });
}

/// Asks the model that it is given for its loss; the model is not its child.
class LossOfModel {
 public:
  explicit LossOfModel(std::function<Tensor(const Tensor&)> forward) : forward_(std::move(forward)) {}
  Tensor operator()(const Waves& waves) const { return torch::mse_loss(forward_(waves.x), waves.y); }

 private:
  std::function<Tensor(const Tensor&)> forward_;
};

TEST_F(NestedPrograms, ModelBehindAStdFunction) {
  expect_trains_as_without_amp([](auto& amp) {
    const Waves waves;
    Layers model(1, 16, 2);
    torch::optim::Adam optimizer(model->parameters(), adam(0.03));
    auto [net, opt] = amp.initialize(model, optimizer);
    const LossOfModel loss_of([network = net](const Tensor& x) mutable { return network(x); });
    train(amp, opt, 50, [&] { return loss_of(waves); });
  });
}

/// The wrapper is the model: the wrapped module is trained through it.
struct WithScaleImpl : torch::nn::Module {
  explicit WithScaleImpl(Layers wrapped) : inner(register_module("inner", std::move(wrapped))) {
    scale = register_parameter("scale", torch::ones({2}));
  }
  Tensor forward(const Tensor& x) { return inner->forward(x) * scale; }
  Layers inner;
  Tensor scale;
};
TORCH_MODULE(WithScale);

TEST_F(NestedPrograms, WrapperAroundAModel) {
  expect_trains_as_without_amp([](auto& amp) {
    const Waves waves;
    Layers inner(1, 16, 2);
    WithScale model(inner);
    torch::optim::Adam optimizer(model->parameters(), adam(0.03));
    auto [net, opt] = amp.initialize(model, optimizer);
    auto& network = net;
    train(amp, opt, 50, [&] {
      const auto output = network(waves.x);
      amp.output(output);
      return torch::mse_loss(output, waves.y);
    });
    EXPECT_TRUE(inner->first->weight.equal(net->inner->first->weight));
  });
}

/// Several models in a vector, one optimizer over all of them.
TEST_F(NestedPrograms, EnsembleInAVector) {
  expect_trains_as_without_amp([](auto& amp) {
    const Waves waves;
    std::vector<Layers> models = {Layers(1, 8, 2), Layers(1, 8, 2), Layers(1, 8, 2)};
    std::vector<Tensor> parameters;
    for (auto& model : models) {
      for (auto& p : model->parameters()) parameters.push_back(p);
    }
    torch::optim::Adam optimizer(parameters, adam(0.03));
    auto [nets, opt] = amp.initialize(models, optimizer);
    auto& networks = nets;
    train(amp, opt, 50, [&] {
      Tensor mean = torch::zeros_like(waves.y);
      for (auto& net : networks) mean = mean + net->forward(waves.x) / 3;
      return torch::mse_loss(mean, waves.y);
    });
  });
}

/// A plain struct on the stack, no holder.
struct OnTheStack : torch::nn::Module {
  OnTheStack() : fc1(register_module("fc1", torch::nn::Linear(1, 16))), fc2(register_module("fc2", torch::nn::Linear(16, 2))) {}
  Tensor forward(Tensor x) { return fc2->forward(torch::tanh(fc1->forward(x))); }
  torch::nn::Linear fc1, fc2;
};

TEST_F(NestedPrograms, SharedPtrToAPlainStruct) {
  expect_trains_as_without_amp([](auto& amp) {
    const Waves waves;
    auto model = std::make_shared<OnTheStack>();
    torch::optim::Adam optimizer(model->parameters(), adam(0.03));
    auto [net, opt] = amp.initialize(model, optimizer);
    auto& network = net;
    train(amp, opt, 50, [&] { return torch::mse_loss(network->forward(waves.x), waves.y); });
  });
}

}  // namespace
}  // namespace apex::test::programs
