// Checkpoints saved as in programs without amp, in the middle of a run.
#include <sstream>

#include "tests/programs/program.h"

namespace apex::test::programs {
namespace {

class SavingPrograms : public AmpTest {};

struct Curve {
  Tensor x = torch::randn({32, 3});
  Tensor y = torch::tanh(x.sum(1, true));
};

/// Trains, saves `model_of(model, net)` and the optimizer, overwrites the weights, loads both, and continues.
template <class Amp, class ModelOf>
void train_with_a_break(Amp& amp, const ModelOf& model_of) {
  const Curve curve;
  Layers model(3, 16, 1);
  torch::optim::Adam optimizer(model->parameters(), adam(0.02));
  auto [net, opt] = amp.initialize(model, optimizer);
  auto& network = net;
  const auto loss_of = [&] { return torch::mse_loss(network->forward(curve.x), curve.y); };
  train(amp, opt, 30, loss_of);
  const double loss = loss_of().template item<double>();
  std::stringstream model_file, optimizer_file;
  torch::save(model_of(model, net), model_file);
  torch::save(opt, optimizer_file);
  train(amp, opt, 5, [&] { return loss_of() * -1; });
  EXPECT_NE(loss_of().template item<double>(), loss);
  torch::load(model_of(model, net), model_file);
  torch::load(opt, optimizer_file);
  EXPECT_EQ(loss_of().template item<double>(), loss);
  train(amp, opt, 30, loss_of);
}

TEST_F(SavingPrograms, SavedAndLoadedThroughTheHandle) {
  expect_trains_as_without_amp([](auto& amp) {
    train_with_a_break(
        amp, [](auto&, auto& net) -> auto& { return net; });
  });
}

TEST_F(SavingPrograms, SavedAndLoadedThroughTheOriginal) {
  expect_trains_as_without_amp([](auto& amp) {
    train_with_a_break(
        amp, [](auto& model, auto&) -> auto& { return model; });
  });
}

/// A new program without amp reads the file: it is FP32 at every level.
template <class Amp, class ModelOf>
void save_for_a_plain_program(Amp& amp, const ModelOf& model_of) {
  const Curve curve;
  Layers model(3, 16, 1);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto [net, opt] = amp.initialize(model, optimizer);
  auto& network = net;
  train(amp, opt, 40, [&] { return torch::mse_loss(network->forward(curve.x), curve.y); });
  std::stringstream file;
  torch::save(model_of(model, net), file);
  Layers reader(3, 16, 1);
  torch::load(reader, file);
  amp.log(torch::mse_loss(reader->forward(curve.x), curve.y));
}

TEST_F(SavingPrograms, SavedForAProgramWithoutAmp) {
  expect_trains_as_without_amp([](auto& amp) {
    save_for_a_plain_program(
        amp, [](auto&, auto& net) -> auto& { return net; });
  });
}

TEST_F(SavingPrograms, OriginalSavedForAProgramWithoutAmp) {
  expect_trains_as_without_amp([](auto& amp) {
    save_for_a_plain_program(
        amp, [](auto& model, auto&) -> auto& { return model; });
  });
}

/// FP32 weights of an earlier run, loaded after initialize.
template <class Amp, class ModelOf>
void start_from_fp32(Amp& amp, const ModelOf& model_of) {
  const Curve curve;
  Layers earlier(3, 16, 1), model(3, 16, 1);
  torch::optim::SGD plain(earlier->parameters(), 0.2);
  for (int step = 0; step < 30; ++step) {
    plain.zero_grad();
    const auto loss = torch::mse_loss(earlier->forward(curve.x), curve.y);
    amp.log(loss);
    loss.backward();
    plain.step();
  }
  std::stringstream file;
  torch::save(earlier, file);
  torch::optim::SGD optimizer(model->parameters(), 0.01);
  auto [net, opt] = amp.initialize(model, optimizer);
  torch::load(model_of(model, net), file);
  auto& network = net;
  train(amp, opt, 2, [&] { return torch::mse_loss(network->forward(curve.x), curve.y); });
}

TEST_F(SavingPrograms, Fp32WeightsLoadedIntoTheHandle) {
  expect_trains_as_without_amp([](auto& amp) {
    start_from_fp32(
        amp, [](auto&, auto& net) -> auto& { return net; });
  });
}

TEST_F(SavingPrograms, Fp32WeightsLoadedIntoTheOriginal) {
  expect_trains_as_without_amp([](auto& amp) {
    start_from_fp32(
        amp, [](auto& model, auto&) -> auto& { return model; });
  });
}

}  // namespace
}  // namespace apex::test::programs
