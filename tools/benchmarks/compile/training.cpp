// A user's file that `tools/bench compile` compiles with and without apex_cpp. It belongs to no program.
#ifdef WITH_AMP
#include <apex_cpp/amp.h>
#endif
#include <torch/torch.h>

struct NetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return second(torch::relu(first(x))); }

  torch::nn::Linear first = register_module("first", torch::nn::Linear(8, 8));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(8, 2));
};
TORCH_MODULE(Net);

void train(const std::vector<torch::Tensor>& inputs, const torch::Tensor& target) {
  Net model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
#ifdef WITH_AMP
  auto [net, opt] = apex::amp::initialize(model, optimizer, "O2");
#else
  auto& net = model;
  auto& opt = optimizer;
#endif
  for (const auto& input : inputs) {
    opt.zero_grad();
    auto loss = torch::mse_loss(net->forward(input), target);
#ifdef WITH_AMP
    {
      auto scaled_loss = apex::amp::scale_loss(loss, opt);
      scaled_loss.backward();
    }
#else
    loss.backward();
#endif
    opt.step();
  }
}
