// Recurrent layers train at every level, on processors without 16-bit instructions too.
#include <tuple>

#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;

// A layer over a sequence, or a cell that is called step by step, and a linear layer after it.
template <class Recurrent>
struct RecurrentNetImpl : torch::nn::Module {
  RecurrentNetImpl() {
    recurrent = register_module("recurrent", Recurrent(6, 5));
    fc = register_module("fc", torch::nn::Linear(5, 3));
  }
  Tensor forward(Tensor x) { return fc(last_step(recurrent, x)); }

  template <class Layer>
  static auto last_step(Layer& layer, const Tensor& x) -> decltype(std::get<0>(layer(x))[-1]) {
    return std::get<0>(layer(x))[-1];
  }
  static Tensor last_step(torch::nn::LSTMCell& cell, const Tensor& x) {
    std::tuple<Tensor, Tensor> state = cell(x[0]);
    for (int64_t t = 1; t < x.size(0); ++t) state = cell(x[t], state);
    return std::get<0>(state);
  }
  static Tensor last_step(torch::nn::GRUCell& cell, const Tensor& x) { return last_state(cell, x); }
  static Tensor last_step(torch::nn::RNNCell& cell, const Tensor& x) { return last_state(cell, x); }
  template <class Cell>
  static Tensor last_state(Cell& cell, const Tensor& x) {
    Tensor state = cell(x[0]);
    for (int64_t t = 1; t < x.size(0); ++t) state = cell(x[t], state);
    return state;
  }

  Recurrent recurrent{nullptr};
  torch::nn::Linear fc{nullptr};
};

template <class Recurrent>
class RecurrentLayer : public AmpTest {
 protected:
  using Net = torch::nn::ModuleHolder<RecurrentNetImpl<Recurrent>>;

  // The gradients of one pass at this level: the masters' if there are any.
  static std::vector<Tensor> gradients_at(const std::string& level) {
    torch::manual_seed(3);
    Net model(std::make_shared<RecurrentNetImpl<Recurrent>>());
    const Tensor x = torch::randn({4, 2, 6});
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, optimizer, level, quiet());
    {
      auto scaled_loss = amp::scale_loss(net->forward(x).to(torch::kFloat).square().mean(), opt);
      scaled_loss.backward();
    }
    std::vector<Tensor> gradients;
    for (const Tensor& master : amp::master_params(opt)) gradients.push_back(master.grad().to(torch::kFloat));
    opt.step();
    return gradients;
  }
};

using Layers = ::testing::Types<torch::nn::LSTM, torch::nn::GRU, torch::nn::RNN, torch::nn::LSTMCell, torch::nn::GRUCell,
                                torch::nn::RNNCell>;
TYPED_TEST_SUITE(RecurrentLayer, Layers);

// Roundings to BF16 are off by less than 2^-9 of the value on average; some twenty follow one another over four steps and back,
// so that a gradient is true to about 20 * 2^-9 = 0.04 of the largest of its tensor.
TYPED_TEST(RecurrentLayer, HasGradientsNearThoseOfFloat32AtEveryLevel) {
  const auto expected = this->gradients_at("O0");
  for (const char* level : {"O1", "O2", "O3", "O4", "O5", "O6"}) {
    const auto gradients = this->gradients_at(level);
    ASSERT_EQ(gradients.size(), expected.size());
    for (size_t i = 0; i < gradients.size(); ++i) {
      const auto bound = std::ldexp(expected[i].abs().max().template item<double>(), -4);
      EXPECT_TRUE(torch::allclose(gradients[i], expected[i], 0, bound)) << level << ", parameter " << i;
    }
  }
}

// Two bidirectional layers over padded or packed sequences.
struct DeepLstmImpl : torch::nn::Module {
  explicit DeepLstmImpl(bool packs) : packed(packs) {
    lstm = register_module("lstm", torch::nn::LSTM(torch::nn::LSTMOptions(6, 5).num_layers(2).bidirectional(true)));
  }
  Tensor forward(Tensor x) {
    if (!packed) return std::get<0>(lstm(x));
    const auto sequences = torch::nn::utils::rnn::pack_padded_sequence(x, torch::tensor({4, 2}));
    return std::get<0>(lstm->forward_with_packed_input(sequences)).data();
  }
  torch::nn::LSTM lstm{nullptr};
  bool packed;
};
TORCH_MODULE(DeepLstm);

struct RecurrentLayerForms : AmpTest {
  static Tensor output_at(const std::string& level, bool packed, bool gradients) {
    torch::manual_seed(3);
    DeepLstm model(packed);
    const Tensor x = torch::randn({4, 2, 6});
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, optimizer, level, quiet());
    const at::AutoGradMode mode(gradients);
    const Tensor output = net->forward(x).to(torch::kFloat);
    if (gradients) {
      auto scaled_loss = amp::scale_loss(output.square().mean(), opt);
      scaled_loss.backward();
    }
    amp::reset();
    return output.detach();
  }
};

// Outputs are within 1, and true to some twenty roundings of 2^-9 each.
TEST_F(RecurrentLayerForms, DeepAndPackedOutputsAreNearFloat32AtEveryLevel) {
  for (const bool packed : {false, true}) {
    for (const bool gradients : {false, true}) {
      const Tensor expected = output_at("O0", packed, gradients);
      for (const char* level : {"O1", "O2", "O3", "O4", "O5", "O6"}) {
        EXPECT_TRUE(torch::allclose(output_at(level, packed, gradients), expected, 0, 1.0 / 16))
            << level << packed << gradients;
      }
    }
  }
}

}  // namespace
}  // namespace apex::test
