// Recurrent networks over packed sequences.
#include "tests/programs/program.h"

namespace apex::test::programs {
namespace {

namespace rnn = torch::nn::utils::rnn;

class RecurrentPrograms : public AmpTest {};

/// The sum of a sequence of signs, predicted from the last state of a packed LSTM.
struct PackedSumImpl : torch::nn::Module {
  PackedSumImpl() {
    lstm = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(1, 8).batch_first(true)));
    head = register_module("head", torch::nn::Linear(8, 1));
  }
  Tensor forward(const Tensor& x, const Tensor& lengths) {
    const auto packed = rnn::pack_padded_sequence(x, lengths, /*batch_first=*/true, /*enforce_sorted=*/false);
    const auto [output, state] = lstm->forward_with_packed_input(packed);
    const auto padded = std::get<0>(rnn::pad_packed_sequence(output, /*batch_first=*/true));
    const auto last = (lengths - 1).view({-1, 1, 1}).expand({-1, 1, 8});
    return head(padded.gather(1, last).squeeze(1));
  }
  torch::nn::LSTM lstm{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(PackedSum);

TEST_F(RecurrentPrograms, PackedLstm) {
  expect_trains_as_without_amp([](auto& amp) {
    PackedSum model;
    torch::optim::Adam optimizer(model->parameters(), adam(0.05));
    auto [net, opt] = amp.initialize(model, optimizer);
    const auto lengths = torch::randint(1, 6, {16});
    auto x = torch::randint(2, {16, 5, 1}).to(torch::kFloat) - 0.5;
    x = x * (torch::arange(5).view({1, 5, 1}) < lengths.view({-1, 1, 1}));
    const auto y = x.sum(1);
    train(amp, opt, 40, [&] {
      const auto output = net->forward(x, lengths);
      amp.output(output);
      return torch::mse_loss(output, y);
    });
  });
}

}  // namespace
}  // namespace apex::test::programs
