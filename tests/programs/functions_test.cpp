// Custom functions: with a custom backward, or registered as operators.
#include "tests/programs/program.h"

namespace apex::test::programs {
namespace {

class FunctionPrograms : public AmpTest {};

struct Parabolas {
  Tensor x = torch::randn({32, 3});
  Tensor y = (x * x).sum(1, true);
};

/// x * x, and its derivative by hand.
struct Square : torch::autograd::Function<Square> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x) {
    ctx->save_for_backward({x});
    return x * x;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx, torch::autograd::variable_list grads) {
    return {grads[0] * 2 * ctx->get_saved_variables()[0]};
  }
};

struct SquaresImpl : torch::nn::Module {
  SquaresImpl() {
    first = register_module("first", torch::nn::Linear(3, 8));
    second = register_module("second", torch::nn::Linear(8, 1));
  }
  Tensor forward(const Tensor& x) { return second(Square::apply(first(x))); }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(Squares);

TEST_F(FunctionPrograms, ElementwiseFunctionWithACustomBackward) {
  expect_trains_as_without_amp([](auto& amp) {
    const Parabolas data;
    Squares model;
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.005).momentum(0.9));
    auto [net, opt] = amp.initialize(model, optimizer);
    auto& network = net;
    train(amp, opt, 60, [&] {
      const auto output = network->forward(data.x);
      amp.output(output);
      return torch::mse_loss(output, data.y);
    });
  });
}

Tensor soft_sign(const Tensor& x) { return x / (1 + x.abs()); }

TORCH_LIBRARY(apex_test_programs, library) { library.def("soft_sign(Tensor x) -> Tensor", soft_sign); }

struct OperatorsImpl : torch::nn::Module {
  OperatorsImpl() {
    first = register_module("first", torch::nn::Linear(3, 16));
    second = register_module("second", torch::nn::Linear(16, 1));
  }
  Tensor forward(const Tensor& x) {
    static const auto op =
        c10::Dispatcher::singleton().findSchemaOrThrow("apex_test_programs::soft_sign", "").typed<Tensor(const Tensor&)>();
    return second(op.call(first(x)));
  }
  torch::nn::Linear first{nullptr}, second{nullptr};
};
TORCH_MODULE(Operators);

TEST_F(FunctionPrograms, CustomOperator) {
  expect_trains_as_without_amp([](auto& amp) {
    const Parabolas data;
    Operators model;
    torch::optim::Adam optimizer(model->parameters(), adam(0.03));
    auto [net, opt] = amp.initialize(model, optimizer);
    auto& network = net;
    train(amp, opt, 60, [&] { return torch::mse_loss(network->forward(data.x), data.y); });
  });
}

}  // namespace
}  // namespace apex::test::programs
