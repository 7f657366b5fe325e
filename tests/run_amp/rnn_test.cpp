// Apex's tests/L0/run_amp/test_rnn.py (RNN-01..03): cells and layers return 16-bit results, and the input's gradient has the
// input's dtype.
#include "tests/run_amp/run_amp.h"

namespace apex::test::run_amp {
namespace {

namespace rnn_utils = torch::nn::utils::rnn;

class TestRnnCells : public RunAmp {
 protected:
  /// `next(x, hidden)` is the next hidden state: one tensor, or an LSTM's two.
  using Hidden = std::vector<torch::Tensor>;
  using Cell = std::function<Hidden(const torch::Tensor&, const Hidden&)>;

  void expect_half(const Cell& next, size_t num_states) const {
    for (const auto dtype : dtypes()) {
      SCOPED_TRACE(testing::Message() << "input " << dtype);
      std::vector<torch::Tensor> xs;
      for (int64_t i = 0; i < kSteps; ++i) xs.push_back(input({kBatch, kHidden}, dtype));
      const auto outputs = unroll(next, num_states, xs);
      for (const auto& y : outputs) EXPECT_EQ(y.scalar_type(), low());
      expect_float_values(next, num_states, xs, outputs.back());
      outputs.back().to(torch::kFloat).sum().backward();
      for (const auto& x : xs) EXPECT_EQ(x.grad().scalar_type(), dtype);
    }
  }

 private:
  std::vector<torch::Tensor> unroll(const Cell& next, size_t num_states, const std::vector<torch::Tensor>& xs) const {
    Hidden hidden(num_states, torch::zeros({kBatch, kHidden}, xs.front().options().requires_grad(false)));
    std::vector<torch::Tensor> outputs;
    for (const auto& x : xs) {
      hidden = next(x, hidden);
      outputs.push_back(hidden.front());
    }
    return outputs;
  }

  void expect_float_values(const Cell& next, size_t num_states, std::vector<torch::Tensor> xs, const torch::Tensor& y) const {
    const torch::NoGradGuard no_grad;
    const amp::disable_casts off;
    for (auto& x : xs) x = x.to(torch::kFloat);
    expect_close(y, unroll(next, num_states, xs).back());
  }
};

TEST_P(TestRnnCells, test_rnn_cell_is_half) {
  auto relu = on_device(torch::nn::RNNCell(torch::nn::RNNCellOptions(kHidden, kHidden).nonlinearity(torch::kReLU)));
  auto tanh = on_device(torch::nn::RNNCell(kHidden, kHidden));
  for (auto cell : {relu, tanh}) {
    expect_half([&](const auto& x, const Hidden& hidden) { return Hidden{cell->forward(x, hidden[0])}; }, 1);
  }
}

TEST_P(TestRnnCells, test_gru_cell_is_half) {
  auto cell = on_device(torch::nn::GRUCell(kHidden, kHidden));
  expect_half([&](const auto& x, const Hidden& hidden) { return Hidden{cell(x, hidden[0])}; }, 1);
}

TEST_P(TestRnnCells, test_lstm_cell_is_half) {
  auto cell = on_device(torch::nn::LSTMCell(kHidden, kHidden));
  const auto next = [&](const auto& x, const Hidden& hidden) {
    const auto [h, c] = cell(x, std::make_tuple(hidden[0], hidden[1]));
    return Hidden{h, c};
  };
  expect_half(next, 2);
}

INSTANTIATE_TEST_SUITE_P(Devices, TestRnnCells, ::testing::ValuesIn(all_settings()), name_of);

class TestRnns : public RunAmp {
 protected:
  struct Config {
    int64_t layers;
    bool bidirectional;
    int64_t num_states() const { return bidirectional ? 2 * layers : layers; }
  };
  static constexpr Config kConfigs[] = {{1, false}, {2, false}, {2, true}};

  template <class Options>
  static Options options(Config config) {
    return Options(kHidden, kHidden).num_layers(config.layers).bidirectional(config.bidirectional);
  }

  /// `run(x, zeros)` is the layer's output from that initial state.
  template <class Run>
  void expect_half(Config config, Run&& run) const {
    for (const auto dtype : dtypes()) {
      SCOPED_TRACE(testing::Message() << config.layers << (config.bidirectional ? " bi" : " uni") << ", input " << dtype);
      const auto x = input({kSteps, kBatch, kHidden}, dtype);
      const auto zeros = torch::zeros({config.num_states(), kBatch, kHidden}, of(dtype));
      const torch::Tensor y = run(x, zeros);
      EXPECT_EQ(y.scalar_type(), low());
      {
        const torch::NoGradGuard no_grad;
        const amp::disable_casts off;
        expect_close(y, run(x.to(torch::kFloat), zeros.to(torch::kFloat)));
      }
      y[-1].to(torch::kFloat).sum().backward();
      EXPECT_EQ(x.grad().scalar_type(), dtype);
    }
  }
};

TEST_P(TestRnns, test_rnn_is_half) {
  for (const auto config : kConfigs) {
    auto tanh = on_device(torch::nn::RNN(options<torch::nn::RNNOptions>(config)));
    auto relu = on_device(torch::nn::RNN(options<torch::nn::RNNOptions>(config).nonlinearity(torch::kReLU)));
    for (auto rnn : {tanh, relu}) {
      expect_half(config, [&](const auto& x, const auto& zeros) { return std::get<0>(rnn->forward(x, zeros)); });
    }
  }
}

TEST_P(TestRnns, test_gru_is_half) {
  for (const auto config : kConfigs) {
    auto gru = on_device(torch::nn::GRU(options<torch::nn::GRUOptions>(config)));
    expect_half(config, [&](const auto& x, const auto& zeros) { return std::get<0>(gru(x, zeros)); });
  }
}

TEST_P(TestRnns, test_lstm_is_half) {
  for (const auto config : kConfigs) {
    auto lstm = on_device(torch::nn::LSTM(options<torch::nn::LSTMOptions>(config)));
    expect_half(config, [&](const auto& x, const auto& zeros) { return std::get<0>(lstm(x, std::make_tuple(zeros, zeros))); });
  }
}

TEST_P(TestRnns, test_rnn_packed_sequence) {
  const Config config{2, false};
  auto rnn = on_device(torch::nn::RNN(options<torch::nn::RNNOptions>(config).nonlinearity(torch::kReLU)));
  const auto lengths = std::get<0>(torch::randint(kSteps / 2, kSteps + 1, {kBatch}).to(torch::kLong).sort(0, true));
  for (const auto dtype : dtypes()) {
    const auto x = input({kSteps, kBatch, kHidden}, dtype);
    const auto zeros = torch::zeros({config.num_states(), kBatch, kHidden}, of(dtype));
    const auto packed = rnn_utils::pack_padded_sequence(x, lengths);
    const auto output = std::get<0>(rnn->forward_with_packed_input(packed, zeros));
    EXPECT_EQ(output.data().scalar_type(), low());
    EXPECT_TRUE(torch::equal(output.batch_sizes(), packed.batch_sizes()));
    output.data().to(torch::kFloat).sum().backward();
    EXPECT_EQ(x.grad().scalar_type(), dtype);
  }
}

INSTANTIATE_TEST_SUITE_P(Devices, TestRnns, ::testing::ValuesIn(all_settings()), name_of);

}  // namespace
}  // namespace apex::test::run_amp
