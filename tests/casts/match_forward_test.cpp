// The match policy within a handle's forward at O2, O3, O5 and O6: FP32 tensors made in the forward are cast where they meet
// 16-bit weights and activations and LibTorch would raise an error. Everything that LibTorch accepts is unchanged.
#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;

/// A model whose forward calls a given function with its one linear layer.
struct CalledImpl : torch::nn::Module {
  using Function = std::function<Tensor(torch::nn::Linear&, const Tensor&)>;
  explicit CalledImpl(Function function) : call(std::move(function)) { fc = register_module("fc", torch::nn::Linear(6, 6)); }
  Tensor forward(Tensor x) { return call(fc, x); }
  Function call;
  torch::nn::Linear fc{nullptr};
};
TORCH_MODULE(Called);

struct MatchInForward : AmpTest, ::testing::WithParamInterface<const char*> {
  at::ScalarType low() const { return GetParam() >= std::string("O5") ? torch::kBFloat16 : torch::kHalf; }

  // The dtype of `f`'s result for the handle's 16-bit input, within its forward.
  template <class F>
  at::ScalarType type_in_forward(F&& f) const {
    at::ScalarType type = torch::kLong;
    Called model([&](torch::nn::Linear&, const Tensor& x) {
      EXPECT_EQ(x.dtype(), low());
      type = f(x).scalar_type();
      return x;
    });
    auto net = amp::initialize(model, GetParam(), quiet());
    net->forward(features());
    return type;
  }
};

TEST_P(MatchInForward, ALayerAcceptsAFloat32TensorMadeInTheForward) {
  Called model([](torch::nn::Linear& fc, const Tensor& x) { return fc(torch::ones({4, 6})) + fc(x); });
  auto net = amp::initialize(model, GetParam(), quiet());
  const auto by_hand = [&](const Tensor& x) { return torch::linear(x.to(low()), model->fc->weight, model->fc->bias); };
  const Tensor want = by_hand(torch::ones({4, 6})) + by_hand(features());
  EXPECT_TRUE(torch::equal(net->forward(features()), want.to(torch::kFloat)));
}

template <class Layer>
struct StatefulImpl : torch::nn::Module {
  StatefulImpl() { layer = register_module("layer", Layer(6, 5)); }
  Tensor forward(Tensor x) {
    if constexpr (std::is_same_v<Layer, torch::nn::LSTM>) {
      return std::get<0>(layer(x, std::tuple(torch::zeros({1, 4, 5}), torch::zeros({1, 4, 5}))));
    } else if constexpr (std::is_same_v<Layer, torch::nn::LSTMCell>) {
      return std::get<0>(layer(x[0], std::tuple(torch::zeros({4, 5}), torch::zeros({4, 5}))));
    } else if constexpr (std::is_same_v<Layer, torch::nn::GRUCell> || std::is_same_v<Layer, torch::nn::RNNCell>) {
      return layer(x[0], torch::zeros({4, 5}));
    } else {
      return std::get<0>(layer(x, torch::zeros({1, 4, 5})));
    }
  }
  Layer layer{nullptr};
};

template <class Layer>
void expect_zeros_as_hidden_state(const char* level) {
  torch::nn::ModuleHolder<StatefulImpl<Layer>> model(std::make_shared<StatefulImpl<Layer>>());
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, level, quiet().loss_scale(8.0));
  const Tensor x = torch::randn({3, 4, 6});
  const Tensor output = net->forward(x);
  const auto without = [&](auto& layer) {  // LibTorch makes the same zeros itself, in the input's type
    const Tensor input = x.to(layer->parameters()[0].dtype());
    const Tensor first = input.select(0, 0);
    if constexpr (std::is_same_v<Layer, torch::nn::LSTMCell>)
      return std::get<0>(layer(first));
    else if constexpr (std::is_same_v<Layer, torch::nn::GRUCell> || std::is_same_v<Layer, torch::nn::RNNCell>)
      return layer(first);
    else
      return std::get<0>(layer(input));
  };
  EXPECT_TRUE(torch::equal(output, without(model->layer).to(torch::kFloat))) << level;
  {
    auto scaled = amp::scale_loss(output.square().mean(), opt);
    scaled.backward();
  }
  opt.step();
  amp::reset();
}

TEST_P(MatchInForward, HiddenStatesMayBeFloat32Zeros) {
  expect_zeros_as_hidden_state<torch::nn::LSTM>(GetParam());
  expect_zeros_as_hidden_state<torch::nn::GRU>(GetParam());
  expect_zeros_as_hidden_state<torch::nn::RNN>(GetParam());
  expect_zeros_as_hidden_state<torch::nn::LSTMCell>(GetParam());
  expect_zeros_as_hidden_state<torch::nn::GRUCell>(GetParam());
  expect_zeros_as_hidden_state<torch::nn::RNNCell>(GetParam());
}

TEST_P(MatchInForward, ProductsOf16BitAndFloat32TensorsAre16Bit) {
  const auto eye = [] { return torch::eye(6); };
  EXPECT_EQ(type_in_forward([&](const Tensor& x) { return torch::mm(x, eye()); }), low());
  EXPECT_EQ(type_in_forward([&](const Tensor& x) { return torch::matmul(eye(), x.t()); }), low());
  EXPECT_EQ(type_in_forward([&](const Tensor& x) { return torch::bmm(x.unsqueeze(0), eye().unsqueeze(0)); }), low());
  EXPECT_EQ(type_in_forward([&](const Tensor& x) {
              return torch::baddbmm(torch::zeros({1, 4, 6}), x.unsqueeze(0), eye().unsqueeze(0));
            }),
            low());
  EXPECT_EQ(type_in_forward([&](const Tensor& x) { return torch::einsum("ij,jk->ik", {x, eye()}); }), low());
  EXPECT_EQ(type_in_forward([&](const Tensor& x) {
              const Tensor q = x.view({1, 1, 4, 6});
              return torch::scaled_dot_product_attention(q, torch::ones({1, 1, 4, 6}), q);
            }),
            low());
}

TEST_P(MatchInForward, InputsOfOneDtypeAreNotCast) {
  EXPECT_EQ(type_in_forward([](const Tensor&) { return torch::mm(torch::eye(6), torch::eye(6)); }), torch::kFloat);
  EXPECT_EQ(type_in_forward([](const Tensor& x) { return x + torch::ones({6}); }), torch::kFloat) << "LibTorch promotes";
  EXPECT_EQ(type_in_forward([](const Tensor& x) { return torch::layer_norm(x, {6}, torch::ones({6})); }), low())
      << "LibTorch takes FP32 weights with 16-bit input";
}

TEST_P(MatchInForward, InPlaceWritesCastToTheDestinationsDtype) {
  const Tensor rows = torch::tensor({0, 2});
  const auto expect_low = [&](const char* name, auto&& write) {
    Tensor target;
    EXPECT_EQ(type_in_forward([&](const Tensor& x) {
                target = torch::zeros_like(x);
                write(target);
                return target;
              }),
              low())
        << name;
    EXPECT_EQ(target.to(torch::kFloat).sum().item<float>(), 24.0f) << name;  // 12 elements of 2
  };
  const Tensor twos = torch::full({2, 6}, 2.0), index = rows.unsqueeze(1).expand({2, 6});
  expect_low("index_put_", [&](Tensor& t) { t.index_put_({rows}, twos); });
  expect_low("index_add_", [&](Tensor& t) { t.index_add_(0, rows, twos); });
  expect_low("index_copy_", [&](Tensor& t) { t.index_copy_(0, rows, twos); });
  expect_low("scatter_", [&](Tensor& t) { t.scatter_(0, index, twos); });
  expect_low("scatter_ with add", [&](Tensor& t) { t.scatter_(0, index, twos, "add"); });
  expect_low("scatter with add", [&](Tensor& t) { t = t.scatter(0, index, twos, "add"); });
  expect_low("scatter_add_", [&](Tensor& t) { t.scatter_add_(0, index, twos); });
  expect_low("masked_scatter_", [&](Tensor& t) { t.masked_scatter_(torch::arange(24).view({4, 6}) < 12, twos); });
  expect_low("scatter_reduce_", [&](Tensor& t) { t.scatter_reduce_(0, index, twos, "sum"); });
  expect_low("index_reduce_", [&](Tensor& t) { t.index_reduce_(0, rows, twos, "amax"); });
  expect_low("put_", [&](Tensor& t) { t.put_(torch::arange(12), twos.flatten()); });
  expect_low("lerp_", [&](Tensor& t) { t.slice(0, 0, 2).lerp_(twos * 2, 0.5); });
  expect_low("scatter_reduce", [&](Tensor& t) { t = t.scatter_reduce(0, index, twos, "sum"); });
  expect_low("index_reduce", [&](Tensor& t) { t = t.index_reduce(0, rows, twos, "amax"); });
  expect_low("put", [&](Tensor& t) { t = t.put(torch::arange(12), twos.flatten()); });
  expect_low("index_put", [&](Tensor& t) { t = t.index_put({rows}, twos); });
  expect_low("scatter", [&](Tensor& t) { t = t.scatter(0, index, twos); });
  Tensor wide = torch::zeros({4, 6});
  EXPECT_EQ(type_in_forward([&](const Tensor& x) { return wide.index_put_({rows}, x.slice(0, 0, 2)); }), torch::kFloat);
}

// LibTorch promotes like this in arithmetic; `lerp` and the others accept only inputs of one dtype.
TEST_P(MatchInForward, MixedLerpAndCrossProductsRunInFloat32) {
  const auto expect_float = [&](const char* name, auto&& f) {
    Tensor mixed, want;
    EXPECT_EQ(type_in_forward([&](const Tensor& x) { return mixed = f(x), want = f(x.to(torch::kFloat)), mixed; }),
              torch::kFloat)
        << name;
    EXPECT_TRUE(torch::equal(mixed, want)) << name;
  };
  const Tensor grid = torch::linspace(-1, 1, 40).view({1, 4, 5, 2}), other = torch::linspace(-1, 1, 24).view({4, 6});
  expect_float("grid_sampler", [&](const Tensor& x) { return torch::grid_sampler(x.view({1, 1, 4, 6}), grid, 0, 0, false); });
  expect_float("lerp.Scalar", [&](const Tensor& x) { return torch::lerp(x, other, 0.3); });
  expect_float("lerp.Tensor", [&](const Tensor& x) { return torch::lerp(x, x, other); });
  const auto triples = [](const Tensor& t) { return t.view({8, 3}); };
  expect_float("cross", [&](const Tensor& x) { return torch::cross(triples(x), triples(other), 1); });
  expect_float("linalg_cross", [&](const Tensor& x) { return torch::linalg_cross(triples(x), triples(other)); });
}

TEST_P(MatchInForward, EmbeddingBagWeightsAreCastToTheTablesDtype) {
  EXPECT_EQ(type_in_forward([](const Tensor& x) {
              const Tensor rows = torch::arange(4), starts = torch::tensor({0, 2}), weights = torch::full({4}, 0.5);
              return std::get<0>(torch::embedding_bag(x, rows, starts, false, /*mode=*/0, false, weights));
            }),
            low());
}

TEST_P(MatchInForward, LossesInTheForwardStay16Bit) {  // Apex patches no function at these levels
  EXPECT_EQ(type_in_forward([](const Tensor& x) { return torch::mse_loss(x, torch::zeros_like(x)); }), low());
}

/// The input's gradient from a loss within the handle's forward, and the same gradient in FP32.
void expect_loss_of_mix_in_float32(const char* level, amp::InitializeOptions options, const char* name,
                                   const std::function<Tensor(const Tensor&)>& loss) {
  Tensor inside, input;
  Called model([&](torch::nn::Linear&, const Tensor& x) {
    input = x.detach().sigmoid().requires_grad_();
    return inside = loss(input);
  });
  auto net = amp::initialize(model, level, std::move(options));
  net->forward(features());
  amp::reset();
  const Tensor wide = input.detach().to(torch::kFloat).requires_grad_(), want = loss(wide);
  EXPECT_TRUE(inside.dtype() == torch::kFloat && torch::equal(inside, want)) << name;
  inside.backward(), want.backward();
  EXPECT_TRUE(torch::equal(input.grad(), wide.grad().to(input.scalar_type()))) << name;
}

TEST_P(MatchInForward, LossesOfMixedDtypesRunInFloat32) {
  const Tensor zeros = torch::zeros({4, 6}), classes = torch::tensor({0, 1, 2, 1}), weights = torch::linspace(1, 2, 6);
  const std::pair<const char*, std::function<Tensor(const Tensor&)>> losses[] = {
      {"mse", [&](const Tensor& x) { return torch::mse_loss(x, zeros); }},
      {"mse, the other way round", [&](const Tensor& x) { return torch::mse_loss(zeros, x); }},
      {"huber", [&](const Tensor& x) { return torch::huber_loss(x, zeros); }},
      {"smooth_l1", [&](const Tensor& x) { return torch::smooth_l1_loss(x, zeros); }},
      {"l1", [&](const Tensor& x) { return torch::l1_loss(x, zeros); }},
      {"binary_cross_entropy", [&](const Tensor& x) { return torch::binary_cross_entropy(x, zeros); }},
      {"cross_entropy", [&](const Tensor& x) { return torch::cross_entropy_loss(x, classes, weights); }},
      {"nll", [&](const Tensor& x) { return torch::nll_loss(x, classes, weights); }},
      {"multi_margin", [&](const Tensor& x) { return torch::multi_margin_loss(x, classes, 1, 1, weights); }}};
  for (const auto& [name, loss] : losses) {
    expect_loss_of_mix_in_float32(GetParam(), quiet(), name, loss);
    expect_loss_of_mix_in_float32(GetParam(), quiet().cast_model_outputs(low()), name, loss);
  }
}

TEST_P(MatchInForward, StructArgumentsMayHoldFloat32) {
  struct Batch {
    Tensor x, mask;
  };
  struct OnBatchImpl : torch::nn::Module {
    OnBatchImpl() { fc = register_module("fc", torch::nn::Linear(6, 3)); }
    Tensor forward(const Batch& batch) { return fc(batch.x) * batch.mask; }
    torch::nn::Linear fc{nullptr};
  };
  torch::nn::ModuleHolder<OnBatchImpl> model(std::make_shared<OnBatchImpl>());
  auto net = amp::initialize(model, GetParam(), quiet());
  const Tensor want = torch::linear(features().to(low()), model->fc->weight, model->fc->bias).to(torch::kFloat);
  EXPECT_TRUE(torch::equal(net->forward(Batch{features(), torch::ones({4, 1})}), want));
}

INSTANTIATE_TEST_SUITE_P(Levels, MatchInForward, ::testing::Values("O2", "O3", "O5", "O6"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace apex::test
