// A plugin that trains with its own copy of the library.
#include <apex_cpp/amp.h>

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <string>

/// The error when it tries.
extern "C" const char* initialize_in_plugin() {
  static std::string told;
  torch::nn::Linear model(2, 2);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  try {
    auto [net, opt] = apex::amp::initialize(model, optimizer, "O4", apex::amp::InitializeOptions().verbosity(0));
    told = "nothing";
  } catch (const c10::Error& error) {
    told = error.what_without_backtrace();
  }
  return told.c_str();
}
