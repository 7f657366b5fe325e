// Arguments that a forward writes to: hidden states and caches by reference, buffers that are filled in place. Weights and
// inputs are small whole numbers, which 16 bits hold exactly, so that every level computes what the plain program does.
#include <variant>

#include "tests/amp/every_level.h"
#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;

class Arguments : public AtEveryLevel {
 protected:
  /// At these levels inputs and outputs of a model are cast.
  bool casts_model() const { return !casts_operators(); }
  void expect_dtype_of_outputs(const Tensor& tensor) const {
    EXPECT_TRUE(tensor.scalar_type() == torch::kFloat || !casts_model()) << tensor.scalar_type();
  }
};
INSTANTIATE_TEST_SUITE_P(Levels, Arguments, kEveryLevel, [](const auto& test) { return test.param; });

/// -1, 0 and 1.
Tensor whole(at::IntArrayRef sizes) { return torch::randint(-1, 2, sizes).to(torch::kFloat); }

/// One linear layer of whole numbers.
struct WholeLinearImpl : torch::nn::Module {
  WholeLinearImpl() : fc(register_module("fc", torch::nn::Linear(3, 3))) {
    const torch::NoGradGuard no_grad;
    for (auto& p : parameters()) p.copy_(whole(p.sizes()));
  }
  torch::nn::Linear fc;
};

/// Runs `use` with a new `Net`, and with the handle of one of the same weights; expects the same values of both.
template <class Net, class Use>
void expect_as_without_amp(const char* level, const Use& use, const amp::InitializeOptions& options = quiet()) {
  torch::manual_seed(3);
  Net plain;
  const std::vector<Tensor> expected = use(plain);
  torch::manual_seed(3);
  Net model;
  auto net = amp::initialize(model, level, options);
  const std::vector<Tensor> values = use(net);
  ASSERT_EQ(values.size(), expected.size());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_TRUE(torch::equal(values[i].to(torch::kFloat), expected[i])) << "value " << i << "\n" << values[i] << expected[i];
  }
}

struct RecurrentImpl : WholeLinearImpl {
  Tensor forward(const Tensor& x, Tensor& hidden) {
    hidden = fc(x) + (hidden.defined() ? hidden * 2 : torch::zeros({1, 3}));
    return hidden.sum(1);
  }
};
TORCH_MODULE(Recurrent);

// An argument whose value after forward is the same is not written back.
TEST(SameValue, NeedsTheSameTensorsInContainersOfTheSameKind) {
  using amp::detail::is_same_value;
  const Tensor x = whole({2}), copy = x.clone();
  const auto list = [](const Tensor& tensor) { return c10::IValue(c10::List<Tensor>({tensor})); };
  const auto tuple = [](const Tensor& tensor) { return c10::IValue(c10::ivalue::Tuple::create({tensor})); };
  c10::Dict<std::string, Tensor> dict, other_key;
  dict.insert("a", x);
  other_key.insert("b", x);
  const auto same_dict = dict.copy(), other_dict = dict.copy();
  other_dict.insert_or_assign("a", copy);
  const std::vector<c10::IValue> kinds{list(x), tuple(x), dict, c10::IValue(x)};
  const std::vector<c10::IValue> equal{list(x), tuple(x), same_dict, c10::IValue(x)};
  const std::vector<c10::IValue> others{list(copy), tuple(copy), other_dict, c10::IValue(copy)};
  for (size_t i = 0; i < kinds.size(); ++i) {
    for (size_t j = 0; j < equal.size(); ++j) EXPECT_EQ(is_same_value(kinds[i], equal[j]), i == j) << i << j;
    EXPECT_FALSE(is_same_value(kinds[i], others[i])) << i;
  }
  EXPECT_FALSE(is_same_value(c10::IValue(dict), c10::IValue(other_key)));
  EXPECT_FALSE(is_same_value(list(x), c10::IValue(c10::List<Tensor>({x, x}))));
  const std::optional<Tensor> none;
  EXPECT_TRUE(is_same_value(none, none));
  EXPECT_TRUE(is_same_value(std::optional(x), std::optional(x)));
  EXPECT_FALSE(is_same_value(std::optional(x), none));
  EXPECT_FALSE(is_same_value(std::optional(x), std::optional(copy)));
}

TEST_P(Arguments, GradientsFlowThroughAHiddenStatePassedByReference) {
  expect_as_without_amp<Recurrent>(level(), [&](auto& net) {
    const Tensor first = whole({1, 3}).requires_grad_();
    Tensor hidden = first, outputs;
    for (int step = 0; step < 2; ++step) outputs = net->forward(whole({1, 3}), hidden);
    EXPECT_EQ(hidden.scalar_type(), torch::kFloat);
    EXPECT_FALSE(hidden.is_same(first));
    (hidden.square().sum() + outputs.sum()).backward();
    return std::vector<Tensor>{hidden.detach(), first.grad(), net->fc->weight.grad(), net->fc->bias.grad()};
  });
}

TEST_P(Arguments, HiddenStateMayStartUndefined) {
  expect_as_without_amp<Recurrent>(level(), [&](auto& net) {
    Tensor hidden;
    net(whole({1, 3}), hidden);
    expect_dtype_of_outputs(hidden);
    net(whole({1, 3}), hidden);
    return std::vector<Tensor>{hidden};
  });
}

TEST_P(Arguments, ANewValueTakesTheOldValuesDtypeOrTheOutputs) {
  if (!casts_model()) return;
  Recurrent model;
  auto net = amp::initialize(model, level(), quiet());
  Tensor hidden = torch::ones({1, 3}, torch::kDouble);
  net->forward(whole({1, 3}), hidden);
  EXPECT_EQ(hidden.scalar_type(), torch::kDouble);

  Recurrent other;
  auto in_half = amp::initialize(other, level(), quiet().cast_model_outputs(torch::kHalf));
  hidden = torch::ones({1, 3});
  in_half->forward(whole({1, 3}), hidden);
  EXPECT_EQ(hidden.scalar_type(), torch::kHalf);
}

struct CachedImpl : WholeLinearImpl {
  Tensor forward(Tensor x, std::vector<std::pair<Tensor, Tensor>>& cache) {
    cache.emplace_back(fc(x), x + 1);
    Tensor sum = torch::zeros_like(x);
    for (const auto& [key, value] : cache) sum = sum + key + value;
    return sum;
  }
};
TORCH_MODULE(Cached);

TEST_P(Arguments, ForwardMayAppendToACache) {
  expect_as_without_amp<Cached>(level(), [&](auto& net) {
    std::vector<std::pair<Tensor, Tensor>> cache;
    cache.reserve(3);
    std::vector<Tensor> values;
    for (size_t step = 0; step < 3; ++step) {
      const auto before = cache;
      values.push_back(net->forward(whole({1, 3}), cache).detach());
      EXPECT_EQ(cache.size(), step + 1);
      if (cache.size() != step + 1) break;
      for (size_t i = 0; i < before.size(); ++i) EXPECT_TRUE(cache[i].first.is_same(before[i].first));
      expect_dtype_of_outputs(cache.back().first);
    }
    for (const auto& [key, value] : cache) values.insert(values.end(), {key.detach(), value.detach()});
    return values;
  });
}

struct MappedImpl : WholeLinearImpl {
  void forward(Tensor& x, std::map<std::string, std::optional<Tensor>>& state, int& calls, Tensor& count) {
    x = fc(x);
    auto& last = state["last"];
    last = last ? *last + x : x;
    ++calls;
    count = count + 1;
  }
};
TORCH_MODULE(Mapped);

TEST_P(Arguments, ForwardMayReturnVoid) {
  expect_as_without_amp<Mapped>(level(), [&](auto& net) {
    Tensor x = whole({1, 3}), count = torch::zeros({1}, torch::kLong);
    std::map<std::string, std::optional<Tensor>> state{{"none", std::nullopt}};
    int calls = 0;
    for (int step = 0; step < 2; ++step) net->forward(x, state, calls, count);
    EXPECT_EQ(calls, 2);
    EXPECT_EQ(count.scalar_type(), torch::kLong);
    EXPECT_FALSE(state.at("none").has_value());
    expect_dtype_of_outputs(x);
    return std::vector<Tensor>{x.detach(), state.at("last")->detach(), count.to(torch::kFloat)};
  });
}

struct SparingImpl : WholeLinearImpl {
  Tensor forward(Tensor& x, std::vector<Tensor>& more) {
    handed = x.unsafeGetTensorImpl();
    return fc(x) + more[0];
  }
  const void* handed = nullptr;
};
TORCH_MODULE(Sparing);

TEST_P(Arguments, ReadOnlyArgumentsAreNotReplaced) {
  Sparing model;
  auto net = amp::initialize(model, level(), quiet());
  Tensor x = whole({1, 3});
  const Tensor before = x;
  std::vector<Tensor> more{whole({1, 3})};
  const Tensor* const address = more.data();
  const std::vector<Tensor> elements = more;
  net->forward(x, more);
  EXPECT_TRUE(x.is_same(before));
  EXPECT_EQ(more.data(), address);
  EXPECT_TRUE(more[0].is_same(elements[0]));
  const bool weights_are_float = net->fc->weight.scalar_type() == torch::kFloat;
  EXPECT_EQ(net->handed == x.unsafeGetTensorImpl(), weights_are_float) << "what need not be cast is handed over as it is";
}

struct FillingImpl : WholeLinearImpl {
  Tensor forward(Tensor x, Tensor out, const Tensor& row, const std::vector<Tensor>& list) {
    const Tensor y = fc(x);
    out.copy_(y);
    row[0].copy_(y[0]);
    list[1].add_(y);
    return y;
  }
};
TORCH_MODULE(Filling);

TEST_P(Arguments, BuffersWrittenInPlaceTakePartInTheGraph) {
  expect_as_without_amp<Filling>(level(), [&](auto& net) {
    const Tensor out = torch::zeros({2, 3}), row = torch::ones({2, 3}), start = whole({2, 3}).requires_grad_();
    const std::vector<Tensor> list{torch::ones({1}), start * 2};
    net->forward(whole({2, 3}), out, row, list);
    (out.sum() + row.square().sum() + list[1].sum()).backward();
    return std::vector<Tensor>{out.detach(), row.detach(), list[1].detach(), start.grad(), net->fc->weight.grad()};
  });
}

TEST_P(Arguments, BuffersAreWrittenInInferenceModeAndThroughViews) {
  expect_as_without_amp<Filling>(level(), [&](auto& net) {
    const Tensor all = torch::zeros({4, 3});
    const c10::InferenceMode inference;
    const Tensor made_inside = torch::zeros({2, 3});
    net->forward(whole({2, 3}), all.slice(0, 2), made_inside, {made_inside, torch::zeros({2, 3})});
    return std::vector<Tensor>{all.clone(), made_inside.clone()};
  });
}

struct MultiplyingImpl : WholeLinearImpl {
  void forward(Tensor x, Tensor out) {
    const torch::NoGradGuard no_grad;
    torch::mm_out(out, x.to(fc->weight.scalar_type()), fc->weight.to(out.scalar_type()));
  }
};
TORCH_MODULE(Multiplying);

TEST_P(Arguments, OutFunctionsResizeBuffers) {
  if (!casts_model()) return;
  expect_as_without_amp<Multiplying>(level(), [](auto& net) {
    Tensor out = torch::empty({0});
    net->forward(whole({2, 3}), out);
    return std::vector<Tensor>{out};
  });
}

struct ShiftingImpl : WholeLinearImpl {
  Tensor forward(const Tensor& x, Tensor offset) {
    if (quietly) {
      const torch::NoGradGuard no_grad;
      offset.add_(1);
    } else {
      offset.add_(1);
    }
    return fc(x) + offset;
  }
  bool quietly = false;
};
TORCH_MODULE(Shifting);

TEST_P(Arguments, LeavesAreWrittenOnlyWhereAutogradAllowsIt) {
  Shifting model;
  auto net = amp::initialize(model, level(), quiet());
  const Tensor leaf = torch::zeros({3}).requires_grad_();
  EXPECT_TRUE(contains(message_of([&] { net->forward(whole({1, 3}), leaf); }), "leaf Variable that requires grad"));
  net->quietly = true;
  net->forward(whole({1, 3}), leaf);
  EXPECT_TRUE(torch::equal(leaf, torch::ones({3})));
  EXPECT_TRUE(leaf.is_leaf());
}

struct TwoForwardsImpl : WholeLinearImpl {
  Tensor forward(const Tensor& x) { return fc(x); }
  Tensor forward(const Tensor& x, Tensor& hidden) { return hidden = fc(x) + hidden; }
};
TORCH_MODULE(TwoForwards);

TEST_P(Arguments, OverloadedForwardsWriteToTheirArguments) {
  expect_as_without_amp<TwoForwards>(level(), [](auto& net) {
    Tensor hidden = whole({1, 3});
    Tensor x = whole({1, 3});
    const Tensor kept = x;
    net->forward(x, hidden);
    EXPECT_TRUE(x.is_same(kept));
    return std::vector<Tensor>{hidden.detach()};
  });
}

struct StepImpl : torch::nn::Module {
  virtual Tensor forward(Tensor x, Tensor& hidden) = 0;
  virtual int kind() const = 0;
};
struct LinearStepImpl : StepImpl {
  LinearStepImpl() : part(register_module("part", std::make_shared<WholeLinearImpl>())) {}
  Tensor forward(Tensor x, Tensor& hidden) override { return hidden = part->fc(x) + hidden; }
  int kind() const override { return 1; }
  std::shared_ptr<WholeLinearImpl> part;
};

TEST_P(Arguments, AForwardCalledThroughABaseClassWritesToItsArguments) {
  torch::manual_seed(3);
  LinearStepImpl plain;
  Tensor expected = whole({1, 3}), hidden = expected;
  const Tensor x = whole({1, 3});
  plain.forward(x, expected);
  torch::manual_seed(3);
  std::shared_ptr<StepImpl> model = std::make_shared<LinearStepImpl>();
  auto net = amp::initialize(model, level(), quiet());
  net(x, hidden);
  EXPECT_TRUE(torch::equal(hidden, expected));
  expect_dtype_of_outputs(hidden);
}

struct AddingImpl : WholeLinearImpl {
  void forward(const Tensor& x, c10::List<Tensor> list, const c10::Dict<std::string, Tensor>& dict, c10::IValue& boxed) {
    list.push_back(fc(x));
    dict.insert_or_assign("new", fc(x) + 1);
    if (boxed.isNone()) boxed = std::make_tuple(fc(x), int64_t{4});
  }
};
TORCH_MODULE(Adding);

TEST_P(Arguments, WritesToLibTorchContainersReachTheCaller) {
  expect_as_without_amp<Adding>(level(), [&](auto& net) {
    c10::List<Tensor> list({whole({1, 3})});
    c10::Dict<std::string, Tensor> dict;
    dict.insert("old", whole({1, 3}));
    c10::IValue boxed, kept(std::vector<Tensor>{whole({3})});
    const Tensor first = list.get(0), old = dict.at("old");
    const c10::IValue before = kept;
    net->forward(whole({1, 3}), list, dict, boxed);
    net->forward(whole({1, 3}), list, dict, kept);
    EXPECT_TRUE(list.get(0).is_same(first));
    EXPECT_TRUE(dict.at("old").is_same(old));
    EXPECT_TRUE(kept.is(before));
    if (list.size() != 3 || !dict.contains("new") || !boxed.isTuple()) return std::vector<Tensor>{};
    const Tensor inside = boxed.toTupleRef().elements()[0].toTensor();
    for (const auto& tensor : {list.get(2), dict.at("new"), inside}) expect_dtype_of_outputs(tensor);
    return std::vector<Tensor>{list.get(1).detach(), list.get(2).detach(), dict.at("new").detach(), inside.detach()};
  });
}

using Either = std::variant<std::monostate, Tensor, std::vector<Tensor>>;
struct VariedImpl : WholeLinearImpl {
  Either forward(const Either& x, Either& state) {
    if (const auto* several = std::get_if<std::vector<Tensor>>(&x)) return std::vector<Tensor>{fc((*several)[0])};
    const Tensor y = fc(std::get<Tensor>(x));
    state = y;
    return y;
  }
};
TORCH_MODULE(Varied);

TEST_P(Arguments, VariantArgumentsAndOutputsAreCast) {
  expect_as_without_amp<Varied>(level(), [&](auto& net) {
    Either state;
    const Tensor one = std::get<Tensor>(net->forward(whole({1, 3}), state));
    const auto several = std::get<std::vector<Tensor>>(net->forward(std::vector<Tensor>{whole({1, 3})}, state));
    for (const auto& tensor : {one, several[0], std::get<Tensor>(state)}) expect_dtype_of_outputs(tensor);
    return std::vector<Tensor>{one.detach(), several[0].detach(), std::get<Tensor>(state).detach()};
  });
}

}  // namespace
}  // namespace apex::test
