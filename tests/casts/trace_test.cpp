// amp::trace: what ran in which dtype, what was cast, what came from the cache; the casts that verbosity 2 prints (PRINT-02).
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>

#include <ATen/record_function.h>
#include <unistd.h>

#include "tests/amp/support.h"

namespace apex::test {
namespace {

using torch::Tensor;

std::vector<const amp::TracedOp*> named(const amp::trace& trace, const std::string& name) {
  std::vector<const amp::TracedOp*> found;
  for (const auto& op : trace.ops()) {
    if (op.name == name) found.push_back(&op);
  }
  return found;
}

struct Trace : AmpTest {
  ConvNet model;
};

TEST_F(Trace, RecordsOperatorsOfAPlainProgram) {
  const amp::trace trace;
  torch::add(torch::ones({2}), torch::ones({2}, torch::kLong));
  ASSERT_EQ(named(trace, "aten::add.Tensor").size(), 1u) << trace;
  const auto& op = *named(trace, "aten::add.Tensor")[0];
  EXPECT_EQ(op.inputs, (std::vector<at::ScalarType>{torch::kFloat, torch::kLong}));
  EXPECT_EQ(op.outputs, std::vector<at::ScalarType>{torch::kFloat});
  EXPECT_TRUE(op.casts.empty());
  EXPECT_FALSE(op.backward);
}

// As where a model traces a part of its own forward pass.
TEST_F(Trace, MayBeginAndEndWithinAForwardPassOrAGuard) {
  const auto net = amp::initialize(model, "O1", quiet());
  std::optional<amp::trace> trace;
  {
    const amp::enable_casts on;
    trace.emplace();
  }
  torch::add(torch::ones({2}), torch::ones({2}));
  EXPECT_EQ(named(*trace, "aten::add.Tensor").size(), 1u);
  {
    const amp::enable_casts on;
    trace.reset();
  }
  torch::mm(torch::ones({2, 2}), torch::ones({2, 2}));  // a cast, which the ended trace must not record
}

TEST_F(Trace, NamesModulesAndCasts) {
  auto net = amp::initialize(model, "O1", quiet());
  const amp::trace trace;
  net->forward(images());
  const auto convolutions = named(trace, "aten::conv2d");
  ASSERT_EQ(convolutions.size(), 1u) << trace;
  const auto& conv = *convolutions[0];
  EXPECT_EQ(conv.module, "conv");
  EXPECT_EQ(conv.inputs[0], torch::kFloat) << "as the program called it";
  EXPECT_EQ(conv.outputs, std::vector<at::ScalarType>{torch::kHalf});
  ASSERT_EQ(conv.casts.size(), conv.inputs.size());
  for (const auto& cast : conv.casts) {
    EXPECT_EQ(cast.from, torch::kFloat);
    EXPECT_EQ(cast.to, torch::kHalf);
    EXPECT_FALSE(cast.cached);
  }
  const auto norms = named(trace, "aten::batch_norm");
  ASSERT_EQ(norms.size(), 1u);
  EXPECT_EQ(norms[0]->module, "bn");
  EXPECT_TRUE(norms[0]->casts.empty());
}

TEST_F(Trace, CountsCacheHits) {
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O1", quiet());
  net->forward(images());
  const amp::trace trace;
  net->forward(images());
  const auto& conv = *named(trace, "aten::conv2d").at(0);
  EXPECT_EQ(conv.cache_hits(), static_cast<int64_t>(conv.inputs.size()) - 1) << "all but the image";
  EXPECT_TRUE(contains(trace.table(), "Float->Half(cached) Float->Half(cached)"));
}

// A program may hide operators from LibTorch's observers; their casts are not recorded either.
TEST_F(Trace, RecordsNothingOfHiddenOperators) {
  auto net = amp::initialize(model, "O1", quiet());
  const amp::trace trace;
  const auto hidden = [&] {
    const at::DisableRecordFunctionGuard guard;
    EXPECT_EQ(net->forward(images()).scalar_type(), torch::kHalf);
  };
  hidden();
  EXPECT_TRUE(trace.ops().empty()) << trace;
  torch::relu(torch::ones({2}));
  hidden();
  ASSERT_EQ(trace.ops().size(), named(trace, "aten::relu").size() + named(trace, "aten::ones").size()) << trace;
  for (const auto& op : trace.ops()) EXPECT_TRUE(op.casts.empty()) << trace;
}

TEST_F(Trace, ListsOnlyOperatorsThatTheProgramCalled) {
  const amp::trace trace;
  torch::nn::functional::layer_norm(torch::ones({2, 3}), torch::nn::functional::LayerNormFuncOptions({3}));
  EXPECT_EQ(named(trace, "aten::layer_norm").size(), 1u);
  EXPECT_EQ(named(trace, "aten::native_layer_norm").size(), 0u);
}

TEST_F(Trace, DistinguishesBackwardFromForward) {
  const Tensor x = torch::ones({2, 2}).requires_grad_();
  const amp::trace trace;
  torch::mm(x, x).sum().backward();
  const auto products = named(trace, "aten::mm");
  ASSERT_EQ(products.size(), 3u) << trace;
  EXPECT_FALSE(products[0]->backward);
  EXPECT_TRUE(products[1]->backward);
}

TEST_F(Trace, CanBeStoppedAndNested) {
  amp::trace outer;
  torch::relu(torch::ones({2}));
  {
    const amp::trace inner;
    torch::tanh(torch::ones({2}));
    EXPECT_EQ(named(inner, "aten::tanh").size(), 1u);
    EXPECT_TRUE(named(inner, "aten::relu").empty());
  }
  outer.stop();
  torch::sigmoid(torch::ones({2}));
  EXPECT_EQ(named(outer, "aten::relu").size(), 1u);
  EXPECT_EQ(named(outer, "aten::tanh").size(), 1u);
  EXPECT_TRUE(named(outer, "aten::sigmoid").empty());
}

TEST_F(Trace, MayEndBeforeALaterTrace) {
  auto first = std::make_unique<amp::trace>();
  amp::trace second;
  first->stop();
  torch::relu(torch::ones({2}));
  EXPECT_EQ(named(second, "aten::relu").size(), 1u);
  first.reset();
  second.stop();
  torch::tanh(torch::ones({2}));  // is recorded by no trace
  EXPECT_TRUE(named(second, "aten::tanh").empty());
}

TEST_F(Trace, SurvivesAnOperatorThatThrows) {
  const amp::trace trace;
  EXPECT_THROW(torch::mm(torch::ones({2, 2}), torch::ones({3, 3})), c10::Error);
  torch::relu(torch::ones({2}));
  EXPECT_EQ(named(trace, "aten::relu").size(), 1u) << "not taken for a part of the failed one";
}

TEST_F(Trace, WritesTableJsonAndCsv) {
  auto net = amp::initialize(model, "O1", quiet());
  amp::trace trace;
  net->forward(images());
  trace.stop();
  std::ostringstream printed;
  printed << trace;
  EXPECT_EQ(printed.str(), trace.table());
  EXPECT_TRUE(contains(trace.table(), "Float->Half"));

  const auto ops = nlohmann::json::parse(trace.json()).at("ops");
  ASSERT_EQ(ops.size(), trace.ops().size());
  for (size_t i = 0; i < ops.size(); ++i) {
    EXPECT_EQ(ops[i].at("name").get<std::string>(), trace.ops()[i].name);
    EXPECT_EQ(ops[i].at("module").get<std::string>(), trace.ops()[i].module);
    EXPECT_EQ(ops[i].at("inputs").size(), trace.ops()[i].inputs.size());
    EXPECT_EQ(ops[i].at("casts").size(), trace.ops()[i].casts.size());
    EXPECT_EQ(ops[i].at("in_float32").get<bool>(), trace.ops()[i].in_float32);
    EXPECT_EQ(ops[i].at("backward").get<bool>(), trace.ops()[i].backward);
    EXPECT_EQ(ops[i].at("outputs").size(), trace.ops()[i].outputs.size());
  }

  const std::string path = ::testing::TempDir() + "amp_trace_" + std::to_string(getpid()) + ".csv";
  trace.write_csv(path);
  std::ifstream file(path);
  std::string line;
  ASSERT_TRUE(std::getline(file, line));
  EXPECT_EQ(line, "op,module,pass,inputs,outputs,casts,computed_in,cache_hits");
  size_t rows = 0;
  while (std::getline(file, line)) rows += !line.empty();
  EXPECT_EQ(rows, trace.ops().size());
  trace.write_json(path);
  std::ostringstream written;
  written << std::ifstream(path).rdbuf();
  EXPECT_EQ(written.str(), trace.json());
  std::remove(path.c_str());
}

TEST(TraceText, ARowAndAnObjectHaveEveryField) {
  amp::TracedOp op;
  op.name = "aten::mm", op.module = "fc", op.backward = true, op.in_float32 = true;
  op.inputs = {torch::kFloat, torch::kHalf}, op.outputs = {torch::kHalf};
  op.casts = {{torch::kFloat, torch::kHalf, true}};
  EXPECT_EQ(amp::detail::trace_csv({op}),
            "op,module,pass,inputs,outputs,casts,computed_in,cache_hits\n"
            "aten::mm,fc,backward,Float Half,Half,Float->Half(cached),float32,1\n");
  const auto read = nlohmann::json::parse(amp::detail::trace_json({op})).at("ops").at(0);
  EXPECT_TRUE(read.at("backward").get<bool>());
  EXPECT_TRUE(read.at("in_float32").get<bool>());
  EXPECT_EQ(read.at("inputs"), (nlohmann::json{"Float", "Half"}));
  EXPECT_EQ(read.at("outputs").at(0), "Half");
}

// Names may come from the program: from its parameters and its own operators.
TEST(TraceText, EscapesNamesInJson) {
  amp::TracedOp op;
  op.name = "my::\"op\"\\";
  op.module = "a\tb\x01";
  op.casts = {{torch::kFloat, torch::kHalf, true}, {torch::kHalf, torch::kFloat, false}};
  const auto read = nlohmann::json::parse(amp::detail::trace_json({op})).at("ops").at(0);
  EXPECT_EQ(read.at("name").get<std::string>(), op.name);
  EXPECT_EQ(read.at("module").get<std::string>(), op.module);
  EXPECT_EQ(read.at("casts").at(0), (nlohmann::json{{"from", "Float"}, {"to", "Half"}, {"cached", true}}));
  EXPECT_EQ(read.at("casts").at(1), (nlohmann::json{{"from", "Half"}, {"to", "Float"}, {"cached", false}}));
}

TEST_F(Trace, AFileThatCannotBeWrittenIsAnErrorThatNamesIt) {
  const amp::trace trace;
  EXPECT_TRUE(contains(message_of([&] { trace.write_json("/no/such/folder/trace.json"); }), "/no/such/folder/trace.json"));
}

// ---- verbosity ----

std::string printed_at(int64_t verbosity) {
  ConvNet model;
  ::testing::internal::CaptureStdout();
  auto net = amp::initialize(model, "O1", amp::InitializeOptions().verbosity(verbosity));
  net->forward(images());
  torch::softmax(torch::ones({2}).to(torch::kHalf), 0);
  amp::reset();
  return ::testing::internal::GetCapturedStdout();
}

TEST_F(Trace, VerbosityTwoPrintsCastsAsApexDoes) {  // PRINT-02
  const std::string text = printed_at(2);
  EXPECT_TRUE(contains(text, "Float->Half (conv2d)"));
  EXPECT_TRUE(contains(text, "Half->Float (softmax)"));
  for (const int64_t quieter : {0, 1, 3}) EXPECT_FALSE(contains(printed_at(quieter), "->")) << quieter;
}

}  // namespace
}  // namespace apex::test
