// User registrations by operator name and wrapped callables (REG-01 to REG-07).
#include <torch/library.h>

#include <thread>
#include <variant>

#include "apex_cpp/amp/casts/operator_slot.h"
#include "apex_cpp/amp/casts/thread_casts.h"
#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;

// A custom operator that records the dtypes of its arguments.
std::vector<at::ScalarType> received;
Tensor probe(const Tensor& a, const std::optional<Tensor>& b, at::TensorList list) {
  received = {a.scalar_type()};
  if (b) received.push_back(b->scalar_type());
  for (const auto& element : list) received.push_back(element.scalar_type());
  return a.clone();
}
Tensor& probe_into(Tensor& self, const Tensor& other) {
  received = {self.scalar_type(), other.scalar_type()};
  return self;
}
Tensor unlisted_probe(const Tensor& a, const Tensor& b) {
  received = {a.scalar_type(), b.scalar_type()};
  return a.clone();
}
Tensor composite_probe(const Tensor& a) { return torch::mm(a, a); }

TORCH_LIBRARY(amp_test, library) {
  library.def("probe(Tensor a, Tensor? b, Tensor[] list) -> Tensor", probe);
  library.def("probe_into(Tensor(a!) self, Tensor other) -> Tensor(a!)", probe_into);
  library.def("unlisted(Tensor a, Tensor b) -> Tensor", unlisted_probe);
  library.def("composite(Tensor a) -> Tensor", composite_probe);
}

template <class Signature>
auto op(const char* name) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, "").typed<Signature>();
}
Tensor call_probe(const Tensor& a, const std::optional<Tensor>& b = {}, std::vector<Tensor> list = {}) {
  return op<Tensor(const Tensor&, const std::optional<Tensor>&, at::TensorList)>("amp_test::probe").call(a, b, list);
}

Tensor floats(std::vector<int64_t> sizes = {2, 2}) { return torch::full(sizes, 0.5); }
Tensor halves() { return floats().to(torch::kHalf); }

struct UnlistedImpl : torch::nn::Module {
  Tensor forward(const Tensor& x) { return op<Tensor(const Tensor&, const Tensor&)>("amp_test::unlisted").call(x, fc->weight); }
  torch::nn::Linear fc = register_module("fc", torch::nn::Linear(6, 3));
};
TORCH_MODULE(Unlisted);

TEST_F(AmpTest, AnUnlistedOperatorGetsTheTensorsOfAFloat32ModuleUnchanged) {
  Unlisted model;
  auto net = amp::initialize(model, "O2", quiet().float32_modules(std::vector<std::string>{"fc"}));
  net->forward(features());
  EXPECT_EQ(received, (std::vector<at::ScalarType>{torch::kHalf, torch::kFloat}));
}

struct Registration : AmpTest {
  Mlp model;
  std::vector<std::string> registered;

  using Register = void (*)(const std::string&);
  void add(Register function, const std::string& name) {
    function(name);
    registered.push_back(name);
  }
  void initialize(const char* level = "O1") { net_ = amp::initialize(model, level, quiet()); }
  void TearDown() override {
    for (const auto& name : registered) amp::unregister_function(name);
    AmpTest::TearDown();
  }

 private:
  amp::Model<Mlp> net_{nullptr};
};

TEST_F(Registration, WrappedCallablesCastOnlyWhereCastsAreOn) {
  const auto half = amp::half_function([](const Tensor& x) { return x.scalar_type(); });
  initialize();
  EXPECT_EQ(half(floats()), torch::kHalf);
  at::ScalarType on_thread{};
  std::thread([&] { on_thread = half(floats()); }).join();
  EXPECT_EQ(on_thread, torch::kFloat);
  const amp::detail::ForwardScope within(nullptr);  // as the forward pass of a handle at O0
  EXPECT_EQ(half(floats()), torch::kFloat);
}

TEST_F(Registration, WrappedCallablesThatReturnAnArgumentReturnAValue) {
  initialize();
  const auto larger =
      amp::float_function([](const Tensor& a, const Tensor& b) -> const Tensor& { return a.numel() > b.numel() ? a : b; });
  static_assert(std::is_same_v<decltype(larger(floats(), floats())), Tensor>);
  EXPECT_TRUE(larger(halves(), floats({1})).equal(floats()));
}

TEST_F(Registration, TakesEffectBeforeOrAfterInitialize) {  // REG-05 and INIT-22 do not hold here
  add(amp::register_half_function, "aten::sigmoid");
  EXPECT_EQ(torch::sigmoid(floats()).dtype(), torch::kFloat) << "nothing is cast before initialize";
  initialize();
  add(amp::register_float_function, "aten::tanh");
  EXPECT_EQ(torch::sigmoid(floats()).dtype(), torch::kHalf);
  EXPECT_EQ(torch::tanh(halves()).dtype(), torch::kFloat);
}

TEST_F(Registration, FindsAnOperatorWhoseLibraryIsLoadedAfterAFirstTry) {
  EXPECT_THROW(amp::register_half_function("amp_test_late::twice"), c10::ValueError);
  torch::Library late(torch::Library::DEF, "amp_test_late", std::nullopt, __FILE__, __LINE__);
  late.def("twice(Tensor a) -> Tensor", [](const Tensor& a) { return a + a; });
  add(amp::register_half_function, "amp_test_late::twice");
  initialize();
  EXPECT_EQ(op<Tensor(const Tensor&)>("amp_test_late::twice").call(floats()).dtype(), torch::kHalf);
}

TEST(BuiltInSlots, AreLookedForOnceIfLibTorchLacksTheOperator) {
  EXPECT_TRUE(amp::detail::built_in_slots("amp_test_absent::twice").empty());
  torch::Library late(torch::Library::DEF, "amp_test_absent", std::nullopt, __FILE__, __LINE__);
  late.def("twice(Tensor a) -> Tensor", [](const Tensor& a) { return a + a; });
  EXPECT_TRUE(amp::detail::built_in_slots("amp_test_absent::twice").empty());
  EXPECT_EQ(amp::detail::slots_named("amp_test_absent::twice").size(), 1u)
      << "a name that the program registers is looked for again";
}

TEST_F(Registration, CanBeRemovedAndChanged) {
  initialize();
  add(amp::register_half_function, "aten::sigmoid");
  amp::register_float_function("aten::sigmoid");
  EXPECT_EQ(torch::sigmoid(halves()).dtype(), torch::kFloat);
  amp::unregister_function("aten::sigmoid");
  EXPECT_EQ(torch::sigmoid(halves()).dtype(), torch::kHalf);
  EXPECT_EQ(torch::sigmoid(floats()).dtype(), torch::kFloat);
}

TEST_F(Registration, RemovingItRestoresTheBuiltInPolicy) {  // REG-07
  initialize();
  add(amp::register_float_function, "aten::mm");
  EXPECT_EQ(torch::mm(floats(), floats()).dtype(), torch::kFloat);
  amp::unregister_function("aten::mm");
  EXPECT_EQ(torch::mm(floats(), floats()).dtype(), torch::kHalf);
}

TEST_F(Registration, TheBuiltInCastIsAppliedFirst) {  // REG-06
  initialize();
  add(amp::register_float_function, "aten::mm");
  const Tensor x = torch::full({1, 1}, 1.0 + 1.0 / 4096), one = torch::ones({1, 1});
  EXPECT_EQ(torch::mm(x, one).item<float>(), 1.0f) << "rounded to half first, then in FP32";
}

TEST_F(Registration, AppliesToAllOverloads) {
  initialize();
  add(amp::register_float_function, "aten::clamp");
  EXPECT_EQ(torch::clamp(halves(), 0).dtype(), torch::kFloat);
  EXPECT_EQ(torch::clamp(halves(), halves()).dtype(), torch::kFloat);
}

TEST_F(Registration, MayNameOneOverload) {
  initialize();
  add(amp::register_float_function, "aten::clamp.Tensor");
  EXPECT_EQ(torch::clamp(halves(), 0).dtype(), torch::kHalf);
  EXPECT_EQ(torch::clamp(halves(), halves()).dtype(), torch::kFloat);
}

TEST_F(Registration, PromoteHandles16BitWithFloatAndLeavesOtherMixesToPyTorch) {  // REG-04, O1-07
  initialize();
  add(amp::register_promote_function, "aten::maximum");
  EXPECT_EQ(torch::maximum(halves(), floats()).dtype(), torch::kFloat);
  EXPECT_EQ(torch::maximum(halves(), halves()).dtype(), torch::kHalf);
  const Tensor doubles = floats().to(torch::kDouble);
  EXPECT_EQ(torch::maximum(floats(), doubles).dtype(), torch::kDouble);
  EXPECT_EQ(torch::maximum(halves(), doubles).dtype(), torch::kDouble);
  EXPECT_EQ(torch::maximum(halves(), floats().to(torch::kBFloat16)).dtype(), torch::kFloat);
}

TEST_F(Registration, ACustomOperatorIsCast) {
  initialize();
  add(amp::register_half_function, "amp_test::probe");
  call_probe(floats(), floats(), {floats(), floats()});
  EXPECT_EQ(received, std::vector<at::ScalarType>(4, torch::kHalf));
  amp::register_float_function("amp_test::probe");
  call_probe(halves(), std::nullopt, {halves()});
  EXPECT_EQ(received, std::vector<at::ScalarType>(2, torch::kFloat));
}

TEST_F(Registration, AListWithAnIntegerTensorIsNotCast) {  // O1-04
  initialize();
  add(amp::register_half_function, "amp_test::probe");
  call_probe(floats(), std::nullopt, {floats(), torch::ones({2}, torch::kLong)});
  EXPECT_EQ(received, (std::vector<at::ScalarType>{torch::kHalf, torch::kFloat, torch::kLong}));
}

TEST_F(Registration, InPlaceDestinationsAreNotCast) {
  initialize();
  add(amp::register_half_function, "amp_test::probe_into");
  Tensor self = floats();
  op<Tensor&(Tensor&, const Tensor&)>("amp_test::probe_into").call(self, floats());
  EXPECT_EQ(received, (std::vector<at::ScalarType>{torch::kFloat, torch::kHalf}));
}

TEST_F(Registration, NothingIsCastInsideARegisteredOperator) {  // O1-10
  initialize();
  add(amp::register_float_function, "amp_test::composite");
  EXPECT_EQ(op<Tensor(const Tensor&)>("amp_test::composite").call(halves()).dtype(), torch::kFloat);
}

TEST_F(Registration, GradientsHaveTheInputsDtype) {  // O1-06
  initialize();
  add(amp::register_half_function, "aten::sigmoid");
  const Tensor x = floats().requires_grad_();
  torch::sigmoid(x).sum().backward();
  EXPECT_EQ(x.grad().dtype(), torch::kFloat);
}

TEST_F(Registration, HalfRegistrationsUseTheCache) {  // REG-03
  add(amp::register_half_function, "aten::sigmoid");
  torch::nn::Linear layer(2, 2);
  torch::optim::SGD optimizer(layer->parameters(), 0.1);
  auto [net, opt] = amp::initialize(layer, optimizer, "O1", quiet());
  const Tensor weight = layer->weight;
  torch::sigmoid(weight);
  const amp::trace trace;
  torch::sigmoid(weight);
  ASSERT_EQ(trace.ops().size(), 1u);
  EXPECT_EQ(trace.ops()[0].cache_hits(), 1);
}

TEST_F(Registration, AppliesAtO4ButNotAtO2) {
  add(amp::register_half_function, "aten::sigmoid");
  initialize("O4");
  EXPECT_EQ(torch::sigmoid(floats()).dtype(), torch::kBFloat16);
  Mlp other;
  auto net = amp::initialize(other, "O2", quiet());
  EXPECT_EQ(torch::sigmoid(floats()).dtype(), torch::kFloat);
}

TEST_F(Registration, AnUnknownOperatorIsAnErrorThatNamesIt) {  // REG-02
  for (const char* name : {"aten::no_such_operator", "sigmoid", "aten::add.NoSuchOverload", ""}) {
    EXPECT_THROW(amp::register_half_function(name), c10::ValueError) << name;
    EXPECT_TRUE(contains(message_of([&] { amp::register_half_function(name); }), "'" + std::string(name) + "'"));
  }
}

// ---- wrapped callables ----

// Returns its arguments' dtypes.
const auto dtypes_of = [](const auto&... tensors) { return std::vector<at::ScalarType>{tensors.scalar_type()...}; };

struct Wrapped : AmpTest {
  Mlp model;
};

TEST_F(Wrapped, UsesTheLevelInForceAtTheCall) {  // REG-01
  const auto half = amp::half_function(dtypes_of);
  const auto single = amp::float_function(dtypes_of);
  const auto promote = amp::promote_function(dtypes_of);
  using Types = std::vector<at::ScalarType>;
  const auto plain = Types{torch::kHalf, torch::kFloat};
  EXPECT_EQ(half(halves(), floats()), plain);
  auto net = amp::initialize(model, "O1", quiet());
  EXPECT_EQ(half(halves(), floats()), (Types{torch::kHalf, torch::kHalf}));
  EXPECT_EQ(single(halves(), floats()), (Types{torch::kFloat, torch::kFloat}));
  EXPECT_EQ(promote(halves(), floats()), (Types{torch::kFloat, torch::kFloat}));
  EXPECT_EQ(promote(halves(), halves()), (Types{torch::kHalf, torch::kHalf}));
  EXPECT_EQ(promote(halves(), floats().to(torch::kDouble)), (Types{torch::kHalf, torch::kDouble}));
  {
    const amp::disable_casts casts_off;
    EXPECT_EQ(half(halves(), floats()), plain);
  }
  amp::reset();
  EXPECT_EQ(half(halves(), floats()), plain);
}

TEST_F(Wrapped, CastsContainersOfFloatingTensorsOnly) {  // O1-04, CACHE-03
  auto net = amp::initialize(model, "O1", quiet());
  using Nested = std::vector<std::vector<Tensor>>;
  const auto inner = amp::half_function([](const Nested& nested) { return nested[1][0].scalar_type(); });
  EXPECT_EQ(inner(Nested{{floats()}, {floats()}}), torch::kHalf);
  EXPECT_EQ(inner(Nested{{torch::ones({2}, torch::kLong)}, {floats()}}), torch::kFloat);
  const auto pair = amp::half_function([](const std::pair<Tensor, Tensor>& p) { return p.first.scalar_type(); });
  EXPECT_EQ(pair(std::make_pair(floats(), floats())), torch::kHalf);
  const auto mixed = amp::half_function([](const std::tuple<Tensor, int>& t) { return std::get<0>(t).scalar_type(); });
  EXPECT_EQ(mixed(std::make_tuple(floats(), 1)), torch::kFloat) << "a number among them: left alone";
  const auto tuple = amp::half_function([](const std::tuple<Tensor, Tensor>& t) { return std::get<0>(t).scalar_type(); });
  Tensor a = floats(), b = floats();
  EXPECT_EQ(tuple(std::tie(a, b)), torch::kHalf);
  EXPECT_EQ(a.scalar_type(), torch::kFloat) << "the caller's own";
  const auto maybe = amp::half_function([](const std::optional<Tensor>& t) { return t ? t->scalar_type() : torch::kLong; });
  EXPECT_EQ(maybe(std::optional<Tensor>(floats())), torch::kHalf);
  EXPECT_EQ(maybe(std::optional<Tensor>()), torch::kLong);
  using Factor = std::variant<double, Tensor>;
  const auto factor =
      amp::half_function([](const Factor& f) { return f.index() == 1 ? std::get<1>(f).scalar_type() : torch::kLong; });
  EXPECT_EQ(factor(Factor(floats())), torch::kHalf);
  EXPECT_EQ(factor(Factor(2.0)), torch::kLong);
}

TEST_F(Wrapped, TakesAnyCallableAndAnyArguments) {
  auto net = amp::initialize(model, "O1", quiet());
  const auto function =
      amp::float_function(static_cast<Tensor (*)(const Tensor&, int64_t, std::optional<at::ScalarType>)>(torch::softmax));
  EXPECT_EQ(function(halves(), 1, std::nullopt).dtype(), torch::kFloat);
  auto counter =
      amp::half_function([calls = 0](const Tensor&, std::string text) mutable { return text + std::to_string(++calls); });
  EXPECT_EQ(counter(floats(), "call "), "call 1");
  EXPECT_EQ(counter(floats(), "call "), "call 2");
  std::unique_ptr<int> moved = std::make_unique<int>(7);
  EXPECT_EQ(amp::half_function([](const Tensor&, std::unique_ptr<int> p) { return *p; })(floats(), std::move(moved)), 7);
}

TEST_F(Wrapped, OperatorsInsideAreStillCast) {
  auto net = amp::initialize(model, "O1", quiet());
  EXPECT_EQ(amp::float_function([](const Tensor& x) { return torch::mm(x, x); })(floats()).dtype(), torch::kHalf);
}

}  // namespace
}  // namespace apex::test
