// Recurrent networks whose state is kept in a module or created in forward.
#include "tests/programs/program.h"

namespace apex::test::programs {
namespace {

class StatePrograms : public AmpTest {};

/// A GRU that keeps its state between batches until it is reset.
struct StatefulImpl : torch::nn::Module {
  StatefulImpl() {
    gru = register_module("gru", torch::nn::GRU(torch::nn::GRUOptions(1, 8).batch_first(true)));
    head = register_module("head", torch::nn::Linear(8, 1));
  }
  void reset_state() { state = Tensor(); }
  Tensor forward(const Tensor& x) {
    if (!state.defined()) state = torch::zeros({1, x.size(0), 8});
    const auto [output, next] = gru(x, state);
    state = next.detach();
    return head(output);
  }
  torch::nn::GRU gru{nullptr};
  torch::nn::Linear head{nullptr};
  Tensor state;
};
TORCH_MODULE(Stateful);

/// Resetting the state through the original or through the handle must have the same effect. The input is a pulse at the first
/// step of a sequence, to be predicted in all later chunks: this needs a state that is kept within a sequence and reset after
/// it.
template <class Amp, class Forget>
void train_stateful(Amp& amp, const Forget& forget) {
  Stateful model;
  torch::optim::Adam optimizer(model->parameters(), adam(0.03));
  auto [net, opt] = amp.initialize(model, optimizer);
  for (int sequence = 0; sequence < 32; ++sequence) {
    forget(model, net);
    const auto pulse = torch::randint(2, {16, 1, 1}).to(torch::kFloat) - 0.5;
    auto total = 0.0;
    for (int chunk = 0; chunk < 3; ++chunk) {
      const auto x = torch::cat({chunk == 0 ? pulse : torch::zeros_like(pulse), torch::zeros({16, 1, 1})}, 1);
      opt.zero_grad();
      const auto output = net->forward(x);
      amp.output(output);
      const auto loss = torch::mse_loss(output, pulse.expand({16, 2, 1}));
      amp.backward(loss, opt);
      opt.step();
      total += loss.template item<double>();
    }
    amp.log(total);
  }
}

TEST_F(StatePrograms, StateResetThroughTheHandle) {
  expect_trains_as_without_amp([](auto& amp) { train_stateful(amp, [](auto&, auto& net) { net->reset_state(); }); });
}

TEST_F(StatePrograms, StateResetThroughTheOriginal) {
  expect_trains_as_without_amp([](auto& amp) { train_stateful(amp, [](auto& model, auto&) { model->reset_state(); }); });
}

/// Cells whose first states are made in forward.
struct CellsImpl : torch::nn::Module {
  CellsImpl() {
    lstm = register_module("lstm", torch::nn::LSTMCell(2, 8));
    gru = register_module("gru", torch::nn::GRUCell(8, 8));
    head = register_module("head", torch::nn::Linear(8, 1));
  }
  Tensor forward(const Tensor& x) {
    auto h = torch::zeros({x.size(1), 8}), c = torch::zeros({x.size(1), 8}), g = torch::zeros({x.size(1), 8});
    for (int64_t t = 0; t < x.size(0); ++t) {
      std::tie(h, c) = lstm(x[t], std::make_tuple(h, c));
      g = gru(h, g);
    }
    return head(g);
  }
  torch::nn::LSTMCell lstm{nullptr};
  torch::nn::GRUCell gru{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(Cells);

TEST_F(StatePrograms, CellsWithStatesCreatedInForward) {
  expect_trains_as_without_amp([](auto& amp) {
    Cells model;
    torch::optim::Adam optimizer(model->parameters(), adam(0.03));
    auto [net, opt] = amp.initialize(model, optimizer);
    const auto x = torch::randn({4, 16, 2});
    const auto y = x.select(2, 0).mean(0).unsqueeze(1);
    train(amp, opt, 40, [&] {
      const auto output = net->forward(x);
      amp.output(output);
      return torch::mse_loss(output, y);
    });
  });
}

}  // namespace
}  // namespace apex::test::programs
