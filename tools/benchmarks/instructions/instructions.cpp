// Training steps of a small network, whose instructions tools/instructions.py counts: there the calls of amp and of the
// optimizer cost most.
#include <apex_cpp/amp.h>
#include <apex_cpp/optimizers.h>
#include <torch/torch.h>

#include <functional>
#include <iostream>
#include <string>
#include <vector>

namespace {

constexpr int kSteps = 10, kWarmUp = 5;

struct NetImpl : torch::nn::Module {
  NetImpl() {
    first = register_module("first", torch::nn::Linear(16, 32));
    norm = register_module("norm", torch::nn::BatchNorm1d(32));
    last = register_module("last", torch::nn::Linear(32, 8));
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(norm(first(x)).relu()); }
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Net);

torch::Tensor loss_of(torch::Tensor output) { return output.to(torch::kFloat).pow(2).mean(); }

}  // namespace

// valgrind finds it by its name.
extern "C" [[gnu::noinline, gnu::visibility("default")]] void counted_steps(const std::function<void()>& step) {
  for (int i = 0; i < kSteps; ++i) step();
}

namespace {

void count(const std::string& name, const std::function<void()>& step) {
  for (int i = 0; i < kWarmUp; ++i) step();
  std::cout << name << "," << kSteps << std::endl;
  counted_steps(step);
}

torch::Tensor input() {
  torch::manual_seed(1);
  return torch::randn({8, 16});
}

template <class Optimizer, class Options>
void count_plain(const std::string& name, const Options& options) {
  const torch::Tensor x = input();
  Net net;
  Optimizer optimizer(net->parameters(), options);
  count("plain " + name, [&] {
    optimizer.zero_grad();
    loss_of(net->forward(x)).backward();
    optimizer.step();
  });
}

template <class Optimizer, class Options>
void count_amp(const std::string& level, const std::string& name, const Options& options) {
  namespace amp = apex::amp;
  const torch::Tensor x = input();
  Net model;
  Optimizer optimizer(model->parameters(), options);
  auto settings = amp::InitializeOptions().verbosity(0);
  if (level == "O6")
    settings.bfloat16_modules(std::vector<std::string>());  // the first and the last layer are all that there are
  auto handles = amp::initialize(model, optimizer, level, settings);
  auto& net = std::get<0>(handles);
  auto& opt = std::get<1>(handles);
  count(level + " " + name, [&] {
    opt.zero_grad();
    { amp::scale_loss(loss_of(net->forward(x)), opt).backward(); }
    opt.step();
  });
}

}  // namespace

int main() {
  const auto sgd = torch::optim::SGDOptions(0.01).momentum(0.9);
  const auto adam = torch::optim::AdamWOptions(0.001);
  const auto fused_adam = apex::optimizers::FusedAdamOptions(0.001);
  count_plain<torch::optim::SGD>("SGD", sgd);
  count_plain<torch::optim::AdamW>("AdamW", adam);
  for (const char* level : {"O0", "O1", "O2", "O3", "O4", "O5", "O6"}) count_amp<torch::optim::SGD>(level, "SGD", sgd);
  for (const char* level : {"O0", "O1", "O2", "O5", "O6"})
    count_amp<apex::optimizers::FusedAdam>(level, "FusedAdam", fused_adam);
}
