// amp::watch: records of activations and their gradients per module.
#include <ATen/record_function.h>
#include <apex_cpp/amp/doctor/step_observer.h>

#include <new>

#include "tests/statistics/support.h"

namespace apex::test {
namespace {

struct WatchedNetImpl : torch::nn::Module {
  WatchedNetImpl() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 2, 3)));
    head = register_module("head", torch::nn::Linear(8, 3));
  }
  torch::Tensor forward(const torch::Tensor& x) { return head(torch::relu(conv(x)).flatten(1)); }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::Linear head{nullptr};
};
TORCH_MODULE(WatchedNet);

struct Watch : ::testing::Test {
  Watch() { torch::manual_seed(4); }
  ~Watch() override { amp::reset(); }

  void step(double scale = 1) { (handle->forward(x).to(torch::kFloat).pow(2).mean() * scale).backward(); }
  void start(const char* level) { handle = amp::initialize(model, level, amp::InitializeOptions().verbosity(0)); }

  std::vector<std::string> seen(const amp::watch& watch) const {
    std::vector<std::string> lines;
    for (const auto& record : watch.records()) {
      EXPECT_EQ(record.statistics.name, record.module + " " + record.op);
      lines.push_back(record.statistics.name + (record.gradient ? " gradient" : ""));
    }
    return lines;
  }

  torch::Tensor x = torch::randn({5, 1, 4, 4});
  WatchedNet model;
  amp::Model<WatchedNet> handle{nullptr};
};

using Lines = std::vector<std::string>;

TEST_F(Watch, RecordsModuleOutputsAndTheirGradientsAtEveryLevel) {
  for (const char* level : {"O0", "O1", "O2", "O3", "O4", "O5", "O6"}) {
    SCOPED_TRACE(level);
    model = WatchedNet();
    start(level);
    const amp::watch watch;
    step();
    EXPECT_EQ(seen(watch),
              (Lines{"conv aten::conv2d", "head aten::addmm", "head aten::addmm gradient", "conv aten::conv2d gradient"}));
    amp::reset();
  }
}

TEST_F(Watch, RecordsParametersOfTheModelItself) {
  torch::nn::Linear root(4, 2);
  auto net = amp::initialize(root, "O1", amp::InitializeOptions().verbosity(0));
  const amp::watch watch;
  net->forward(torch::randn({8, 4})).sum().backward();
  EXPECT_EQ(seen(watch), (Lines{"model aten::addmm", "model aten::addmm gradient"}));
}

TEST_F(Watch, RecordsAreTheStatisticsOfTheTensors) {
  start("O0");
  const amp::watch watch;
  const auto output = handle->forward(x);
  output.retain_grad();
  (output.pow(2).mean() * 1024).backward();
  ASSERT_EQ(watch.records().size(), 4u);
  const auto activation = watch.records()[1].statistics, gradient = watch.records()[2].statistics;
  expect_same_bits({activation}, amp::statistics(std::vector<torch::Tensor>{output}));
  expect_same_bits({gradient}, amp::statistics(std::vector<torch::Tensor>{output.grad()}));
}

TEST_F(Watch, ChangesNoBitOfTheTraining) {
  start("O1");
  step();
  std::vector<torch::Tensor> without;
  for (auto& parameter : model->parameters()) without.push_back(std::exchange(parameter.mutable_grad(), {}));
  {
    const amp::watch watch;
    step();
  }
  for (size_t i = 0; i < without.size(); ++i) EXPECT_TRUE(torch::equal(model->parameters()[i].grad(), without[i])) << i;
}

TEST_F(Watch, RecordsNothingAfterItsEnd) {
  start("O0");
  amp::watch stopped;
  const auto loss = handle->forward(x).sum();
  stopped.stop();
  loss.backward();
  step();
  EXPECT_EQ(seen(stopped), (Lines{"conv aten::conv2d", "head aten::addmm"}));
  torch::Tensor outlives;
  {
    const amp::watch guard;
    outlives = handle->forward(x).sum();
  }
  outlives.backward();  // the hooks find no active guard
}

TEST_F(Watch, OnlyTheInnermostRecords) {
  start("O0");
  const torch::NoGradGuard no_grad;
  const amp::watch outer;
  {
    const amp::watch inner;
    handle->forward(x);
    EXPECT_EQ(inner.records().size(), 2u);
  }
  EXPECT_TRUE(outer.records().empty());
  handle->forward(x);
  EXPECT_EQ(outer.records().size(), 2u);
}

TEST_F(Watch, MayEndBeforeALaterWatch) {
  start("O0");
  const torch::NoGradGuard no_grad;
  auto first = std::make_unique<amp::watch>();
  amp::watch second;
  first.reset();
  handle->forward(x);
  EXPECT_EQ(second.records().size(), 2u);
  second.stop();
  handle->forward(x);  // no recorder is active
  EXPECT_EQ(second.records().size(), 2u);
}

// Such as the regions of a profile.
TEST_F(Watch, RecordsModulesWithinARegionThatTheProgramNames) {
  start("O0");
  const amp::watch watch;
  {
    RECORD_FUNCTION("region", std::vector<c10::IValue>{model->head->weight});
    handle->forward(x);
  }
  EXPECT_EQ(seen(watch), (Lines{"conv aten::conv2d", "head aten::addmm"}));
}

// A gradient that is sparse has no statistics.
TEST_F(Watch, LeavesOutSparseGradients) {
  start("O0");
  const amp::watch watch;
  const torch::Tensor table = model->head->weight.clone(), rows = torch::tensor({0, 2});
  torch::embedding(table, rows, /*padding_idx=*/-1, /*scale_grad_by_freq=*/false, /*sparse=*/true).sum().backward();
  EXPECT_TRUE(model->head->weight.grad().is_sparse());
  EXPECT_EQ(seen(watch), (Lines{"head aten::clone"}));
}

// LibTorch catches what the start of a recorded call throws, such as bad_alloc. The end of the call then gets no context.
TEST_F(Watch, GoesOnAfterACallWhoseStartFailed) {
  start("O0");
  const amp::watch watch;
  const amp::trace trace;
  const auto observer = std::make_shared<amp::detail::StepObserver>();
  observer->start();
  const at::RecordFunctionTLS before = at::get_record_function_tls_();
  ASSERT_EQ(before.sorted_tls_callbacks_.size(), 3u);
  at::RecordFunctionTLS failing = before;
  for (auto& entry : failing.sorted_tls_callbacks_) {
    const auto fail = [](const at::RecordFunction&) -> std::unique_ptr<at::ObserverContext> { throw std::bad_alloc(); };
    entry.callback_ = at::RecordFunctionCallback(fail, entry.callback_.end()).needsOutputs(true);
  }
  at::set_record_function_tls_(failing);
  EXPECT_TRUE(x.neg().neg().equal(x));
  at::set_record_function_tls_(before);
  EXPECT_TRUE(watch.records().empty());
  EXPECT_TRUE(trace.ops().empty());
  handle->forward(x);
  EXPECT_EQ(watch.records().size(), 2u);
  EXPECT_FALSE(trace.ops().empty());
  EXPECT_FALSE(observer->take().empty());
}

}  // namespace
}  // namespace apex::test
