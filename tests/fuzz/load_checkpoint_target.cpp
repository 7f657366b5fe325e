// Loads checkpoints into models and optimizers and trains with them.
#include <apex_cpp/amp.h>
#include <c10/util/Exception.h>
#include <torch/torch.h>

#include <cstdlib>

#include "tests/checkpoint/memory_file.h"
#include "tests/fuzz/mutate_safetensors.h"

namespace apex::fuzz {
namespace {

struct NetImpl : torch::nn::Module {
  NetImpl() {
    register_module("fc", fc);
    register_module("bn", bn);
  }
  torch::Tensor forward(torch::Tensor x) { return bn(fc(x)); }
  torch::nn::Linear fc{2, 2};
  torch::nn::BatchNorm1d bn{2};
};
TORCH_MODULE(Net);

/// A model and an optimizer at O2. The corpus has a checkpoint of each such run, saved after a step.
template <class Optimizer, class Options>
class Run {
 public:
  explicit Run(const Options& options) : Run(Net(), options) {}

  void take(const std::string& path) {
    const auto before = weights();
    try {
      amp::load_checkpoint(path, net_, optimizer_);
    } catch (const c10::Error&) {
      if (!same(before, weights())) std::abort();  // an error must leave everything unchanged
      return;
    }
    train();
    ++inputs_read;
  }

 private:
  using Handles = decltype(amp::initialize(std::declval<Net&>(), std::declval<Optimizer&>(), "O2"));
  Run(Net net, const Options& options) : Run(net, Optimizer(net->parameters(), options)) {}
  Run(Net net, Optimizer&& optimizer)
      : handles_(amp::initialize(net, optimizer, "O2", amp::InitializeOptions().verbosity(0))) {}

  void train() {
    optimizer_.zero_grad();
    const auto loss = net_->forward(torch::ones({3, 2})).sum();
    {
      auto scaled = amp::scale_loss(loss, optimizer_);
      scaled.backward();
    }
    optimizer_.step();
  }

  std::vector<torch::Tensor> weights() {
    std::vector<torch::Tensor> copies;
    for (const auto& tensor : net_->parameters()) copies.push_back(tensor.detach().clone());
    for (const auto& tensor : net_->buffers()) copies.push_back(tensor.clone());
    for (const auto& tensor : amp::master_params(optimizer_)) copies.push_back(tensor.detach().clone());
    return copies;
  }
  static bool same(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                      [](const auto& x, const auto& y) { return x.nan_to_num().equal(y.nan_to_num()); });
  }

  Handles handles_;
  std::tuple_element_t<0, Handles>& net_ = std::get<0>(handles_);
  std::tuple_element_t<1, Handles>& optimizer_ = std::get<1>(handles_);
};

auto& adam() {
  static Run<torch::optim::Adam, torch::optim::AdamOptions> run(0.1);
  return run;
}
auto& sgd() {
  static Run<torch::optim::SGD, torch::optim::SGDOptions> run(torch::optim::SGDOptions(0.1).momentum(0.9));
  return run;
}

}  // namespace

// Covers the file's text, the parsed description, tensors, and copies of the current state for restoring.
size_t most_memory(size_t input_bytes) { return (1 << 20) + 256 * input_bytes; }

std::string mutate(std::string input, const std::vector<std::string>& corpus, Random& random) {
  return mutate_safetensors(std::move(input), corpus, random);
}

}  // namespace apex::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t bytes) {
  const apex::test::MemoryFile file(data, bytes);
  apex::fuzz::adam().take(file.path());
  apex::fuzz::sgd().take(file.path());
  return 0;
}
