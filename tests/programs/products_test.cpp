// Matrix products with a custom backward, or differentiated by TorchScript.
#include <torch/script.h>

#include "tests/programs/program.h"

namespace apex::test::programs {
namespace {

class ProductPrograms : public AmpTest {};

struct Bowls {
  Tensor x = torch::randn({32, 3});
  Tensor y = (x * x).sum(1, true);
};

/// x W^T with both products of its backward by hand.
struct Product : torch::autograd::Function<Product> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, const Tensor& weight) {
    ctx->save_for_backward({x, weight});
    return x.mm(weight.t());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx, torch::autograd::variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    return {grads[0].mm(saved[1]), grads[0].t().mm(saved[0])};
  }
};

struct ProductsImpl : torch::nn::Module {
  ProductsImpl() {
    first = register_module("first", torch::nn::Linear(3, 16));
    weight = register_parameter("weight", torch::randn({1, 16}) / 4);
  }
  Tensor forward(const Tensor& x) { return Product::apply(torch::relu(first(x)), weight); }
  torch::nn::Linear first{nullptr};
  Tensor weight;
};
TORCH_MODULE(Products);

TEST_F(ProductPrograms, ProductWithACustomBackward) {
  expect_trains_as_without_amp([](auto& amp) {
    const Bowls data;
    Products model;
    torch::optim::Adam optimizer(model->parameters(), adam(0.05));
    auto [net, opt] = amp.initialize(model, optimizer);
    auto& network = net;
    train(amp, opt, 60, [&] { return torch::mse_loss(network->forward(data.x), data.y); });
  });
}

/// A function that TorchScript compiles and differentiates.
struct ScriptedImpl : torch::nn::Module {
  ScriptedImpl() {
    first = register_module("first", torch::nn::Linear(3, 16));
    weight = register_parameter("weight", torch::randn({1, 16}) / 4);
    unit = torch::jit::compile(R"(
      def head(x, weight):
        return torch.mm(torch.tanh(x) * 2.0, weight.t())
    )");
  }
  Tensor forward(const Tensor& x) { return unit->run_method("head", first(x), weight).toTensor(); }
  torch::nn::Linear first{nullptr};
  Tensor weight;
  std::shared_ptr<torch::jit::CompilationUnit> unit;
};
TORCH_MODULE(Scripted);

TEST_F(ProductPrograms, PartInTorchScript) {
  expect_trains_as_without_amp([](auto& amp) {
    const Bowls data;
    Scripted model;
    torch::optim::Adam optimizer(model->parameters(), adam(0.05));
    auto [net, opt] = amp.initialize(model, optimizer);
    auto& network = net;
    train(amp, opt, 60, [&] { return torch::mse_loss(network->forward(data.x), data.y); });
  });
}

/// The part between is computed again in the backward pass rather than kept.
struct Recomputed : torch::autograd::Function<Recomputed> {
  static Tensor forward(torch::autograd::AutogradContext* ctx, const Tensor& x, Layers part) {
    ctx->save_for_backward({x});
    ctx->saved_data["part"] = reinterpret_cast<int64_t>(part.get());
    const torch::NoGradGuard no_grad;
    return part->forward(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx, torch::autograd::variable_list grads) {
    auto* part = reinterpret_cast<LayersImpl*>(ctx->saved_data["part"].toInt());
    const torch::AutoGradMode grad_mode(true);
    auto x = ctx->get_saved_variables()[0].detach().requires_grad_();
    torch::autograd::backward({part->forward(x)}, {grads[0]});
    return {x.grad(), Tensor()};
  }
};

struct CheckpointedImpl : torch::nn::Module {
  CheckpointedImpl() {
    first = register_module("first", torch::nn::Linear(3, 16));
    part = register_module("part", Layers(16, 16, 8));
    last = register_module("last", torch::nn::Linear(8, 1));
  }
  Tensor forward(const Tensor& x) { return last(Recomputed::apply(torch::tanh(first(x)), part)); }
  torch::nn::Linear first{nullptr}, last{nullptr};
  Layers part{nullptr};
};
TORCH_MODULE(Checkpointed);

TEST_F(ProductPrograms, ActivationCheckpointing) {
  expect_trains_as_without_amp([](auto& amp) {
    const Bowls data;
    Checkpointed model;
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.003).momentum(0.9));
    auto [net, opt] = amp.initialize(model, optimizer);
    auto& network = net;
    train(amp, opt, 60, [&] { return torch::mse_loss(network->forward(data.x), data.y); });
  });
}

}  // namespace
}  // namespace apex::test::programs
