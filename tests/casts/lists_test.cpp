// The user's cast lists, allow_banned and TF32, through initialize.
#include <ATen/Context.h>

#include <functional>
#include <utility>

#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;

using opt_levels::CastLists;

struct Lists : AmpTest {
  Mlp model;
  Tensor half = torch::full({2, 2}, 0.5).to(torch::kHalf);
  Tensor single = torch::full({2, 2}, 0.5);

  amp::Model<Mlp> initialize(const std::string& casts, const char* level = "O1") {
    return amp::initialize(model, level, quiet().casts(CastLists::from_yaml_string(casts)));
  }
};

TEST_F(Lists, ChangeTheBuiltInOnes) {
  auto net = initialize("casts:\n  half: [aten::sigmoid]\n  none: [aten::mm]\n");
  EXPECT_EQ(torch::sigmoid(single).dtype(), torch::kHalf);
  EXPECT_EQ(torch::mm(single, single).dtype(), torch::kFloat);
  EXPECT_EQ(torch::bmm(single.unsqueeze(0), single.unsqueeze(0)).dtype(), torch::kHalf);
}

TEST_F(Lists, ReplaceTheBuiltInOnes) {
  auto net = initialize("base: none\ncasts:\n  float32: [aten::relu]\n");
  EXPECT_EQ(torch::relu(half).dtype(), torch::kFloat);
  EXPECT_EQ(torch::exp(half).dtype(), torch::kHalf);
}

TEST_F(Lists, AnOverloadsNameOverridesTheOperators) {
  auto net = initialize("casts:\n  float32: [aten::clamp]\n  none: [aten::clamp.Tensor]\n");
  EXPECT_EQ(torch::clamp(half, 0).dtype(), torch::kFloat);
  EXPECT_EQ(torch::clamp(half, half).dtype(), torch::kHalf);
}

/// At O1 and O4 a tensor written in place keeps its dtype and the values are cast to it; a new result is FP32.
TEST_F(Lists, ScattersAcceptMixedDtypes) {
  auto net = amp::initialize(model, "O1", quiet());
  const Tensor rows = torch::tensor({0, 2}), twos = torch::full({2, 6}, 2.0), index = rows.unsqueeze(1).expand({2, 6});
  const Tensor mask = torch::arange(24).view({4, 6}) < 12, zeros = torch::zeros({4, 6}, torch::kHalf);
  const auto expect = [&](const char* name, at::ScalarType type, const Tensor& result) {
    EXPECT_EQ(result.scalar_type(), type) << name;
    EXPECT_EQ(result.to(torch::kFloat).sum().item<float>(), 24.0f) << name;  // 12 elements of 2
  };
  expect("index_put_", torch::kHalf, zeros.clone().index_put_({rows}, twos));
  expect("index_add_", torch::kHalf, zeros.clone().index_add_(0, rows, twos));
  expect("index_copy_", torch::kHalf, zeros.clone().index_copy_(0, rows, twos));
  expect("scatter_", torch::kHalf, zeros.clone().scatter_(0, index, twos));
  expect("scatter_ with add", torch::kHalf, zeros.clone().scatter_(0, index, twos, "add"));
  expect("scatter_add_", torch::kHalf, zeros.clone().scatter_add_(0, index, twos));
  expect("masked_scatter_", torch::kHalf, zeros.clone().masked_scatter_(mask, twos));
  expect("scatter_reduce_", torch::kHalf, zeros.clone().scatter_reduce_(0, index, twos, "sum"));
  expect("index_reduce_", torch::kHalf, zeros.clone().index_reduce_(0, rows, twos, "amax"));
  expect("put_", torch::kHalf, zeros.clone().put_(torch::arange(12), twos.flatten()));
  expect("lerp_", torch::kHalf, zeros.clone().lerp_(twos.repeat({2, 1}), 0.5));
  expect("scatter", torch::kFloat, zeros.scatter(0, index, twos));
  expect("scatter with add", torch::kFloat, zeros.scatter(0, index, twos, "add"));
  expect("scatter_reduce", torch::kFloat, zeros.scatter_reduce(0, index, twos, "sum"));
  expect("index_reduce", torch::kFloat, zeros.index_reduce(0, rows, twos, "amax"));
  expect("put", torch::kFloat, zeros.put(torch::arange(12), twos.flatten()));
  expect("lerp", torch::kFloat, zeros.lerp(twos.repeat({2, 1}), 0.5));
  expect("masked_scatter", torch::kFloat, zeros.masked_scatter(mask, twos));
  const Tensor bags = std::get<0>(at::embedding_bag(torch::ones({4, 6}), rows, rows.div(2, "floor"), false, /*mode=*/0, false,
                                                    torch::full({2}, 2.0, torch::kHalf)));
  expect("embedding_bag", torch::kFloat, bags);
  expect("index_put_ of FP32", torch::kFloat, torch::zeros({4, 6}).index_put_({rows}, twos.to(torch::kHalf)));
}

using Binary = std::function<Tensor(const Tensor&, const Tensor&)>;

// A call's result, and the gradient of its first argument; undefined if there is none.
std::vector<Tensor> result_and_grad(const Binary& call, const Tensor& a, const Tensor& b) {
  const Tensor leaf = a.detach().clone().requires_grad_();
  const Tensor result = call(leaf, b);
  if (result.requires_grad()) result.sum().backward();
  return {result.detach(), leaf.grad()};
}

/// The truth is PyTorch's promotion, which gives float64. `torch::dot` and its like refuse the mix with amp and without.
TEST_F(Lists, Float64Beside16BitsIsLeftToPyTorchsPromotion) {
  const std::vector<std::pair<const char*, Binary>> calls = {
      {"add", [](auto& a, auto& b) { return torch::add(a, b); }},
      {"sub", [](auto& a, auto& b) { return torch::sub(a, b); }},
      {"mul", [](auto& a, auto& b) { return torch::mul(a, b); }},
      {"div", [](auto& a, auto& b) { return torch::div(a, b); }},
      {"div by trunc", [](auto& a, auto& b) { return torch::div(a, b, "trunc"); }},
      {"rsub", [](auto& a, auto& b) { return torch::rsub(a, b); }},
      {"operators", [](auto& a, auto& b) { return (a + b) * (b - a) / b; }},
      {"eq", [](auto& a, auto& b) { return torch::eq(a, b); }},
      {"ne", [](auto& a, auto& b) { return a != b; }},
      {"lt", [](auto& a, auto& b) { return a < b; }},
      {"le", [](auto& a, auto& b) { return b <= a; }},
      {"gt", [](auto& a, auto& b) { return a > b; }},
      {"ge", [](auto& a, auto& b) { return b >= a; }},
      {"outer", [](auto& a, auto& b) { return torch::outer(a, b); }},
      {"atan2", [](auto& a, auto& b) { return torch::atan2(a, b); }},
      {"addcmul", [](auto& a, auto& b) { return torch::addcmul(b, a, b); }},
      {"addcdiv", [](auto& a, auto& b) { return torch::addcdiv(b, b, a); }},
      {"add_ to float64", [](auto& a, auto& b) { return b.clone().add_(a); }},
      {"*= to float64", [](auto& a, auto& b) { return b.clone() *= a; }},
      {"a single float64", [](auto& a, auto& b) { return a * b[0]; }},
  };
  for (const auto& [level, low] : {std::pair("O1", torch::kHalf), std::pair("O4", torch::kBFloat16)}) {
    const Tensor a = torch::linspace(0.1, 0.9, 5).to(low), b = torch::linspace(0.2, 1, 5, torch::kDouble);
    std::vector<std::vector<Tensor>> plain;
    for (const auto& [name, call] : calls) plain.push_back(result_and_grad(call, a, b));
    const std::string refused = message_of([&] { torch::dot(a, b); });
    Mlp other;
    auto net = amp::initialize(other, level, quiet());
    for (size_t i = 0; i < calls.size(); ++i) {
      const auto got = result_and_grad(calls[i].second, a, b);
      EXPECT_EQ(got[0].scalar_type(), plain[i][0].scalar_type()) << level << " " << calls[i].first;
      for (size_t k = 0; k < got.size(); ++k) {
        ASSERT_EQ(got[k].defined(), plain[i][k].defined()) << level << " " << calls[i].first;
        EXPECT_TRUE(!got[k].defined() || torch::equal(got[k], plain[i][k])) << level << " " << calls[i].first;
      }
    }
    EXPECT_EQ(a.clone().add_(b).scalar_type(), low) << "in place the type of self holds";
    EXPECT_FALSE(refused.empty());
    EXPECT_TRUE(contains(message_of([&] { torch::dot(a, b); }), refused.substr(0, refused.find('\n')))) << refused;
    amp::reset();
  }
}

struct Float64Data : AmpTest, ::testing::WithParamInterface<const char*> {
  at::ScalarType low() const { return std::string(GetParam()) == "O4" ? torch::kBFloat16 : torch::kHalf; }

  const Tensor wide = torch::rand({4, 4}, torch::kDouble) + 0.1;
  Mlp model;
};
INSTANTIATE_TEST_SUITE_P(Levels, Float64Data, ::testing::Values("O1", "O4"), [](const auto& test) { return test.param; });

/// Apex does not cast preprocessing and evaluation in float64 on the CPU.
TEST_P(Float64Data, StaysFloat64OutsideModels) {
  const std::vector<std::pair<const char*, std::function<Tensor()>>> calls = {
      {"matmul", [&] { return torch::matmul(wide, wide); }},
      {"linear", [&] { return torch::linear(wide, wide); }},
      {"conv1d",
       [&] {
         return torch::conv1d(wide.unsqueeze(0), wide.unsqueeze(1).expand({4, 4, 4}));
       }},
      {"einsum",
       [&] {
         return torch::einsum("ij,jk->ik", {wide, wide});
       }},
      {"exp", [&] { return torch::exp(wide); }},
      {"sum", [&] { return wide.sum(); }},
      {"std", [&] { return wide.std(0); }},
      {"norm", [&] { return torch::norm(wide); }},
      {"softmax", [&] { return torch::softmax(wide, 1); }},
      {"mse_loss", [&] { return torch::mse_loss(wide, wide.t()); }},
      {"a chain", [&] { return wide.detach().mm(wide).softmax(1).log(); }},
      {"pow_", [&] { return wide.clone().pow_(wide); }},
  };
  std::vector<Tensor> plain;
  for (const auto& [name, call] : calls) plain.push_back(call());
  auto net = amp::initialize(model, GetParam(), quiet());
  for (size_t i = 0; i < calls.size(); ++i) {
    const Tensor got = calls[i].second();
    EXPECT_EQ(got.scalar_type(), torch::kDouble) << calls[i].first;
    EXPECT_TRUE(torch::equal(got, plain[i])) << calls[i].first;
  }
}

TEST_P(Float64Data, IsCastWithGradientsBesideOtherDtypesAndOnRequest) {
  auto net = amp::initialize(model, GetParam(), quiet());
  const Tensor leaf = wide.detach().clone().requires_grad_();
  EXPECT_EQ(torch::matmul(leaf, wide).scalar_type(), low());
  EXPECT_EQ(leaf.exp().scalar_type(), torch::kFloat);
  EXPECT_EQ(torch::matmul(wide, torch::ones({4, 4})).scalar_type(), low());
  EXPECT_EQ(model->forward(features().to(torch::kDouble)).scalar_type(), low()) << "the original, whose weights are FP32";
  EXPECT_EQ(amp::float_function([](const Tensor& x) { return x.clone(); })(wide).scalar_type(), torch::kFloat);
  amp::register_half_function("aten::mish");
  EXPECT_EQ(torch::mish(wide).scalar_type(), low());
  amp::unregister_function("aten::mish");
}

/// Constants made in the forward are cast like GPU constants in Apex.
TEST_P(Float64Data, IsCastWithinAHandlesForward) {
  struct ConstantImpl : torch::nn::Module {
    Tensor forward(const Tensor& x) {
      type = torch::mm(constant, constant).scalar_type();
      return fc(x);
    }
    Tensor constant = torch::ones({2, 2}, torch::kDouble);
    at::ScalarType type = torch::kLong;
    torch::nn::Linear fc = register_module("fc", torch::nn::Linear(6, 3));
  };
  torch::nn::ModuleHolder<ConstantImpl> module(std::make_shared<ConstantImpl>());
  auto net = amp::initialize(module, GetParam(), quiet());
  net->forward(features());
  EXPECT_EQ(net->type, low());
}

/// The meta device stands in for a GPU. Apex casts no CPU tensors.
TEST_P(Float64Data, OnTheCpuStaysFloat64IfTheModelIsOnAnotherDevice) {
  struct ElsewhereImpl : torch::nn::Module {
    Tensor forward(const Tensor& x) { return x.mm(weight); }
    Tensor weight = register_parameter("weight", torch::ones({2, 2}, torch::kMeta));
  };
  torch::nn::ModuleHolder<ElsewhereImpl> elsewhere(std::make_shared<ElsewhereImpl>());
  auto net = amp::initialize(elsewhere, GetParam(), quiet());
  const Tensor single = wide.to(torch::kFloat), leaf = wide.detach().clone().requires_grad_();
  EXPECT_EQ(torch::matmul(single, single).scalar_type(), torch::kFloat);
  EXPECT_EQ(torch::matmul(leaf, wide).scalar_type(), torch::kDouble);
  EXPECT_EQ(leaf.exp().scalar_type(), torch::kDouble);
  EXPECT_EQ(single.to(low()).exp().scalar_type(), torch::kFloat) << "16 bits are widened";
  EXPECT_EQ(torch::matmul(single.to(low()), single).scalar_type(), low()) << "a mix that LibTorch refuses";
  const Tensor there = torch::ones({2, 2}, torch::kMeta);
  EXPECT_EQ(torch::matmul(there, there).scalar_type(), low());
}

TEST_F(Lists, NothingIsCastInsideOpaqueOperators) {
  const std::string without = "extensions: false\n";
  auto net = initialize(without + "casts:\n  opaque: [aten::inner]\n");
  EXPECT_EQ(torch::inner(single, single).dtype(), torch::kFloat);
  EXPECT_EQ(torch::mm(single, single).dtype(), torch::kHalf);
}

// It consists of products, and of comparisons of FP32 values with a float64 tolerance.
TEST_F(Lists, MatrixRankIsTheSameAsWithoutAmp) {
  auto net = initialize("extensions: true\n");
  EXPECT_EQ(torch::linalg_matrix_rank(torch::eye(3)).item<int64_t>(), 3);
  EXPECT_EQ(torch::linalg_matrix_rank(torch::ones({3, 3})).item<int64_t>(), 1);
}

TEST_F(Lists, MatchListsApplyAtO2) {
  auto net = initialize("match:\n  none: [aten::linear, aten::addmm]\n", "O2");
  EXPECT_TRUE(contains(message_of([&] { model->forward(features()); }), "dtype"));
}

TEST_F(Lists, AnyOperatorMatchesA16BitTensorInAList) {
  auto net = initialize("match:\n  half: [aten::hstack]\n", "O2");
  const Tensor bias = model->fc1->bias;
  EXPECT_EQ(torch::hstack({torch::ones({2}), bias}).dtype(), torch::kHalf);
  EXPECT_EQ(torch::hstack({torch::ones({2}), half.flatten()}).dtype(), torch::kHalf) << "no parameter among them";
  EXPECT_EQ(torch::hstack({torch::ones({2}), single.flatten()}).dtype(), torch::kFloat) << "one type alone";
}

TEST_F(Lists, AnUnknownOperatorIsAnErrorAndChangesNothing) {
  const std::string message = message_of([&] { initialize("casts:\n  half: [aten::no_such_operator]\n", "O4"); });
  EXPECT_TRUE(contains(message, "'aten::no_such_operator'"));
  EXPECT_THROW(amp::properties(), c10::Error);
  EXPECT_EQ(torch::mm(single, single).dtype(), torch::kFloat);
}

TEST_F(Lists, AllowBannedRunsInFloat32) {  // O1-01, O1-40, BUG-16
  auto net = amp::initialize(model, "O1", quiet());
  const std::string message = message_of([&] { torch::binary_cross_entropy(half, half); });
  EXPECT_TRUE(contains(message, "binary_cross_entropy_with_logits"));
  EXPECT_TRUE(contains(message, "allow_banned"));
  EXPECT_EQ(torch::binary_cross_entropy(single, single).dtype(), torch::kFloat);
  Mlp other;
  auto allowed = amp::initialize(other, "O1", quiet().allow_banned(true));
  EXPECT_EQ(torch::binary_cross_entropy(half, half).dtype(), torch::kFloat);
}

TEST_F(Lists, Tf32IsSwitchedOnlyOnRequest) {
  auto& context = at::globalContext();
  for (const bool before : {false, true}) {
    context.setAllowTF32CuBLAS(before);
    context.setAllowTF32CuDNN(before);
    Mlp first, second;
    auto alone = amp::initialize(first, "O0", quiet());
    EXPECT_EQ(context.allowTF32CuBLAS(), before);
    auto net = amp::initialize(second, "O0", quiet().allow_tf32(!before));
    EXPECT_EQ(context.allowTF32CuBLAS(), !before);
    EXPECT_EQ(context.allowTF32CuDNN(), !before);
  }
  context.setAllowTF32CuBLAS(false);
  context.setAllowTF32CuDNN(true);  // LibTorch's defaults
}

}  // namespace
}  // namespace apex::test
