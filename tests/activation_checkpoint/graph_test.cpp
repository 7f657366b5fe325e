// The graph that a checkpoint leaves behind: what it gives autograd, and what it refuses.
#include <ATen/autocast_mode.h>
#include <apex_cpp/activation_checkpoint.h>
#include <apex_cpp/optimizers.h>

#include <thread>

#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;
using Tensors = std::vector<Tensor>;

Tensor values(at::IntArrayRef sizes, uint64_t seed) {
  torch::manual_seed(seed);
  return torch::randn(sizes);
}

/// The gradients of these leaves, which are cleared.
Tensors grads_of(const Tensors& leaves) {
  Tensors grads;
  for (Tensor leaf : leaves) {
    grads.push_back(leaf.grad().defined() ? leaf.grad().clone() : Tensor());
    leaf.mutable_grad() = Tensor();
  }
  return grads;
}

void expect_same(const Tensors& now, const Tensors& expected) {
  ASSERT_EQ(now.size(), expected.size());
  for (size_t i = 0; i < now.size(); ++i) {
    ASSERT_EQ(now[i].defined(), expected[i].defined()) << i;
    EXPECT_TRUE(!now[i].defined() || now[i].equal(expected[i])) << i;
  }
}

TEST(Checkpoint, GivesTheGradientsOfAPlainCall) {
  const Tensor x = values({5, 4}, 1).requires_grad_(), weight = values({3, 4}, 2).requires_grad_(), unused = x.detach();
  const auto function = [&](const Tensor& input) { return torch::tanh(torch::linear(input, weight)); };
  function(x).square().sum().backward();
  const auto expected = grads_of({x, weight});
  const Tensor result = checkpoint(function, x);
  EXPECT_TRUE(result.equal(function(x)));
  result.square().sum().backward();
  expect_same(grads_of({x, weight}), expected);
  // Parameters get gradients also where no input needs one.
  checkpoint(function, unused).square().sum().backward();
  expect_same(grads_of({weight}), {expected[1]});
}

// Autograd makes the node of such a view when it is asked for it: it must not be one of the segment's.
TEST(Checkpoint, TakesAViewOfATensorThatWasWrittenSince) {
  const Tensor x = values({5, 4}, 1).requires_grad_(), weight = values({4, 4}, 2).requires_grad_();
  const auto block = [&](const Tensor& input) { return torch::tanh(torch::linear(input, weight)); };
  const auto gradients = [&](const std::function<Tensor(const Tensor&)>& call) {
    Tensor tokens = x * 1;
    const Tensor view = tokens.slice(0, 1);
    tokens.add_(2);
    (call(view) + view).sum().backward({}, /*retain_graph=*/true);
    view.square().sum().backward();
    return grads_of({x, weight});
  };
  expect_same(gradients([&](const Tensor& view) { return checkpoint(block, view); }), gradients(block));
}

TEST(Checkpoint, RunsOnOtherDevices) {
  const Tensor x = torch::ones({5, 4}, torch::kMeta).requires_grad_();
  const Tensor result = checkpoint([](const Tensor& input) { return input.square(); }, x);
  EXPECT_TRUE(result.is_meta());
  result.sum().backward();
  EXPECT_EQ(x.grad().sizes(), x.sizes());
}

TEST(Checkpoint, TakesAndGivesSeveralTensorsAndOtherValues) {
  const Tensor a = values({3, 3}, 1).requires_grad_(), b = values({3, 3}, 2).requires_grad_(), none;
  const auto function = [](const Tensor& x, const Tensors& list, double factor, const std::string& name,
                           const Tensor& undefined) {
    EXPECT_FALSE(undefined.defined());
    EXPECT_EQ(name, "name");
    return std::make_tuple(x.matmul(list[0]) * factor, list[1].sigmoid(), list[0].gt(0));
  };
  const auto [p, q, flags] = function(a, {b, a}, 3.0, "name", none);
  (p.sum() + q.square().sum()).backward();
  const auto expected = grads_of({a, b});
  const auto [r, s, t] = checkpoint(function, a, Tensors{b, a}, 3.0, std::string("name"), none);
  EXPECT_TRUE(r.equal(p) && s.equal(q) && t.equal(flags));
  EXPECT_FALSE(t.requires_grad());
  (r.sum() + s.square().sum()).backward();
  expect_same(grads_of({a, b}), expected);
  // One result alone.
  std::get<1>(function(a, {b, a}, 3.0, "name", none)).sum().backward();
  const auto of_second = grads_of({a, b});
  std::get<1>(checkpoint(function, a, Tensors{b, a}, 3.0, std::string("name"), none)).sum().backward();
  expect_same(grads_of({a, b}), of_second);
}

TEST(Checkpoint, GivesUndefinedResultsAsTheyAre) {
  const Tensor x = values({4}, 1).requires_grad_();
  const auto [square, none] = checkpoint([](const Tensor& input) { return std::make_tuple(input.square(), Tensor()); }, x);
  EXPECT_FALSE(none.defined());
  square.sum().backward();
  EXPECT_TRUE(x.grad().equal(2 * x.detach()));
}

// A sparse tensor has no storage that it could share.
TEST(Checkpoint, GivesSparseResultsBesideDenseOnes) {
  const Tensor x = values({2, 3}, 1).requires_grad_();
  const auto [twice, sparse] =
      checkpoint([](const Tensor& input) { return std::make_tuple(input * 2, input.detach().relu().to_sparse()); }, x);
  EXPECT_TRUE(sparse.is_sparse());
  EXPECT_TRUE(sparse.to_dense().equal(x.detach().relu()));
  twice.sum().backward();
  EXPECT_TRUE(x.grad().equal(torch::full({2, 3}, 2.0)));
}

TEST(Checkpoint, GivesVectorsPairsAndItsOwnInputs) {
  const Tensor a = values({3}, 1).requires_grad_(), w = values({3}, 2).requires_grad_();
  const auto list = checkpoint([&](const Tensor& x) { return Tensors{x, w, x * w}; }, a);
  ASSERT_EQ(list.size(), 3U);
  (list[0] * 2 + list[1] * 3 + list[2]).sum().backward();
  EXPECT_TRUE(a.grad().equal(w.detach() + 2) && w.grad().equal(a.detach() + 3));
  const auto [first, second] = checkpoint([](const Tensor& x) { return std::make_pair(x.exp(), x.detach()); }, a);
  EXPECT_TRUE(first.requires_grad());
  EXPECT_FALSE(second.requires_grad());
}

TEST(Checkpoint, CallsTheFunctionOnceAndOnceMoreInTheBackwardPass) {
  int calls = 0;
  const Tensor x = values({4}, 1).requires_grad_();
  const Tensor y = checkpoint([&calls](const Tensor& input) { return ++calls, input.exp().exp(); }, x);
  EXPECT_EQ(calls, 1);
  y.sum().backward();
  EXPECT_EQ(calls, 2);
  const torch::NoGradGuard no_grad;
  EXPECT_FALSE(checkpoint([&calls](const Tensor& input) { return ++calls, input.exp(); }, x).requires_grad());
  EXPECT_EQ(calls, 3);
}

TEST(Checkpoint, KeepsNoActivations) {
  const Tensor x = values({4}, 1).requires_grad_();
  c10::weak_intrusive_ptr<c10::TensorImpl> inner(at::zeros({}).getIntrusivePtr());
  const Tensor y = checkpoint(
      [&inner](const Tensor& input) {
        const Tensor activation = input.exp();
        inner = c10::weak_intrusive_ptr<c10::TensorImpl>(activation.getIntrusivePtr());
        return activation.exp();  // saves its result, and the node of `activation` saves that
      },
      x);
  EXPECT_TRUE(inner.expired());
  EXPECT_TRUE(y.requires_grad());
}

TEST(Checkpoint, NestsAndJoinsGraphsOnBothSides) {
  const Tensor x = values({3, 3}, 1).requires_grad_(), w = values({3, 3}, 2).requires_grad_(),
               v = values({3, 3}, 3).requires_grad_();
  const auto run = [&](bool checkpoints) {
    const auto inner = [&](const Tensor& input) { return torch::tanh(input.matmul(v)); };
    const Tensor outside = (x * w).sin();  // captured below: not a leaf
    const auto outer = [&](const Tensor& input) {
      const Tensor h = input.matmul(w) + outside;
      return (checkpoints ? checkpoint(inner, h) : inner(h)).exp();
    };
    const Tensor before = x.cos();
    ((checkpoints ? checkpoint(outer, before) : outer(before)) + outside.square()).sum().backward();
    return grads_of({x, w, v});
  };
  const auto expected = run(false);
  expect_same(run(true), expected);
}

// In the thread of the backward pass, the nodes of the inner checkpoint's input have numbers of another thread.
TEST(Checkpoint, NestsOnAnInputThatIsNoLeafInAnyThread) {
  const Tensor x = values({3, 3}, 1).requires_grad_(), w = values({3, 3}, 2).requires_grad_();
  const auto run = [&](bool checkpoints) {
    const auto inner = [&](const Tensor& input) { return torch::tanh(input.matmul(w)); };
    const auto outer = [&](const Tensor& input) { return checkpoints ? checkpoint(inner, input) : inner(input); };
    const Tensor h = (x * 2).sin().cos();
    const Tensor loss = (checkpoints ? checkpoint(outer, h) : outer(h)).sum();
    std::thread([&] { loss.backward(); }).join();
    return grads_of({x, w});
  };
  const auto expected = run(false);
  expect_same(run(true), expected);
}

TEST(Checkpoint, RunsHooksOnce) {
  const Tensor x = values({3}, 1).requires_grad_(), w = values({3}, 2).requires_grad_();
  int leaf_hooks = 0, inner_hooks = 0;
  w.register_hook([&](const Tensor& grad) { return ++leaf_hooks, grad * 2; });
  const Tensor captured = x.exp();
  captured.register_hook([&](const Tensor& grad) { return ++inner_hooks, grad * 3; });
  checkpoint([&](const Tensor& input) { return input * w * captured; }, x).sum().backward();
  EXPECT_EQ(leaf_hooks, 1);
  EXPECT_EQ(inner_hooks, 1);
  EXPECT_TRUE(w.grad().equal(2 * (x * x.exp()).detach()));
  EXPECT_TRUE(x.grad().equal((w * captured + 3 * (x * w) * captured).detach()));
}

TEST(Checkpoint, KeepsItsGraphIfAsked) {
  const Tensor x = values({4}, 1).requires_grad_();
  const Tensor y = checkpoint([](const Tensor& input) { return input.exp().sin(); }, x).sum();
  y.backward({}, /*retain_graph=*/true);
  const auto once = grads_of({x});
  y.backward();
  expect_same(grads_of({x}), once);
  EXPECT_TRUE(contains(message_of([&] { y.backward(); }), "second time"));
}

TEST(Checkpoint, HasSecondDerivatives) {
  const Tensor x = values({4}, 1).to(torch::kDouble).requires_grad_(), w = values({4}, 2).to(torch::kDouble).requires_grad_();
  const auto penalty = [&](bool checkpoints) {
    const auto function = [&](const Tensor& input) { return (input * w).sin().exp(); };
    const Tensor y = checkpoints ? checkpoint(function, x) : function(x);
    const Tensor grad = torch::autograd::grad({y.sum()}, {x}, {}, /*retain_graph=*/true, /*create_graph=*/true)[0];
    (grad.square().sum() + y.sum()).backward();
    return grads_of({x, w});
  };
  const auto expected = penalty(false), grads = penalty(true);
  // Both terms of a gradient meet at its end, and not at each node. With x below 0.7 and w below 1.3 no term is above 35; each
  // is rounded twelve times at most, on both sides.
  for (size_t i = 0; i < grads.size(); ++i) EXPECT_TRUE(grads[i].allclose(expected[i], 0, 2 * 12 * 35 * 0x1p-53)) << i;
}

TEST(Checkpoint, RepeatsDropoutAndLeavesTheGeneratorAlone) {
  const Tensor x = values({100}, 1).requires_grad_();
  const auto function = [](const Tensor& input) { return torch::dropout(input, 0.5, true).square() * torch::rand({100}); };
  torch::manual_seed(7);
  function(x).sum().backward();
  const Tensor next = torch::rand({3});
  const auto expected = grads_of({x});
  torch::manual_seed(7);
  const Tensor y = checkpoint(function, x).sum();
  const Tensor between = torch::rand({3});
  y.backward();
  EXPECT_TRUE(between.equal(next));
  expect_same(grads_of({x}), expected);
  torch::manual_seed(7);
  function(x);
  torch::rand({3});
  EXPECT_TRUE(torch::rand({5}).equal([&] {
    torch::manual_seed(7);
    const Tensor again = checkpoint(function, x).sum();
    torch::rand({3});
    again.backward();
    return torch::rand({5});
  }()));
  grads_of({x});
}

TEST(Checkpoint, ComputesUnderTheAutocastOfTheForwardPass) {
  const Tensor x = values({4, 4}, 1).requires_grad_(), w = values({4, 4}, 2).requires_grad_();
  const auto function = [&](const Tensor& input) { return input.matmul(w).square().matmul(w); };
  const auto run = [&](bool checkpoints) {
    Tensor y;
    {
      const amp::autocast casts(torch::kCPU, torch::kBFloat16);
      y = checkpoints ? checkpoint(function, x) : function(x);
    }
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    y.to(torch::kFloat).sum().backward();
    return grads_of({x, w});
  };
  const auto expected = run(false);
  // `w` is cast for each of its uses, while the plain call casts it once and rounds the sum of both gradients to bfloat16: by
  // 2^-8 of it at most.
  const auto grads = run(true);
  EXPECT_TRUE(grads[0].equal(expected[0]));
  EXPECT_TRUE(grads[1].allclose(expected[1], 0x1p-8, 0));
  EXPECT_FALSE(at::autocast::is_autocast_enabled(torch::kCPU)) << "the backward pass has switched it off again";
}

TEST(Checkpoint, RunsInBackwardPassesOfSeveralThreads) {
  const auto function = [](const Tensor& input) { return input.exp().sin(); };
  const auto train = [&](bool checkpoints) {
    const Tensor x = at::arange(64, at::kFloat).div(64).requires_grad_();
    for (int i = 0; i < 20; ++i) (checkpoints ? checkpoint(function, x) : function(x)).sum().backward();
    return Tensors{x.grad()};
  };
  const auto expected = train(false);
  ASSERT_TRUE(expected[0].defined());
  std::vector<std::thread> threads;
  std::vector<Tensors> grads(4);
  for (auto& mine : grads) threads.emplace_back([&train, &mine] { mine = train(true); });
  for (auto& thread : threads) thread.join();
  for (const auto& mine : grads) expect_same(mine, expected);
}

TEST(Checkpoint, PassesExceptionsOnAndRestoresTheThread) {
  const bool cache = at::autocast::is_autocast_cache_enabled();
  const Tensor x = values({4}, 1).requires_grad_();
  EXPECT_THROW(checkpoint([](const Tensor&) -> Tensor { throw std::runtime_error("forward"); }, x), std::runtime_error);
  int calls = 0;
  const Tensor y = checkpoint(
      [&calls](const Tensor& input) {
        if (++calls > 1) throw std::runtime_error("again");
        return input.exp();
      },
      x);
  EXPECT_EQ(message_of([&] { y.sum().backward(); }), "again");
  EXPECT_EQ(at::autocast::is_autocast_cache_enabled(), cache);
  checkpoint([](const Tensor& input) { return input.exp(); }, x).sum().backward();
  EXPECT_TRUE(x.grad().equal(x.detach().exp()));
}

TEST(Checkpoint, RefusesAFunctionThatComputesSomethingElse) {
  const Tensor x = values({4}, 1).requires_grad_(), w = values({4}, 2).requires_grad_();
  int calls = 0;
  const auto error_of = [&](const std::function<Tensors(const Tensor&, bool)>& function) {
    calls = 0;
    const auto results = checkpoint([&](const Tensor& input) { return function(input, ++calls > 1); }, x);
    return message_of([&] { results[0].sum().backward(); });
  };
  EXPECT_TRUE(contains(error_of([](const Tensor& input, bool again) { return Tensors{again ? input.exp()[0] : input.exp()}; }),
                       "result 0 of the function was Float[4], and Float[]"));
  EXPECT_TRUE(contains(error_of([](const Tensor& input, bool again) { return Tensors{again ? Tensor() : input.exp()}; }),
                       "result 0 of the function was Float[4], and undefined"));
  EXPECT_TRUE(contains(
      error_of([](const Tensor& input, bool again) { return Tensors{again ? input.exp().to(torch::kDouble) : input.exp()}; }),
      "result 0 of the function was Float[4], and Double[4]"));
  EXPECT_TRUE(contains(error_of([](const Tensor& input, bool again) { return again ? Tensors{} : Tensors{input.exp()}; }),
                       "returned 1 tensors, and 0"));
  EXPECT_TRUE(contains(error_of([&](const Tensor& input, bool again) { return Tensors{again ? input * w : input.exp()}; }),
                       "used a parameter that it had not used before"));
}

TEST(Checkpoint, GivesNoGradientIfTheSecondCallHasNoGraph) {
  const Tensor x = values({4}, 1).requires_grad_();
  int calls = 0;
  const auto result = checkpoint([&](const Tensor& input) { return ++calls > 1 ? input.detach().exp() : input.exp(); }, x);
  result.sum().backward();
  EXPECT_EQ(calls, 2);
  EXPECT_FALSE(x.grad().defined());
}

Tensor doubled(const Tensor& x) { return x * 2; }

TEST(Checkpoint, TakesFunctionsListsAndPairs) {
  const Tensor x = values({2, 3}, 1).requires_grad_();
  EXPECT_TRUE(checkpoint(doubled, x).equal(x * 2));
  Tensor sum;
  {
    const Tensor like = at::zeros({3, 2});
    const auto shaped = [](const Tensor& input, at::IntArrayRef sizes, const char* name, const std::pair<int, Tensor>& pair) {
      EXPECT_STREQ(name, "literal");
      return input.exp().reshape(sizes) * pair.first;
    };
    sum = checkpoint(shaped, x, like.sizes(), "literal", std::make_pair(3, like)).sum();
  }
  sum.backward();
  EXPECT_TRUE(x.grad().equal(3 * x.detach().exp()));
  const std::vector<Tensor> list{x, x};
  EXPECT_TRUE(checkpoint([](at::TensorList both) { return both[0] * both[1]; }, at::TensorList(list)).equal(x * x));
}

TEST(Checkpoint, CopiesResultsThatShareMemory) {
  const Tensor x = values({3}, 1).requires_grad_(), h = x * 1;
  const auto [a, b, same] = checkpoint(
      [](const Tensor& input) {
        const Tensor t = input * 3;
        return std::make_tuple(t, t.view({3, 1}), input);
      },
      h);
  a.mul_(2);
  same.add_(1);
  (b.sum() + same.sum()).backward();
  EXPECT_TRUE(b.squeeze(1).equal(3 * x));
  EXPECT_TRUE(x.grad().equal(torch::full({3}, 4.0)));
}

struct RotatesImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return fc(x) * angles; }
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(4, 4));
  Tensor angles = register_buffer("angles", torch::ones({4}));
};
TORCH_MODULE(Rotates);

// The plain call's node has saved the buffer.
TEST(Checkpoint, LeavesBuffersAloneThatOtherGraphsHaveSaved) {
  Rotates block;
  const Tensor x = values({2, 4}, 1);
  checkpoint(block, block->forward(x)).sum().backward();
  EXPECT_TRUE(block->fc->weight.grad().defined());
}

/// Its mask is one row, expanded to two.
struct MaskedImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return fc(x) * mask; }
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(4, 4));
  Tensor mask = register_buffer("mask", torch::ones({1, 4}).expand({2, 4}));
};
TORCH_MODULE(Masked);

TEST(Checkpoint, TakesModulesWithExpandedBuffers) {
  Masked block;
  const Tensor x = values({2, 4}, 1);
  block->forward(x).sum().backward();
  const auto expected = grads_of(block->parameters());
  checkpoint(block, x).sum().backward();
  expect_same(grads_of(block->parameters()), expected);
}

TEST(Checkpoint, TakesPointersToModulesAndHandlesOfAmp) {
  const auto net = std::make_shared<torch::nn::BatchNorm1dImpl>(6);
  checkpoint(net, features()).sum().backward();
  EXPECT_EQ(net->num_batches_tracked.item<int64_t>(), 1);
  amp::reset();
  torch::nn::BatchNorm1d model(6);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [handle, opt] = amp::initialize(model, optimizer, "O2", quiet());
  { amp::scale_loss(checkpoint(handle, features()).square().mean(), opt).backward(); }
  EXPECT_EQ(model->num_batches_tracked.item<int64_t>(), 1);
  amp::reset();
}

TEST(Checkpoint, RefusesANullModule) {
  const std::shared_ptr<torch::nn::LinearImpl> none;
  const torch::nn::Linear empty(nullptr);
  EXPECT_TRUE(contains(message_of<c10::ValueError>([&] { checkpoint(none, features()); }), "a null module"));
  EXPECT_TRUE(contains(message_of<c10::ValueError>([&] { checkpoint(empty, features()); }), "a null module"));
}

TEST(Checkpoint, WithoutTensorInputsHasOneBackwardPass) {
  const Tensor w = values({3}, 1).requires_grad_();
  const Tensor y = checkpoint([w] { return w.exp(); }).sum();
  y.backward();
  EXPECT_TRUE(contains(message_of([&] { y.backward(); }), "second time"));
}

TEST(Checkpoint, RefusesAFunctionThatWritesItsInput) {
  const Tensor x = values({4}, 1).requires_grad_(), h = x * 2;
  const Tensor y = checkpoint([](Tensor input) { return input.add_(1).exp(); }, h);
  EXPECT_TRUE(contains(message_of([&] { y.sum().backward(); }), "modified by an inplace operation"));
}

TEST(Checkpoint, RefusesAnInputThatWasWritten) {
  const Tensor x = values({4}, 1).requires_grad_(), h = x * 2;
  const Tensor y = checkpoint([](const Tensor& input) { return input.exp(); }, h);
  h.detach().add_(1);
  EXPECT_TRUE(contains(message_of([&] { y.sum().backward(); }), "modified by an inplace operation"));
}

// As where a generator steps before the discriminator's backward pass, with an optimizer that raises the version of what it
// writes; LibTorch's own write through data().
TEST(Checkpoint, RefusesAParameterThatWasWritten) {
  torch::nn::Linear layer(4, 4);
  optimizers::FusedSGD optimizer(layer->parameters(), 1.0);
  const Tensor x = values({2, 4}, 1).requires_grad_();
  const Tensor y = checkpoint(layer, x);
  layer(x).sum().backward();
  optimizer.step();
  EXPECT_TRUE(contains(message_of([&] { y.square().sum().backward(); }), "a parameter of shape [4"));
  checkpoint(layer, x).square().sum().backward();
}

// Each call scales down rows of the weight, and raises its version.
TEST(Checkpoint, TakesAFunctionThatWritesItsParameter) {
  const torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(5, 3).max_norm(1));
  const Tensor words = torch::tensor({0, 3, 4});
  const Tensor a = checkpoint(embedding, words), b = checkpoint(embedding, words);
  (a.sum() + b.sum()).backward({}, /*retain_graph=*/true);
  (a.sum() + b.sum()).backward();
  EXPECT_EQ(embedding->weight.grad()[3][0].item<float>(), 4);
}

TEST(Checkpoint, CopiesAParameterThatIsAResult) {
  const Tensor w = values({3}, 1).requires_grad_(), before = w.detach().clone();
  checkpoint([w](const Tensor&) { return w; }, values({3}, 2)).mul_(2);
  EXPECT_TRUE(w.equal(before));
}

torch::nn::Sequential small_net() {
  torch::manual_seed(3);
  namespace nn = torch::nn;
  return nn::Sequential(nn::Linear(6, 8), nn::BatchNorm1d(8), nn::ReLU(), nn::Dropout(0.3), nn::Linear(8, 8),
                        nn::BatchNorm1d(8), nn::Linear(8, 2));
}

std::string trained(const std::function<Tensor(torch::nn::Sequential&, const Tensor&)>& forward) {
  auto net = small_net();
  torch::optim::SGD optimizer(net->parameters(), 0.1);
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    forward(net, features()).square().mean().backward();
    optimizer.step();
  }
  return bytes_of(*net);
}

// Also the running statistics of batch norm, which are buffers.
TEST(Checkpoint, OfModulesTrainsToTheSameBits) {
  const auto expected = trained([](auto& net, const Tensor& x) { return net->forward(x); });
  EXPECT_EQ(trained([](auto& net, const Tensor& x) { return checkpoint(net, x); }), expected);
  for (const int64_t segments : {1, 2, 3, 7}) {
    EXPECT_EQ(trained([&](auto& net, const Tensor& x) { return checkpoint_sequential(net, segments, x); }), expected)
        << segments;
  }
  auto net = small_net();
  for (const int64_t segments : {0, 8}) {
    EXPECT_TRUE(contains(message_of<c10::ValueError>([&] { checkpoint_sequential(net, segments, features()); }), "Use 1 to 7"));
  }
}

TEST(Checkpoint, SequentialComputesAllPartsButTheLastAgain) {
  std::vector<int> calls(5);
  torch::nn::Sequential net;
  for (int& count : calls) {
    net->push_back(torch::nn::Functional([&count](Tensor x) {
      ++count;
      return x.exp().tanh();
    }));
  }
  checkpoint_sequential(net, 2, values({3}, 1).requires_grad_()).sum().backward();
  EXPECT_EQ(calls, (std::vector<int>{2, 2, 1, 1, 1}));
}

}  // namespace
}  // namespace apex::test
