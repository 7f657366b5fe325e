// Mixed precision with TensorFlow's policy names: policy [digits.csv [policy [epochs]]]
// Policies: float32, mixed_float16, mixed_bfloat16, float16, bfloat16.
#include <apex_cpp/amp.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>

#include "command_line.h"
#include "digits.h"

namespace {

namespace amp = apex::amp;
namespace nn = torch::nn;

struct ClassifierImpl : nn::Module {
  // Keras needs layers.Dense(10, dtype="float32") for an FP32 output. amp needs nothing, because losses run in FP32.
  torch::Tensor forward(const torch::Tensor& x) { return output(torch::relu(hidden(torch::relu(input(x.flatten(1)))))); }

  nn::Linear input = register_module("input", nn::Linear(64, 128));
  nn::Linear hidden = register_module("hidden", nn::Linear(128, 128));
  nn::Linear output = register_module("output", nn::Linear(128, 10));
};
TORCH_MODULE(Classifier);

template <class Net>
double accuracy(Net& net, const Digits& data) {
  const torch::NoGradGuard no_grad;
  net->eval();
  const torch::Tensor correct = net->forward(data.images).argmax(1).eq(data.labels).to(torch::kDouble);
  return correct.mean().item().toDouble();
}

/// Prints the dtypes of the first layer's weight and of its output.
template <class Net>
void print_dtypes(Net& net, const Digits& data) {
  const amp::trace trace;
  net->forward(data.images.narrow(0, 0, 1));
  auto computed = at::ScalarType::Undefined;
  for (const auto& op : trace.ops()) {
    if (op.module == "input") computed = op.outputs.front();
  }
  std::printf("variables %s, computes in %s\n", c10::toString(net->input->weight.scalar_type()), c10::toString(computed));
}

void train(const DigitsSplit& data, int epochs) {
  Classifier model;
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto [net, opt] = amp::initialize(model, optimizer, amp::global_policy());
  print_dtypes(net, data.test);

  for (int epoch = 1; epoch <= epochs; ++epoch) {
    net->train();
    for (const auto& batch : data.train.batches(64)) {
      opt.zero_grad();
      const auto loss = torch::cross_entropy_loss(net->forward(batch.images), batch.labels);
      amp::scale_loss(loss, opt).backward();  // Keras: the scaling and unscaling of LossScaleOptimizer
      opt.step();
    }
    std::printf("epoch %d: accuracy %.4f, loss scale %g\n", epoch, accuracy(net, data.test), amp::step_result(opt).loss_scale);
  }
}

constexpr char kUsage[] = "policy [digits.csv [policy [epochs]]]";

}  // namespace

int main(int argc, char** argv) try {
  const int epochs = argc > 3 ? read_epochs(argv[3], kUsage) : 6;
  torch::manual_seed(0);
  amp::set_global_policy(argc > 2 ? argv[2] : "mixed_bfloat16");
  std::printf("policy %s: compute dtype %s, variable dtype %s\n", amp::global_policy().name().c_str(),
              c10::toString(amp::global_policy().compute_dtype()), c10::toString(amp::global_policy().variable_dtype()));
  train(read_digits(argc > 1 ? argv[1] : "digits.csv"), epochs);
} catch (const c10::Error& error) {
  std::fprintf(stderr, "%s\n", error.what_without_backtrace());
  return 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
