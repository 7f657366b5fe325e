// Models held through a base class.
#include "tests/programs/program.h"

namespace apex::test::programs {
namespace {

class HierarchyPrograms : public AmpTest {};

struct Hills {
  Tensor x = torch::randn({32, 2});
  Tensor y = (-(x * x).sum(1, true)).exp();
  template <class Net>
  Tensor loss(Net& net) const {
    return torch::mse_loss(net->forward(x), y);
  }
};

/// Says only what all models can do.
struct AbstractImpl : torch::nn::Module {
  virtual Tensor forward(const Tensor& x) = 0;
};

struct ConcreteImpl : AbstractImpl {
  ConcreteImpl() { layers = register_module("layers", Layers(2, 16, 1)); }
  Tensor forward(const Tensor& x) override { return torch::sigmoid(layers(x)); }
  Layers layers{nullptr};
};

/// Has a forward that derived classes replace; its own learns nothing.
struct BaseImpl : torch::nn::Module {
  BaseImpl() { layers = register_module("layers", Layers(2, 16, 1)); }
  virtual Tensor forward(const Tensor& x) { return layers(x) * 0 + 5; }
  Layers layers{nullptr};
};
TORCH_MODULE(Base);

struct DerivedImpl : BaseImpl {
  Tensor forward(const Tensor& x) override { return torch::sigmoid(layers(x)); }
};
TORCH_MODULE(Derived);

template <class Amp, class Model>
void fit_hills(Amp& amp, Model& model) {
  const Hills hills;
  torch::optim::Adam optimizer(model->parameters(), adam(0.03));
  auto [net, opt] = amp.initialize(model, optimizer);
  auto& network = net;
  train(amp, opt, 50, [&] { return hills.loss(network); });
}

TEST_F(HierarchyPrograms, SharedPtrToAnAbstractBase) {
  expect_trains_as_without_amp([](auto& amp) {
    std::shared_ptr<AbstractImpl> model = std::make_shared<ConcreteImpl>();
    fit_hills(amp, model);
  });
}

TEST_F(HierarchyPrograms, SharedPtrToABaseWithItsOwnForward) {
  expect_trains_as_without_amp([](auto& amp) {
    std::shared_ptr<BaseImpl> model = std::make_shared<DerivedImpl>();
    fit_hills(amp, model);
  });
}

TEST_F(HierarchyPrograms, HolderOfABase) {
  expect_trains_as_without_amp([](auto& amp) {
    Base model(std::shared_ptr<BaseImpl>(std::make_shared<DerivedImpl>()));
    fit_hills(amp, model);
  });
}

TEST_F(HierarchyPrograms, HolderOfTheDerivedClass) {
  expect_trains_as_without_amp([](auto& amp) {
    Derived model;
    fit_hills(amp, model);
  });
}

/// The base has the forward, derived classes the part that differs.
struct TemplateImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return torch::sigmoid(body(x)); }
  virtual Tensor body(const Tensor& x) = 0;
};
struct FilledImpl : TemplateImpl {
  FilledImpl() { layers = register_module("layers", Layers(2, 16, 1)); }
  Tensor body(const Tensor& x) override { return layers(x); }
  Layers layers{nullptr};
};
TORCH_MODULE(Filled);

TEST_F(HierarchyPrograms, ForwardInTheBaseCallsTheDerivedClass) {
  expect_trains_as_without_amp([](auto& amp) {
    Filled model;
    fit_hills(amp, model);
  });
}

}  // namespace
}  // namespace apex::test::programs
