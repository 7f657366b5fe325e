// torch's cast lists under amp::autocast on a CPU: output dtype, and the same bits as casting by hand. After the op lists and
// the RNN test of PyTorch's test_autocast.py.
#include <functional>

#include "tests/amp/support.h"

namespace apex::test {
namespace {

using amp::autocast;
using torch::Tensor;
using Tensors = std::vector<Tensor>;
using Shapes = std::vector<std::vector<int64_t>>;

struct Op {
  const char* name;
  Shapes shapes;
  std::function<Tensor(const Tensors&)> call;
};

std::string op_name(const ::testing::TestParamInfo<Op>& test) { return test.param.name; }

Tensors make_inputs(const Op& op, torch::ScalarType dtype) {
  torch::manual_seed(5);
  Tensors inputs;
  // Within (0, 1), as binary_cross_entropy wants them.
  for (const auto& shape : op.shapes) inputs.push_back((torch::rand(shape) * 0.9 + 0.05).to(dtype));
  return inputs;
}

Tensors cast_by_hand(Tensors inputs, torch::ScalarType dtype) {
  for (auto& input : inputs) input = input.to(dtype);
  return inputs;
}

void expect_as_by_hand(const Op& op, const Tensors& inputs, torch::ScalarType dtype, torch::ScalarType fast) {
  const auto by_hand = op.call(cast_by_hand(inputs, dtype));
  const autocast guard("cpu", fast);
  const auto output = op.call(inputs);
  EXPECT_EQ(output.scalar_type(), dtype);
  EXPECT_EQ(bytes_of(output), bytes_of(by_hand));
}

// ---- run in the 16-bit type, from float32

class AutocastLowerPrecision : public ::testing::TestWithParam<Op> {};

TEST_P(AutocastLowerPrecision, RunsIn16Bits) {
  for (const auto fast : {torch::kBFloat16, torch::kHalf}) {
    expect_as_by_hand(GetParam(), make_inputs(GetParam(), torch::kFloat), fast, fast);
  }
}

std::vector<Op> lower_precision_ops() {
  return {Op{"conv1d", {{2, 3, 8}, {4, 3, 3}}, [](const Tensors& t) { return torch::conv1d(t[0], t[1]); }},
          Op{"conv2d", {{2, 3, 8, 8}, {4, 3, 3, 3}}, [](const Tensors& t) { return torch::conv2d(t[0], t[1]); }},
          Op{"conv3d", {{2, 3, 5, 5, 5}, {4, 3, 3, 3, 3}}, [](const Tensors& t) { return torch::conv3d(t[0], t[1]); }},
          Op{"conv_tbc", {{8, 2, 3}, {3, 3, 4}, {4}}, [](const Tensors& t) { return torch::conv_tbc(t[0], t[1], t[2]); }},
          Op{"conv_transpose1d", {{2, 3, 8}, {3, 4, 3}}, [](const Tensors& t) { return torch::conv_transpose1d(t[0], t[1]); }},
          Op{"conv_transpose2d",
             {{2, 3, 6, 6}, {3, 4, 3, 3}},
             [](const Tensors& t) { return torch::conv_transpose2d(t[0], t[1]); }},
          Op{"conv_transpose3d",
             {{2, 3, 4, 4, 4}, {3, 4, 3, 3, 3}},
             [](const Tensors& t) { return torch::conv_transpose3d(t[0], t[1]); }},
          Op{"mm", {{4, 5}, {5, 6}}, [](const Tensors& t) { return torch::mm(t[0], t[1]); }},
          Op{"matmul", {{2, 4, 5}, {5, 6}}, [](const Tensors& t) { return torch::matmul(t[0], t[1]); }},
          Op{"bmm", {{2, 4, 5}, {2, 5, 6}}, [](const Tensors& t) { return torch::bmm(t[0], t[1]); }},
          Op{"baddbmm", {{2, 4, 6}, {2, 4, 5}, {2, 5, 6}}, [](const Tensors& t) { return torch::baddbmm(t[0], t[1], t[2]); }},
          Op{"addmm", {{4, 6}, {4, 5}, {5, 6}}, [](const Tensors& t) { return torch::addmm(t[0], t[1], t[2]); }},
          Op{"addmm_activation",
             {{4, 6}, {4, 5}, {5, 6}},
             [](const Tensors& t) { return at::_addmm_activation(t[0], t[1], t[2]); }},
          Op{"addbmm", {{4, 6}, {2, 4, 5}, {2, 5, 6}}, [](const Tensors& t) { return torch::addbmm(t[0], t[1], t[2]); }},
          Op{"linear", {{4, 5}, {6, 5}, {6}}, [](const Tensors& t) { return torch::linear(t[0], t[1], t[2]); }},
          Op{"linalg_vecdot", {{4, 5}, {4, 5}}, [](const Tensors& t) { return torch::linalg_vecdot(t[0], t[1]); }},
          Op{"prelu", {{4, 5}, {1}}, [](const Tensors& t) { return torch::prelu(t[0], t[1]); }},
          Op{"scaled_dot_product_attention", {{1, 2, 4, 8}, {1, 2, 4, 8}, {1, 2, 4, 8}}, [](const Tensors& t) {
               return at::scaled_dot_product_attention(t[0], t[1], t[2]);
             }}};
}
INSTANTIATE_TEST_SUITE_P(Ops, AutocastLowerPrecision, ::testing::ValuesIn(lower_precision_ops()), op_name);

// ---- run in float32, from the 16-bit type

class AutocastFloat32 : public ::testing::TestWithParam<Op> {};

TEST_P(AutocastFloat32, RunsInFloat32) {
  expect_as_by_hand(GetParam(), make_inputs(GetParam(), torch::kBFloat16), torch::kFloat, torch::kBFloat16);
}

template <Tensor (*Loss)(const Tensor&, const Tensor&, int64_t)>
Tensor loss(const Tensors& t) {
  return Loss(t[0], t[1], at::Reduction::Mean);
}

std::vector<Op> float32_ops() {
  return {
      Op{"mse_loss", {{4, 5}, {4, 5}}, loss<at::mse_loss>},
      Op{"l1_loss", {{4, 5}, {4, 5}}, loss<at::l1_loss>},
      Op{"soft_margin_loss", {{4, 5}, {4, 5}}, loss<at::soft_margin_loss>},
      Op{"smooth_l1_loss", {{4, 5}, {4, 5}}, [](const Tensors& t) { return torch::smooth_l1_loss(t[0], t[1]); }},
      Op{"huber_loss", {{4, 5}, {4, 5}}, [](const Tensors& t) { return torch::huber_loss(t[0], t[1]); }},
      Op{"binary_cross_entropy", {{4, 5}, {4, 5}}, [](const Tensors& t) { return torch::binary_cross_entropy(t[0], t[1]); }},
      Op{"binary_cross_entropy_with_logits",
         {{4, 5}, {4, 5}},
         [](const Tensors& t) { return torch::binary_cross_entropy_with_logits(t[0], t[1]); }},
      Op{"poisson_nll_loss",
         {{4, 5}, {4, 5}},
         [](const Tensors& t) { return torch::poisson_nll_loss(t[0], t[1], true, false, 1e-8, at::Reduction::Mean); }},
      Op{"cosine_embedding_loss",
         {{4, 5}, {4, 5}, {4}},
         [](const Tensors& t) { return torch::cosine_embedding_loss(t[0], t[1], t[2]); }},
      Op{"hinge_embedding_loss", {{4, 5}, {4, 5}}, [](const Tensors& t) { return torch::hinge_embedding_loss(t[0], t[1]); }},
      Op{"margin_ranking_loss", {{5}, {5}, {5}}, [](const Tensors& t) { return torch::margin_ranking_loss(t[0], t[1], t[2]); }},
      Op{"triplet_margin_loss",
         {{4, 5}, {4, 5}, {4, 5}},
         [](const Tensors& t) { return torch::triplet_margin_loss(t[0], t[1], t[2]); }},
      Op{"nll_loss",
         {{4, 5}},
         [](const Tensors& t) {
           return torch::nll_loss(t[0], torch::tensor({0, 1, 2, 3}));
         }},
      Op{"nll_loss2d",
         {{1, 3, 2, 2}},
         [](const Tensors& t) {
           return at::nll_loss2d(t[0], torch::ones({1, 2, 2}, torch::kLong));
         }},
      Op{"multi_margin_loss",
         {{4, 5}},
         [](const Tensors& t) {
           return torch::multi_margin_loss(t[0], torch::tensor({0, 1, 2, 3}));
         }},
      Op{"multilabel_margin_loss",
         {{2, 3}},
         [](const Tensors& t) {
           return torch::multilabel_margin_loss(t[0], torch::tensor({{0, 1, -1}, {2, -1, -1}}));
         }},
      Op{"cross_entropy_loss",
         {{4, 5}},
         [](const Tensors& t) {
           return torch::cross_entropy_loss(t[0], torch::tensor({0, 1, 2, 3}));
         }},
      Op{"avg_pool3d", {{1, 2, 4, 4, 4}}, [](const Tensors& t) { return torch::avg_pool3d(t[0], 2); }},
      Op{"reflection_pad1d",
         {{1, 2, 5}},
         [](const Tensors& t) {
           return torch::reflection_pad1d(t[0], {2, 2});
         }},
      Op{"prod", {{4, 5}}, [](const Tensors& t) { return torch::prod(t[0]); }},
      Op{"trace", {{4, 4}}, [](const Tensors& t) { return torch::trace(t[0]); }},
      Op{"cdist", {{4, 5}, {3, 5}}, [](const Tensors& t) { return torch::cdist(t[0], t[1]); }},
      Op{"inverse", {{4, 4}}, [](const Tensors& t) { return torch::inverse(t[0]); }}};
}
INSTANTIATE_TEST_SUITE_P(Ops, AutocastFloat32, ::testing::ValuesIn(float32_ops()), op_name);

// ---- run in the widest type among the inputs

class AutocastPromote : public ::testing::TestWithParam<Op> {};

TEST_P(AutocastPromote, RunsInTheWidestInputType) {
  const auto& op = GetParam();
  for (const bool mixed : {false, true}) {
    auto inputs = make_inputs(op, torch::kBFloat16);
    if (mixed) inputs.back() = inputs.back().to(torch::kFloat);
    expect_as_by_hand(op, inputs, mixed ? torch::kFloat : torch::kBFloat16, torch::kBFloat16);
  }
}

std::vector<Op> promote_ops() {
  return {Op{"cat", {{2, 3}, {4, 3}}, [](const Tensors& t) { return torch::cat(t); }},
          Op{"stack", {{2, 3}, {2, 3}}, [](const Tensors& t) { return torch::stack(t); }},
          Op{"index_copy",
             {{3, 3}, {2, 3}},
             [](const Tensors& t) {
               return torch::index_copy(t[0], 0, torch::tensor({0, 2}), t[1]);
             }},
          Op{"add", {{2, 3}, {2, 3}}, [](const Tensors& t) { return t[0] + t[1]; }},
          Op{"mul", {{2, 3}, {2, 3}}, [](const Tensors& t) { return t[0] * t[1]; }}};
}
INSTANTIATE_TEST_SUITE_P(Ops, AutocastPromote, ::testing::ValuesIn(promote_ops()), op_name);

// ---- upstream: test_autocast_rnn

// LibTorch's LSTM hands FP32 input to oneDNN, which autocast then makes 16-bit; oneDNN has 16-bit recurrent layers for
// processors from AVX512 on. Input that is BF16 already goes another way.
bool onednn_has_bfloat16() {
  const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("mkldnn::_is_mkldnn_bf16_supported", "");
  return op.typed<bool()>().call();
}

template <class Rnn>
class AutocastRnn : public AmpTest {};
using Rnns = ::testing::Types<torch::nn::RNN, torch::nn::GRU, torch::nn::LSTM>;
TYPED_TEST_SUITE(AutocastRnn, Rnns);

TYPED_TEST(AutocastRnn, AutocastRnnRunsNearFloat32WithFloat32Gradients) {
  TypeParam rnn(10, 20);
  const auto input = torch::randn({5, 3, 10});
  const auto expected = std::get<0>(rnn(input));
  Tensor output;
  {
    const autocast guard("cpu");
    for (const auto dtype : {torch::kFloat, torch::kBFloat16}) {
      if (std::is_same_v<TypeParam, torch::nn::LSTM> && dtype == torch::kFloat && !onednn_has_bfloat16()) {
        const auto message = message_of([&] { rnn(input); });
        EXPECT_TRUE(contains(message, "aten::lstm under autocast: oneDNN has no BFloat16 LSTM for this CPU"));
        EXPECT_TRUE(contains(message, "level O4 or O5"));
        continue;
      }
      output = std::get<0>(rnn(input.to(dtype)));
      // Outputs below 1 after five steps, each of which rounds to BF16 (2^-9) twice.
      EXPECT_TRUE(torch::allclose(output.to(torch::kFloat), expected, 0, 10 * 0x1p-9));
    }
  }
  output.sum().backward();
  for (const auto& param : rnn->parameters()) {
    EXPECT_EQ(param.grad().scalar_type(), torch::kFloat);
    EXPECT_TRUE(param.grad().isfinite().all().template item<bool>());
  }
}

}  // namespace
}  // namespace apex::test
