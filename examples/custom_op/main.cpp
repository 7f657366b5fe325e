// Custom operators, and how amp chooses the dtypes they run in: custom_op [digits.csv [epochs [level.yaml]]]
#include <apex_cpp/amp.h>
#include <torch/torch.h>

#include <cstdio>
#include <exception>

#include "command_line.h"
#include "digits.h"
#include "snake.h"

namespace {

namespace amp = apex::amp;
namespace nn = torch::nn;

struct ClassifierImpl : nn::Module {
  torch::Tensor forward(const torch::Tensor& x) {
    const auto hidden = snake(low_rank(x.flatten(1), down, up), alpha);
    return head(hidden);
  }

  torch::Tensor down = register_parameter("down", torch::randn({16, 64}) / 8);
  torch::Tensor up = register_parameter("up", torch::randn({128, 16}) / 4);
  torch::Tensor alpha = register_parameter("alpha", torch::ones({128}));
  nn::Linear head = register_module("head", nn::Linear(128, 10));
};
TORCH_MODULE(Classifier);

template <class Net>
double accuracy(Net& net, const Digits& data) {
  const torch::NoGradGuard no_grad;
  const torch::Tensor correct = net->forward(data.images).argmax(1).eq(data.labels).to(torch::kDouble);
  return correct.mean().item().toDouble();
}

/// Prints the dtypes that each operator ran in, and the casts that amp made for it.
template <class Net>
void print_casts(Net& net, const Digits& data) {
  const amp::trace trace;
  net->forward(data.images.narrow(0, 0, 1));
  for (const auto& op : trace.ops()) {
    if (op.name.rfind("custom::", 0) == 0) {
      std::printf("%s: %s in, %zu casts, %s out\n", op.name.c_str(), c10::toString(op.inputs.front()), op.casts.size(),
                  c10::toString(op.outputs.front()));
    }
  }
}

void train(const DigitsSplit& data, int epochs, const amp::OptLevel& level) {
  Classifier model;
  torch::optim::Adam optimizer(model->parameters(), torch::optim::AdamOptions(3e-3));
  auto [net, opt] = amp::initialize(model, optimizer, level);
  print_casts(net, data.test);
  for (int epoch = 1; epoch <= epochs; ++epoch) {
    double total = 0;
    for (const auto& batch : data.train.batches(64)) {
      opt.zero_grad();
      const auto loss = torch::cross_entropy_loss(net->forward(batch.images), batch.labels);
      amp::scale_loss(loss, opt).backward();
      opt.step();
      total += loss.item<double>() * static_cast<double>(batch.size());
    }
    std::printf("epoch %d: loss %.4f, accuracy %.4f\n", epoch, total / static_cast<double>(data.train.size()),
                accuracy(net, data.test));
  }
}

constexpr char kUsage[] = "custom_op [digits.csv [epochs [level.yaml]]]";

}  // namespace

int main(int argc, char** argv) try {
  torch::manual_seed(0);
  const auto data = read_digits(argc > 1 ? argv[1] : "digits.csv");
  const int epochs = argc > 2 ? read_epochs(argv[2], kUsage) : 8;
  if (argc > 3) {
    train(data, epochs, amp::OptLevel::from_yaml_file(argv[3]));  // the level's cast list names the operators
  } else {
    amp::register_half_function("custom::low_rank");  // a matrix product: fast in 16 bits, and accurate enough
    amp::register_float_function("custom::snake");    // its kernel supports float32 only
    train(data, epochs, "O1");
  }
} catch (const c10::Error& error) {
  std::fprintf(stderr, "%s\n", error.what_without_backtrace());
  return 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
