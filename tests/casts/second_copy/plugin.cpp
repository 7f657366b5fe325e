// A plugin that trains with its own copy of the library.
#include <apex_cpp/amp.h>

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <string>

/// The error text of the plugin's `initialize`.
extern "C" const char* initialize_in_plugin() {
  static std::string error_text;
  torch::nn::Linear model(2, 2);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  try {
    auto [net, opt] = apex::amp::initialize(model, optimizer, "O4", apex::amp::InitializeOptions().verbosity(0));
    error_text = "nothing";
  } catch (const c10::Error& error) {
    error_text = error.what_without_backtrace();
  }
  return error_text.c_str();
}
