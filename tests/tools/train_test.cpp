// Training step benchmarks: each variant on the smallest networks, their counts, and that variants do not affect each other.
#include "train/contender.h"

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <apex_cpp/amp/trace.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <optional>

#include "suites.h"

namespace {

using apex::amp::TracedOp;
using bench::train::Contender, bench::train::Task, bench::train::Way;

const Task& task_named(const std::string& name) {
  for (const auto& task : bench::train::tasks()) {
    if (task.name == name) return task;
  }
  throw std::runtime_error(name);
}

Way way_named(const std::string& name) {
  for (const auto& way : bench::train::ways()) {
    if (way.name() == name) return way;
  }
  throw std::runtime_error(name);
}

Contender contender(const std::string& task, const std::string& way) {
  return Contender(task_named(task), way_named(way), at::kCPU, /*quick=*/true);
}

std::vector<TracedOp> ops_of_a_step(Contender& contender) {
  const apex::amp::trace trace;
  contender.step();
  return trace.ops();
}

bool any_cast(const std::vector<TracedOp>& ops) {
  return std::any_of(ops.begin(), ops.end(), [](const TracedOp& op) { return !op.casts.empty(); });
}

bool any_in_float32(const std::vector<TracedOp>& ops) {
  return std::any_of(ops.begin(), ops.end(), [](const TracedOp& op) { return op.in_float32; });
}

bool any_of_type(const std::vector<TracedOp>& ops, at::ScalarType type) {
  return std::any_of(ops.begin(), ops.end(),
                     [&](const TracedOp& op) { return std::count(op.inputs.begin(), op.inputs.end(), type) > 0; });
}

/// While it lives, new levels compute in FP32 on 16-bit tensors on every processor.
struct Float32Compute {
  static constexpr const char* kVariable = "APEX_CPP_CPU_16BIT";
  Float32Compute() { setenv(kVariable, "float32", 1); }
  ~Float32Compute() { previous ? setenv(kVariable, previous->c_str(), 1) : unsetenv(kVariable); }

  const std::optional<std::string> previous =
      std::getenv(kVariable) ? std::optional<std::string>(std::getenv(kVariable)) : std::nullopt;
};

using Rows = std::map<std::string, bench::Result>;

std::map<std::string, Rows> rows_of_a_quick_run() {
  at::set_num_threads(1);  // other tests run at the same time
  bench::Options options;
  options.quick = true;
  bench::Runner runner(options, /*rounds=*/3);
  bench::run_train(runner);
  std::map<std::string, Rows> rows;
  for (const auto& result : runner.results()) rows[result.group].emplace(result.name, result);
  return rows;
}

double value(const Rows& rows, const std::string& way, const std::string& quantity) {
  for (const auto& [name, number] : rows.at(way).values) {
    if (name == quantity) return number;
  }
  throw std::runtime_error(quantity);
}

// Only LibTorch's own recurrent layers lack kernels on some processors.
bool may_fail(const std::string& task, const std::string& way) {
  return task == "lstm" && way.find("autocast") != std::string::npos;
}

// Of the four ways that are O0 but for a loss scale, on a network.
void expect_costs_of_loss_scales(const Rows& costs, const Rows& times) {
  EXPECT_EQ(costs.size(), 4u);
  for (const auto& [way, row] : costs) {
    const std::string o0 = way.find("FusedAdam") == std::string::npos ? "O0 AdamW" : "O0 FusedAdam";
    const double update = value(costs, way, "after backward ms"), of_o0 = value(costs, way, "O0's ms");
    EXPECT_GT(of_o0, 0) << way;
    EXPECT_LT(of_o0, value(times, o0, "ms")) << way;
    // Differences of values below 1e3, each rounded in its own unit: 1e-9 is some 4 orders above what float64 leaves.
    EXPECT_NEAR(value(costs, way, "added ms"), update - of_o0, 1e-9) << way;
    EXPECT_NEAR(value(costs, way, "added/O0's step") * value(times, o0, "ms"), update - of_o0, 1e-9) << way;
  }
}

void expect_same_ratio(double ratio, double time, double other) {
  if (std::isnan(time) || std::isnan(other)) {
    EXPECT_TRUE(std::isnan(ratio));
  } else {
    // Both times were divided by a million. With those of the two quotients there are four roundings of half a unit in the last
    // place; EXPECT_DOUBLE_EQ allows four units.
    EXPECT_DOUBLE_EQ(ratio, time / other);
  }
}

TEST(BenchTrain, EveryVariantTrainsEveryNetworkAndHasARow) {
  const auto rows = rows_of_a_quick_run();
  EXPECT_EQ(rows.at("processor").size(), 1);
  for (const auto& task : bench::train::tasks()) {
    const Rows &times = rows.at(task.name), &memory = rows.at(std::string(task.name) + " memory");
    EXPECT_EQ(times.size(), bench::train::ways().size());
    const auto ms = [&](const std::string& way) { return value(times, way, "ms"); };
    for (const auto& [way, row] : times) {
      const bool failed = row.remark.find("failed: ") == 0;
      EXPECT_TRUE(!failed || may_fail(task.name, way)) << task.name << ", " << way << ", " << row.remark;
      EXPECT_EQ(failed, std::isnan(ms(way))) << task.name << ", " << way;
      EXPECT_EQ(failed, memory.count(way) == 0) << task.name << ", " << way;
      expect_same_ratio(value(times, way, "step/plain"), ms(way), ms(bench::train::kPlain));
    }
    expect_same_ratio(value(times, "O5 FusedAdam", "step/O0"), ms("O5 FusedAdam"), ms("O0 FusedAdam"));
    expect_same_ratio(value(times, "O2 AdamW", "step/autocast"), ms("O2 AdamW"), ms("autocast FP16 AdamW"));
    EXPECT_LT(value(memory, "O5 FusedAdam", "weights MB"), 0.6 * value(memory, "O0 FusedAdam", "weights MB"));
    EXPECT_EQ(value(memory, "O0 AdamW", "sum/O0's sum"), 1);
    expect_costs_of_loss_scales(rows.at(std::string(task.name) + " loss scale"), times);
  }
}

TEST(BenchTrain, VariantsInOneProcessDoNotAffectEachOthersCasts) {
  const Float32Compute float32_compute;
  Contender plain = contender("mlp", "plain AdamW"), autocast = contender("mlp", "autocast BF16 AdamW");
  Contender o1 = contender("mlp", "O1 AdamW"), o5 = contender("mlp", "O5 FusedAdam"), o0 = contender("mlp", "O0 AdamW");
  for (int round = 0; round < 2; ++round) {
    for (Contender* without : {&plain, &o0}) {
      const auto ops = ops_of_a_step(*without);
      EXPECT_FALSE(ops.empty());
      EXPECT_FALSE(any_cast(ops) || any_of_type(ops, at::kHalf) || any_of_type(ops, at::kBFloat16));
    }
    const auto torch_ops = ops_of_a_step(autocast);
    EXPECT_FALSE(any_cast(torch_ops) || any_in_float32(torch_ops) || any_of_type(torch_ops, at::kHalf));
    EXPECT_TRUE(any_of_type(torch_ops, at::kBFloat16));
    const auto o1_ops = ops_of_a_step(o1), o5_ops = ops_of_a_step(o5);
    EXPECT_TRUE(any_cast(o1_ops) && any_of_type(o1_ops, at::kHalf));
    EXPECT_FALSE(any_of_type(o1_ops, at::kBFloat16));
    EXPECT_TRUE(any_of_type(o5_ops, at::kBFloat16) && any_in_float32(o5_ops));
    EXPECT_FALSE(any_of_type(o5_ops, at::kHalf));
  }
  EXPECT_EQ(at::mm(at::ones({2, 2}), at::ones({2, 2})).scalar_type(), at::kFloat);
}

TEST(BenchTrain, TimeAfterTheBackwardPassIsPartOfEachStep) {
  Contender plain = contender("mlp", "plain AdamW"), scaled = contender("mlp", "O0 dynamic scale FusedAdam");
  for (Contender* way : {&plain, &scaled}) {
    way->counted_step();
    EXPECT_TRUE(way->updates().empty());
    for (size_t step = 0; step < 3; ++step) {
      const double time = way->step();
      ASSERT_EQ(way->updates().size(), step + 1);
      EXPECT_GT(way->updates().back(), 0);
      EXPECT_LT(way->updates().back(), time);
    }
  }
}

// The layers have 64, 128, 128 and 10 units, the batch has 16 rows.
TEST(BenchTrain, CountsBytesExactly) {
  constexpr int64_t kParameters = 64 * 128 + 128 + 128 * 128 + 128 + 128 * 10 + 10;
  Contender plain = contender("mlp", "plain AdamW"), o5 = contender("mlp", "O5 FusedAdam");
  for (int step = 0; step < 3; ++step) {
    plain.counted_step();
    o5.counted_step();
  }
  EXPECT_EQ(plain.footprint().weights, 4 * kParameters);
  EXPECT_EQ(plain.footprint().gradients, 4 * kParameters);
  EXPECT_EQ(plain.footprint().held, 16 * kParameters);  // weight, gradient and two moments
  // Two outputs of ReLU, the logarithms of the probabilities, the loss and the weight of all rows.
  EXPECT_EQ(plain.footprint().activations, 4 * (2 * 16 * 128 + 16 * 10 + 1 + 1));
  EXPECT_GE(plain.footprint().peak, plain.footprint().held);
  EXPECT_EQ(o5.footprint().weights, 2 * kParameters);
  EXPECT_EQ(o5.footprint().gradients, 2 * kParameters);
  EXPECT_GE(o5.footprint().held, (2 + 2 + 4 + 8) * kParameters);  // weight and gradient, master, two moments
  EXPECT_LT(o5.footprint().held, (2 + 2 + 4 + 8) * kParameters + 1024);
}

TEST(TensorMemory, CountsOnlyBlocksThatItSawAllocated) {
  const auto memory = std::make_shared<apex::amp::detail::TensorMemory>();
  at::Tensor before = at::empty({1000}), seen;
  {
    const apex::amp::detail::Counting counting(memory);
    seen = at::empty({100});
    at::empty({50});
    before = at::Tensor();
  }
  EXPECT_EQ(memory->live(), 400);
  EXPECT_EQ(memory->take_peak(), 600);
  at::empty({1000});
  EXPECT_EQ(memory->take_peak(), 400);
}

}  // namespace
