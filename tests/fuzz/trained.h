#pragma once
// A model and an optimizer that a fuzz target reads states into, and trains.

#include <apex_cpp/amp.h>
#include <c10/util/Exception.h>
#include <torch/torch.h>

#include <cstdlib>
#include <sstream>
#include <string>

#include "tests/fuzz/target.h"

namespace apex::fuzz {

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

/// At O2. The corpus of a target has a file of each such run, saved after a step.
template <class Optimizer, class Options>
class Trained {
 public:
  explicit Trained(const Options& options) : Trained(Net(), options) {}

  /// Calls `load(model, optimizer)` and trains a step. An error must leave everything unchanged.
  template <class Load>
  void take(const Load& load) {
    const std::string before = state();
    try {
      load(net_, optimizer_);
    } catch (const c10::Error&) {
      if (state() != before) std::abort();
      return;
    }
    train();
    ++inputs_read;
  }

  void train() {
    optimizer_.zero_grad();
    const auto loss = net_->forward(torch::ones({3, 2})).sum();
    {
      auto scaled = amp::scale_loss(loss, optimizer_);
      scaled.backward();
    }
    optimizer_.step();
  }

 private:
  using Handles = decltype(amp::initialize(std::declval<Net&>(), std::declval<Optimizer&>(), "O2"));
  Trained(Net net, const Options& options) : Trained(net, Optimizer(net->parameters(), options)) {}
  Trained(Net net, Optimizer&& optimizer)
      : handles_(amp::initialize(net, optimizer, "O2", amp::InitializeOptions().verbosity(0))) {}

  /// The bits of the weights, the buffers, the masters and the optimizer.
  std::string state() {
    std::ostringstream bytes;
    const auto add = [&](const torch::Tensor& tensor) {
      bytes.write(static_cast<const char*>(tensor.const_data_ptr()), static_cast<std::streamsize>(tensor.nbytes()));
    };
    for (const auto& tensor : net_->parameters()) add(tensor);
    for (const auto& tensor : net_->buffers()) add(tensor);
    for (const auto& tensor : amp::master_params(optimizer_)) add(tensor);
    torch::save(optimizer_, bytes);
    return bytes.str();
  }

  Handles handles_;
  std::tuple_element_t<0, Handles>& net_ = std::get<0>(handles_);
  std::tuple_element_t<1, Handles>& optimizer_ = std::get<1>(handles_);
};

inline auto& trained_by_adam() {
  static Trained<torch::optim::Adam, torch::optim::AdamOptions> trained(0.1);
  return trained;
}
inline auto& trained_by_sgd() {
  static Trained<torch::optim::SGD, torch::optim::SGDOptions> trained(torch::optim::SGDOptions(0.1).momentum(0.9));
  return trained;
}

}  // namespace apex::fuzz
