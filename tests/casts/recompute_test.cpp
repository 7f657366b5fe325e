// A forward pass that is recomputed within backward, as activation checkpointing does, is cast like the first one.
#include <functional>
#include <tuple>

#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

using Part = std::function<Tensor(const Tensor&)>;

struct Checkpointed : torch::autograd::Function<Checkpointed> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Part* part) {
    context->save_for_backward({x});
    context->saved_data["part"] = reinterpret_cast<int64_t>(part);
    return (*part)(x);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const Tensor x = context->get_saved_variables()[0].detach().requires_grad_();
    const auto* part = reinterpret_cast<const Part*>(context->saved_data["part"].toInt());
    const at::AutoGradMode with_grad(true);
    torch::autograd::backward({(*part)(x)}, {grads[0]});
    return {x.grad(), Tensor()};
  }
};

/// Its exp() overflows float16.
struct ExpNetImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) {
    const Tensor h = torch::tanh(first(x));
    const Tensor middle_of_h = checkpoints ? Checkpointed::apply(h, &part) : part(h);
    return last(middle_of_h.to(torch::kFloat) * 0x1p-17);
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 8)),
                    middle = register_module("middle", torch::nn::Linear(8, 8)),
                    last = register_module("last", torch::nn::Linear(8, 3));
  Part part = [this](const Tensor& h) { return torch::exp(middle(h) + 11.5); };
  bool checkpoints = false;
};
TORCH_MODULE(ExpNet);

// FP64 data of a program stays wide outside of a handle's forward alone, and a recomputed part is inside of it.
TEST_F(AmpTest, AFloat64ConstantOfAHandlesForwardIsCastAgain) {
  ExpNet model;
  model->checkpoints = true;
  std::vector<at::ScalarType> types;
  model->part = [&types](const Tensor& h) {
    const Tensor constant = torch::ones({2, 2}, torch::kDouble);
    types.push_back(constant.mm(constant).scalar_type());
    return h * 2;
  };
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O1", quiet().loss_scale(8.0));
  { amp::scale_loss(net->forward(features()).square().mean(), opt).backward(); }
  EXPECT_EQ(types, std::vector<at::ScalarType>(2, torch::kHalf));
}

/// A level, and whether the pass keeps its graph.
class RecomputedPart : public AmpTest, public ::testing::WithParamInterface<std::tuple<const char*, bool>> {
 protected:
  static std::vector<Tensor> grads(bool checkpoints) {
    const auto [level, retains] = GetParam();
    torch::manual_seed(3);
    ExpNet model;
    model->checkpoints = checkpoints;
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    const auto of_yaml =
        amp::OptLevel::from_yaml_string(std::string("opt_level: ") + level + "\nfloat32_functions: [aten::exp]\n");
    auto [net, opt] = amp::initialize(model, optimizer, of_yaml, quiet().loss_scale(8.0));
    {
      auto scaled_loss = amp::scale_loss(net->forward(features()).square().mean(), opt);
      scaled_loss.backward({}, retains);
    }
    std::vector<Tensor> grads;
    for (const Tensor& master : amp::master_params(opt)) grads.push_back(master.grad().clone());
    return grads;
  }
};
INSTANTIATE_TEST_SUITE_P(Levels, RecomputedPart,
                         ::testing::Combine(::testing::Values("O0", "O1", "O2", "O4", "O5", "O6"), ::testing::Bool()));

TEST_P(RecomputedPart, GivesTheGradientsOfTheDirectPass) {
  const auto direct = grads(false), checkpointed = grads(true);
  for (size_t i = 0; i < direct.size(); ++i) {
    EXPECT_TRUE(direct[i].isfinite().all().item<bool>()) << i;
    EXPECT_TRUE(checkpointed[i].equal(direct[i])) << i;
  }
}

class RecomputeAtO1 : public AmpTest {
 protected:
  /// The dtypes of a product in the forward pass and in its recomputation.
  template <class Apply>
  std::vector<at::ScalarType> types_of_product(const Apply& apply) {
    types.clear();
    apply(part).sum().backward();
    return types;
  }
  const Tensor x = torch::ones({3, 3}).requires_grad_(), weight = torch::ones({3, 3});
  std::vector<at::ScalarType> types;
  const Part part = [this](const Tensor& input) {
    const Tensor product = input.mm(weight);
    types.push_back(product.scalar_type());
    return product.to(torch::kFloat);
  };
  Mlp model;
  torch::optim::SGD optimizer{model->parameters(), 0.1};
};

// The block's backward pass uses the rules of its session, O1; what the thread computed without casts is computed so again.
TEST_F(RecomputeAtO1, OutsideOfAHandleFollowsTheThreadInABlockOfAnEarlierSession) {
  for (const bool resets : {true, false}) {
    Mlp mine, other;
    torch::optim::SGD of_mine(mine->parameters(), 0.1), of_other(other->parameters(), 0.1);
    auto [net, opt] = amp::initialize(mine, of_mine, "O1", quiet().loss_scale(8.0));
    if (resets) {
      amp::reset();
    } else {
      const auto later = amp::initialize(other, of_other, "O2", quiet());
    }
    types.clear();
    const Part square = [this](const Tensor& input) {
      const Tensor product = input.to(torch::kFloat).mm(torch::ones({input.size(1), 2}));
      types.push_back(product.scalar_type());
      return product.to(torch::kFloat);
    };
    { amp::scale_loss(Checkpointed::apply(net->forward(features()), &square).sum(), opt).backward(); }
    EXPECT_EQ(types, std::vector<at::ScalarType>(2, torch::kFloat)) << resets;
    amp::reset();
  }
}

TEST_F(RecomputeAtO1, IsNotCastIfTheForwardWasNot) {
  auto [net, opt] = amp::initialize(model, optimizer, "O1", quiet().loss_scale(1.0));
  const auto without_casts = [&](const Part& of) {
    const amp::disable_casts off;
    return Checkpointed::apply(x, &of);
  };
  EXPECT_EQ(types_of_product(without_casts), std::vector<at::ScalarType>(2, torch::kFloat));
  const Part part_without_casts = [&](const Tensor& input) {
    const amp::disable_casts off;
    return part(input);
  };
  EXPECT_EQ(types_of_product([&](const Part&) { return Checkpointed::apply(x, &part_without_casts); }),
            std::vector<at::ScalarType>(2, torch::kFloat));
  EXPECT_EQ(types_of_product([&](const Part& of) { return Checkpointed::apply(x, &of); }),
            std::vector<at::ScalarType>(2, torch::kHalf));
}

/// A product with a custom backward.
struct OwnProduct : torch::autograd::Function<OwnProduct> {
  static Tensor forward(AutogradContext* context, const Tensor& x, const Tensor& weight) {
    context->save_for_backward({weight});
    return x.mm(weight);
  }
  static variable_list backward(AutogradContext* context, variable_list grads) {
    const Tensor grad = grads[0].mm(context->get_saved_variables()[0].t());
    formula_type = grad.scalar_type();
    return {grad, Tensor()};
  }
  static inline at::ScalarType formula_type;
};

// Backward formulas of LibTorch and of the program: with create_graph they run in grad mode, like a recomputation.
TEST_F(RecomputeAtO1, BackwardFormulasWithCreateGraphAreNotRecomputation) {
  auto [net, opt] = amp::initialize(model, optimizer, "O1", quiet().loss_scale(1.0));
  Tensor own, built_in;
  {
    const amp::disable_casts off;
    own = OwnProduct::apply(x, weight);
    built_in = x.mm(weight * 4e4).square();  // beyond float16
  }
  torch::autograd::grad({own.sum()}, {x}, {}, /*retain_graph=*/std::nullopt, /*create_graph=*/true);
  EXPECT_EQ(OwnProduct::formula_type, torch::kFloat);
  const Tensor grad = torch::autograd::grad({built_in.sum()}, {x}, {}, /*retain_graph=*/false, /*create_graph=*/true)[0];
  EXPECT_TRUE(grad.isfinite().all().item<bool>()) << grad;
}

/// A loss outside the handle's forward that is recomputed.
TEST_F(AmpTest, ALossOutsideTheHandleIsRecomputedInFloat32) {
  for (const char* level : {"O2", "O5"}) {
    Mlp model;
    torch::optim::SGD optimizer(model->parameters(), 0.1);
    auto [net, opt] = amp::initialize(model, optimizer, level, quiet().loss_scale(1.0));
    std::vector<at::ScalarType> types;
    const Part loss = [&](const Tensor& out) {
      const Tensor value = torch::mse_loss(out, torch::zeros_like(out));
      return types.push_back(value.scalar_type()), value;
    };
    amp::scale_loss(Checkpointed::apply(model->forward(features()), &loss), opt).backward();
    EXPECT_EQ(types, std::vector<at::ScalarType>(2, torch::kFloat)) << level;
  }
}

/// A product of a 16-bit activation and an FP32 tensor, in the original's forward.
TEST_F(AmpTest, AMixedProductInTheOriginalIsRecomputedIn16Bits) {
  for (const char* level : {"O2", "O3", "O5", "O6"}) {
    Mlp model;
    auto net = amp::initialize(model, level, quiet());
    const Tensor wide = torch::linspace(-1, 1, 9).view({3, 3});
    std::vector<at::ScalarType> types;
    const Part product = [&](const Tensor& out) {
      const Tensor mixed = out.mm(wide);
      return types.push_back(mixed.scalar_type()), mixed;
    };
    const auto grad_of = [&](const Tensor& result) {
      return torch::autograd::grad({result.to(torch::kFloat).square().sum()}, {model->fc1->weight})[0];
    };
    const Tensor checkpointed = grad_of(Checkpointed::apply(model->forward(features()), &product));
    EXPECT_TRUE(checkpointed.equal(grad_of(product(model->forward(features()))))) << level;
    EXPECT_EQ(types, std::vector<at::ScalarType>(3, model->fc1->weight.scalar_type())) << level;
    amp::reset();
  }
}

TEST_F(AmpTest, WrappedFunctionsCastDuringRecomputation) {
  Mlp model;
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O1", quiet().loss_scale(1.0));
  std::vector<at::ScalarType> types;
  const auto in_half = amp::half_function([&](const Tensor& x) { return types.push_back(x.scalar_type()), x * 2; });
  const Part part = [&](const Tensor& x) { return in_half(x).to(torch::kFloat); };
  Checkpointed::apply(torch::ones({3}).requires_grad_(), &part).sum().backward();
  EXPECT_EQ(types, (std::vector<at::ScalarType>{torch::kHalf, torch::kHalf}));
}

}  // namespace
}  // namespace apex::test
