// Models passed to functions of the user's own types, and lambdas that capture the module.
#include "tests/programs/program.h"

namespace apex::test::programs {
namespace {

class HandedPrograms : public AmpTest {};

struct Ridges {
  Tensor x = torch::randn({32, 2});
  Tensor y = torch::sin(2 * x.sum(1, true));
};

template <class Amp, class Optimizer>
void fit_reference(Amp& amp, Layers& model, Optimizer& opt, const Ridges& data) {
  model->train();
  train(amp, opt, 50, [&] { return torch::mse_loss(model->forward(data.x), data.y); });
}

template <class Amp, class Optimizer>
void fit_value(Amp& amp, Layers model, Optimizer& opt, const Ridges& data) {
  train(amp, opt, 50, [&] { return torch::mse_loss(model(data.x), data.y); });
}

template <class Amp, class Optimizer>
void fit_pointer(Amp& amp, const std::shared_ptr<LayersImpl>& model, Optimizer& opt, const Ridges& data) {
  train(amp, opt, 50, [&] { return torch::mse_loss(model->forward(data.x), data.y); });
}

template <class Amp, class Fit>
void hand_over(Amp& amp, const Fit& fit) {
  const Ridges data;
  Layers model(2, 16, 1);
  torch::optim::Adam optimizer(model->parameters(), adam(0.03));
  auto [net, opt] = amp.initialize(model, optimizer);
  fit(amp, model, net, opt, data);
}

TEST_F(HandedPrograms, ByReference) {
  expect_trains_as_without_amp([](auto& run) {
    hand_over(run, [](auto& amp, auto&, auto& net, auto& opt, auto& data) { fit_reference(amp, net, opt, data); });
  });
}

TEST_F(HandedPrograms, ByValue) {
  expect_trains_as_without_amp([](auto& run) {
    hand_over(run, [](auto& amp, auto&, auto& net, auto& opt, auto& data) { fit_value(amp, net, opt, data); });
  });
}

TEST_F(HandedPrograms, ByPointer) {
  expect_trains_as_without_amp([](auto& run) {
    hand_over(run, [](auto& amp, auto&, auto& net, auto& opt, auto& data) { fit_pointer(amp, net.ptr(), opt, data); });
  });
}

TEST_F(HandedPrograms, TheOriginalByReference) {
  expect_trains_as_without_amp([](auto& run) {
    hand_over(run, [](auto& amp, auto& model, auto&, auto& opt, auto& data) { fit_reference(amp, model, opt, data); });
  });
}

/// A lambda in a Sequential that reads the module's parameters.
struct GatedImpl : torch::nn::Module {
  GatedImpl() {
    gate = register_parameter("gate", torch::randn({32}));
    const auto activation = [this](const Tensor& x) {
      ++calls;
      return torch::tanh(2 * x) * gate * slope;
    };
    layers = register_module(
        "layers", torch::nn::Sequential(torch::nn::Linear(2, 32), torch::nn::Functional(activation), torch::nn::Linear(32, 1)));
  }
  Tensor forward(const Tensor& x) { return layers->forward(x); }
  Tensor gate;
  torch::nn::Sequential layers{nullptr};
  double slope = 0;
  int calls = 0;
};
TORCH_MODULE(Gated);

TEST_F(HandedPrograms, LambdaThatCapturesThisAfterTheOriginalIsDestroyed) {
  expect_trains_as_without_amp([](auto& amp) {
    const Ridges data;
    std::optional<Gated> model(std::in_place);
    torch::optim::Adam optimizer((*model)->parameters(), adam(0.03));
    (*model)->slope = 1;
    auto [net, opt] = amp.initialize(*model, optimizer);
    auto kept = net;
    model.reset();
    train(amp, opt, 80, [&] { return torch::mse_loss(kept->forward(data.x), data.y); });
  });
}

/// One whose plain members are read and written by the lambda and by the program: initialize patches it where it is.
struct CountedImpl : GatedImpl {};
AMP_MODULE(Counted);

TEST_F(HandedPrograms, LambdaThatSharesPlainMembersWithTheProgram) {
  expect_trains_as_without_amp([](auto& amp) {
    const Ridges data;
    Counted model;
    torch::optim::Adam optimizer(model->parameters(), adam(0.03));
    auto [net, opt] = amp.initialize(model, optimizer);
    net->slope = 1;
    auto& network = net;
    train(amp, opt, 80, [&] { return torch::mse_loss(network->forward(data.x), data.y); });
    EXPECT_EQ(net->calls, 80);
    EXPECT_EQ(model->calls, 80);
  });
}

}  // namespace
}  // namespace apex::test::programs
