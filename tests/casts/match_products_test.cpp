// Products, in-place writes and norms of FP32 and 16-bit tensors at O2, O3, O5 and O6, none of them a parameter: in a handle's
// forward, in the original model's and outside both, compared with programs that cast by hand.
#include <functional>

#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

struct ActivatedImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return call(fc(x)); }
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(6, 6));
  std::function<Tensor(const Tensor&)> call;
};
TORCH_MODULE(Activated);

enum class Place { handle, original, outside };

struct MixedCall {
  const char* name;
  std::vector<std::vector<int64_t>> shapes;
  std::function<Tensor(const Tensors&)> call;
};

const MixedCall kProducts[] = {
    {"mm", {{4, 6}, {6, 3}}, [](const Tensors& t) { return torch::mm(t[0], t[1]); }},
    {"mv", {{4, 6}, {6}}, [](const Tensors& t) { return torch::mv(t[0], t[1]); }},
    {"dot", {{6}, {6}}, [](const Tensors& t) { return torch::dot(t[0], t[1]); }},
    {"vdot", {{6}, {6}}, [](const Tensors& t) { return torch::vdot(t[0], t[1]); }},
    {"matmul", {{2, 4, 6}, {6, 3}}, [](const Tensors& t) { return torch::matmul(t[0], t[1]); }},
    {"inner", {{4, 6}, {3, 6}}, [](const Tensors& t) { return torch::inner(t[0], t[1]); }},
    {"tensordot", {{4, 6}, {6, 3}}, [](const Tensors& t) { return torch::tensordot(t[0], t[1], {1}, {0}); }},
    {"linalg_vecdot", {{4, 6}, {4, 6}}, [](const Tensors& t) { return torch::linalg_vecdot(t[0], t[1]); }},
    {"linalg_multi_dot", {{4, 6}, {6, 3}, {3, 5}}, [](const Tensors& t) { return torch::linalg_multi_dot(t); }},
    {"addmm", {{4, 3}, {4, 6}, {6, 3}}, [](const Tensors& t) { return torch::addmm(t[0], t[1], t[2]); }},
    {"addmv", {{4}, {4, 6}, {6}}, [](const Tensors& t) { return torch::addmv(t[0], t[1], t[2]); }},
    {"addr", {{4, 6}, {4}, {6}}, [](const Tensors& t) { return torch::addr(t[0], t[1], t[2]); }},
    {"bmm", {{2, 4, 6}, {2, 6, 3}}, [](const Tensors& t) { return torch::bmm(t[0], t[1]); }},
    {"baddbmm", {{2, 4, 3}, {2, 4, 6}, {2, 6, 3}}, [](const Tensors& t) { return torch::baddbmm(t[0], t[1], t[2]); }},
    {"addbmm", {{4, 3}, {2, 4, 6}, {2, 6, 3}}, [](const Tensors& t) { return torch::addbmm(t[0], t[1], t[2]); }},
    {"einsum", {{2, 4, 6}, {2, 6, 3}}, [](const Tensors& t) { return torch::einsum("bij,bjk->bik", t); }},
    {"einsum", {{2, 4, 6}, {2, 3, 6}}, [](const Tensors& t) { return torch::einsum("bij,bkj->bki", t); }},
    {"einsum", {{4, 6}, {4, 6}}, [](const Tensors& t) { return torch::einsum("ij,ij->ij", t); }},
    {"linear", {{2, 4, 6}, {3, 6}, {3}}, [](const Tensors& t) { return torch::linear(t[0], t[1], t[2]); }},
    {"bilinear", {{4, 6}, {4, 5}, {3, 6, 5}}, [](const Tensors& t) { return torch::bilinear(t[0], t[1], t[2]); }},
    {"prelu", {{4, 6}, {6}}, [](const Tensors& t) { return torch::prelu(t[0], t[1]); }},
    {"scaled_dot_product_attention",
     {{1, 2, 4, 6}, {1, 2, 4, 6}, {1, 2, 4, 6}},
     [](const Tensors& t) { return torch::scaled_dot_product_attention(t[0], t[1], t[2]); }},
    {"conv1d", {{2, 4, 9}, {3, 4, 3}, {3}}, [](const Tensors& t) { return torch::conv1d(t[0], t[1], t[2]); }},
    {"conv2d", {{2, 4, 5, 5}, {3, 4, 3, 3}, {3}}, [](const Tensors& t) { return torch::conv2d(t[0], t[1], t[2]); }},
    {"conv3d", {{1, 2, 4, 4, 4}, {3, 2, 3, 3, 3}, {3}}, [](const Tensors& t) { return torch::conv3d(t[0], t[1], t[2]); }},
    {"conv_transpose1d", {{2, 4, 5}, {4, 3, 3}}, [](const Tensors& t) { return torch::conv_transpose1d(t[0], t[1]); }},
    {"conv_transpose2d", {{2, 4, 5, 5}, {4, 3, 3, 3}}, [](const Tensors& t) { return torch::conv_transpose2d(t[0], t[1]); }},
    {"conv_transpose3d",
     {{1, 2, 3, 3, 3}, {2, 3, 2, 2, 2}},
     [](const Tensors& t) { return torch::conv_transpose3d(t[0], t[1]); }},
    {"conv_tbc", {{5, 2, 4}, {3, 4, 3}, {3}}, [](const Tensors& t) { return torch::conv_tbc(t[0], t[1], t[2]); }},
    {"convolution",
     {{2, 4, 5, 5}, {3, 4, 3, 3}},
     [](const Tensors& t) {
       return torch::convolution(t[0], t[1], {}, {1, 1}, {0, 0}, {1, 1}, false, {0, 0}, 1);
     }},
};

// FP32 input with computed 16-bit weights.
const MixedCall kNorms[] = {
    {"layer_norm", {{4, 6}, {6}, {6}}, [](const Tensors& t) { return torch::layer_norm(t[0], {6}, t[1], t[2]); }},
    {"group_norm", {{4, 6, 5}, {6}, {6}}, [](const Tensors& t) { return torch::group_norm(t[0], 2, t[1], t[2]); }},
    {"rms_norm", {{4, 6}, {6}}, [](const Tensors& t) { return torch::rms_norm(t[0], {6}, t[1]); }},
    {"batch_norm",
     {{4, 6, 5}, {6}, {6}},
     [](const Tensors& t) { return torch::batch_norm(t[0], t[1], t[2], {}, {}, true, 0.1, 1e-5, false); }},
    {"instance_norm",
     {{4, 6, 5}, {6}, {6}},
     [](const Tensors& t) { return torch::instance_norm(t[0], t[1], t[2], {}, {}, true, 0.1, 1e-5, false); }},
};

// The tensor that is written comes first.
const MixedCall kWrites[] = {
    {"addmm_", {{4, 3}, {4, 6}, {6, 3}}, [](const Tensors& t) { return t[0].clone().addmm_(t[1], t[2]); }},
    {"addmv_", {{4}, {4, 6}, {6}}, [](const Tensors& t) { return t[0].clone().addmv_(t[1], t[2]); }},
    {"addbmm_", {{4, 3}, {2, 4, 6}, {2, 6, 3}}, [](const Tensors& t) { return t[0].clone().addbmm_(t[1], t[2]); }},
    {"baddbmm_", {{2, 4, 3}, {2, 4, 6}, {2, 6, 3}}, [](const Tensors& t) { return t[0].clone().baddbmm_(t[1], t[2]); }},
    {"index_add_",
     {{4, 6}, {2, 6}},
     [](const Tensors& t) {
       return t[0].clone().index_add_(0, torch::tensor({0, 2}), t[1]);
     }},
    {"index_put_",
     {{4, 6}, {2, 6}},
     [](const Tensors& t) {
       return t[0].clone().index_put_({torch::tensor({0, 2})}, t[1]);
     }},
};

struct MatchProducts : AmpTest, ::testing::WithParamInterface<const char*> {
  at::ScalarType low() const { return GetParam() >= std::string("O5") ? torch::kBFloat16 : torch::kHalf; }

  // FP32 leaves; those in `low_ones` become 16-bit activations, the results of an operator.
  struct Inputs {
    Tensors leaves, values;
  };
  Inputs inputs_of(const MixedCall& mixed, const std::function<bool(size_t)>& is_low) const {
    auto generator = at::detail::createCPUGenerator(7);
    Inputs inputs;
    for (size_t i = 0; i < mixed.shapes.size(); ++i) {
      inputs.leaves.push_back(torch::rand(mixed.shapes[i], generator).requires_grad_());
      inputs.values.push_back(is_low(i) ? (inputs.leaves.back() * 2).to(low()) : inputs.leaves.back());
    }
    return inputs;
  }

  // The result, then the gradients of the leaves, with `values` given as they are or cast by hand.
  Tensors result_and_grads(const MixedCall& mixed, const Inputs& inputs, const std::function<Tensor(const Tensor&)>& by_hand,
                           Place place, const amp::InitializeOptions& options = quiet()) const {
    Activated model;
    Tensor result;
    model->call = [&](const Tensor& x) {
      Tensors values;
      for (const Tensor& value : inputs.values) values.push_back(by_hand(value));
      result = mixed.call(values);
      return x;
    };
    auto net = amp::initialize(model, GetParam(), options);
    if (place == Place::handle) net->forward(features());
    if (place == Place::original) model->forward(features());
    if (place == Place::outside) model->call(features());
    Tensors results = torch::autograd::grad({result.to(torch::kFloat).square().sum()}, inputs.leaves);
    results.insert(results.begin(), result.detach());
    amp::reset();
    return results;
  }

  // Each tensor in turn has another dtype than the rest.
  void expect_as_by_hand(const MixedCall& mixed, size_t first_low, at::ScalarType type) const {
    for (size_t odd = first_low; odd < mixed.shapes.size(); ++odd) {
      for (const bool odd_is_low : {true, false}) {
        if (first_low > 0 && !odd_is_low) continue;
        const auto is_low = [&](size_t i) { return (i == odd) == odd_is_low; };
        const auto cast = [&](const Tensor& t) { return t.to(type); };
        for (const Place place : {Place::handle, Place::original, Place::outside}) {
          const auto given = inputs_of(mixed, is_low), by_hand = inputs_of(mixed, is_low);
          const auto got = result_and_grads(
              mixed, given, [](const Tensor& t) { return t; }, place);
          const auto want = result_and_grads(mixed, by_hand, cast, place);
          for (size_t i = 0; i < want.size(); ++i) {
            EXPECT_EQ(got[i].dtype(), i == 0 ? type : torch::kFloat) << mixed.name;
            EXPECT_TRUE(torch::equal(got[i], want[i]))
                << mixed.name << " " << odd << odd_is_low << int(place) << " tensor " << i;
          }
        }
      }
    }
  }
};

TEST_P(MatchProducts, RunInThe16BitTypeOfAnActivation) {
  for (const auto& product : kProducts) expect_as_by_hand(product, 0, low());
}

TEST_P(MatchProducts, NormsRunInTheDtypeOfComputedWeights) {
  for (const auto& norm : kNorms) expect_as_by_hand(norm, 1, low());
}

TEST_P(MatchProducts, DistancesOfMixedDtypesRunInFloat32) {
  const MixedCall cdist{"cdist", {{4, 6}, {3, 6}}, [](const Tensors& t) { return torch::cdist(t[0], t[1]); }};
  expect_as_by_hand(cdist, 0, torch::kFloat);
}

TEST_P(MatchProducts, InPlaceWritesCastToTheDestinationsDtype) {
  for (const auto& write : kWrites) {
    for (const bool into_low : {true, false}) {
      const auto type = into_low ? low() : torch::kFloat;
      const auto is_low = [&](size_t i) { return (i == 0) == into_low; };
      for (const Place place : {Place::handle, Place::original, Place::outside}) {
        const auto given = inputs_of(write, is_low), by_hand = inputs_of(write, is_low);
        const auto got = result_and_grads(
            write, given, [](const Tensor& t) { return t; }, place);
        const auto want = result_and_grads(
            write, by_hand, [&](const Tensor& t) { return t.to(type); }, place);
        EXPECT_EQ(got[0].dtype(), type) << write.name;
        for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(torch::equal(got[i], want[i])) << write.name << into_low << i;
      }
    }
  }
}

// Functions listed in float32_functions, with the operators that they consist of.
TEST_P(MatchProducts, RunInFloat32IfListedInFloat32Functions) {
  for (const auto& product : kProducts) {
    const auto kept = quiet().float32_functions(std::vector<std::string>{std::string("aten::") + product.name});
    const auto is_low = [](size_t i) { return i == 0; };
    for (const Place place : {Place::handle, Place::original, Place::outside}) {
      const auto given = inputs_of(product, is_low), by_hand = inputs_of(product, is_low);
      const auto got = result_and_grads(
          product, given, [](const Tensor& t) { return t; }, place, kept);
      const auto want = result_and_grads(
          product, by_hand, [](const Tensor& t) { return t.to(torch::kFloat); }, place);
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_EQ(got[i].dtype(), torch::kFloat) << product.name;
        EXPECT_TRUE(torch::equal(got[i], want[i])) << product.name << int(place) << i;
      }
    }
  }
}

// A listed product that is part of another also runs in FP32, on inputs that the outer one has cast.
TEST_P(MatchProducts, ListedProductsRunInFloat32WithinOthers) {
  const auto kept = quiet().float32_functions(std::vector<std::string>{"aten::bmm"});
  const MixedCall einsum{"einsum", {{2, 4, 6}, {2, 6, 3}}, [](const Tensors& t) { return torch::einsum("bij,bjk->bik", t); }};
  const auto is_low = [](size_t i) { return i == 0; };
  for (const Place place : {Place::handle, Place::original, Place::outside}) {
    const auto given = inputs_of(einsum, is_low), by_hand = inputs_of(einsum, is_low);
    const auto got = result_and_grads(
        einsum, given, [](const Tensor& t) { return t; }, place, kept);
    const auto want = result_and_grads(
        einsum, by_hand, [&](const Tensor& t) { return t.to(low()).to(torch::kFloat); }, place);
    for (size_t i = 0; i < want.size(); ++i) EXPECT_TRUE(torch::equal(got[i], want[i])) << int(place) << i;
  }
}

// Attention with FP32 scores: the next product takes them together with 16-bit values.
TEST_P(MatchProducts, Float32ScoresAreMultipliedWith16BitValues) {
  Activated model;
  model->call = [](const Tensor& x) {
    const Tensor scores = torch::einsum("ij,kj->ik", {x, x});
    EXPECT_EQ(scores.dtype(), torch::kFloat);
    return torch::mm(torch::softmax(scores, 1), x);
  };
  auto net = amp::initialize(model, GetParam(), quiet().float32_functions(std::vector<std::string>{"aten::einsum"}));
  const Tensor output = model->forward(features());
  EXPECT_EQ(output.dtype(), low());
  EXPECT_TRUE(torch::equal(output.to(torch::kFloat), net->forward(features())));
}

TEST_P(MatchProducts, AnUnlistedOperatorIsAnErrorThatFloat32FunctionsFixes) {
  const auto is_close = [this](const amp::InitializeOptions& options) {
    Activated model;
    auto net = amp::initialize(model, GetParam(), options);
    // A rounding to BF16 is off by 2^-8 of the value at most.
    return torch::allclose(features(), features().to(low()), 1.0 / 256, 0);
  };
  EXPECT_THROW(is_close(quiet()), c10::Error);
  amp::reset();
  EXPECT_TRUE(is_close(quiet().float32_functions(std::vector<std::string>{"aten::allclose"})));
}

INSTANTIATE_TEST_SUITE_P(Levels, MatchProducts, ::testing::Values("O2", "O3", "O5", "O6"),
                         [](const auto& test) { return test.param; });

}  // namespace
}  // namespace apex::test
