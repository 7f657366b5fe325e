// amp::Comparison and its statistics.
#include <apex_cpp/amp.h>
#include <apex_cpp/amp/comparison.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <limits>
#include <random>
#include <thread>

#include "tests/errors.h"
#include "tests/examples/scratch.h"

namespace apex::test {
namespace {

using amp::detail::Order;

std::vector<double> numbers_from_one_to(int count) {
  std::vector<double> values;
  for (int i = 1; i <= count; ++i) values.push_back(i);
  return values;
}

// P(X <= k) of a fair coin thrown n times, doubled: the doubt of the interval that leaves out k values and the next at each
// end.
TEST(MedianInterval, TrimsValuesToA99PercentInterval) {
  const std::vector<std::array<int, 3>> cases = {{8, 1, 8}, {10, 1, 10}, {12, 2, 11}, {16, 3, 14}, {20, 4, 17}, {24, 6, 19}};
  for (const auto& [count, low, high] : cases) {
    double doubt = 0, more = 0;
    for (int k = 0; k < low; ++k)
      doubt += std::exp(std::lgamma(count + 1) - std::lgamma(k + 1) - std::lgamma(count - k + 1)) / std::pow(2, count - 1);
    more =
        doubt + std::exp(std::lgamma(count + 1) - std::lgamma(low + 1) - std::lgamma(count - low + 1)) / std::pow(2, count - 1);
    ASSERT_LE(doubt, 0.01) << count;
    ASSERT_GT(more, 0.01) << count;
    auto values = numbers_from_one_to(count);
    std::shuffle(values.begin(), values.end(), std::mt19937(1));
    const auto interval = amp::detail::median_interval(values);
    EXPECT_EQ(interval.median, (count + 1) / 2.0);
    EXPECT_EQ(interval.low, low) << count;
    EXPECT_EQ(interval.high, high) << count;
  }
}

TEST(MedianInterval, IsStudentsForFewValuesAndUnboundedForOne) {
  // Logarithms -1, 0, 1: mean 0, deviation 1, quantile 9.925 of two degrees of freedom.
  const auto three = amp::detail::median_interval({std::exp(1.0), 1, std::exp(-1.0)});
  EXPECT_EQ(three.median, 1);
  // Some ten roundings of values below 6, by 2^-51 at most: 5e-15.
  EXPECT_NEAR(std::log(three.high), 9.925 / std::sqrt(3.0), 1e-14);
  EXPECT_NEAR(std::log(three.low), -9.925 / std::sqrt(3.0), 1e-14);
  // Logarithms -1 and 1: deviation of the mean 1, quantile 63.657 of one degree of freedom. Some ten roundings of it by 2^-51:
  // 3e-13.
  EXPECT_NEAR(std::log(amp::detail::median_interval({std::exp(1.0), std::exp(-1.0)}).high), 63.657, 1e-12);
  // Logarithms -3 to 3: the sum of squares is 28, the quantile of six degrees of freedom 3.707.
  std::vector<double> seven;
  for (int i = -3; i <= 3; ++i) seven.push_back(std::exp(i));
  EXPECT_NEAR(std::log(amp::detail::median_interval(seven).high), 3.707 * std::sqrt(28.0 / 6 / 7), 1e-13);
  const auto one = amp::detail::median_interval({3});
  EXPECT_EQ(one.median, 3);
  EXPECT_EQ(one.low, 0);
  EXPECT_TRUE(std::isinf(one.high));
  EXPECT_TRUE(std::isnan(amp::detail::median_interval({}).median));
  EXPECT_EQ(amp::detail::order_of(amp::detail::median_interval({})), Order::unknown);
}

TEST(Orders, AreDecidedIfTheWholeIntervalAgrees) {
  EXPECT_EQ(amp::detail::order_of({0.7, 0.6, 0.99}), Order::faster);
  EXPECT_EQ(amp::detail::order_of({1.5, 1.01, 1.9}), Order::slower);
  EXPECT_EQ(amp::detail::order_of({1, 0.92, 1.09}), Order::equal);
  EXPECT_EQ(amp::detail::order_of({0.95, 0.92, 0.97}), Order::equal);  // a difference that does not matter
  EXPECT_EQ(amp::detail::order_of({0.9, 0.8, 1.0}), Order::unknown);
  EXPECT_EQ(amp::detail::order_of({1.2, 1.0, 1.5}), Order::unknown);
  EXPECT_EQ(amp::detail::order_of({1.5, 0.9, 2.5}), Order::unknown);
}

// Rounds of two levels: the second takes `factor` of the first's time, and each time is off by up to `noise`, a share; in one
// round of four both take five times as long.
amp::detail::Rounds rounds_with(double factor, double noise, int count) {
  std::mt19937 draw(7);
  std::uniform_real_distribution<double> off(1 - noise, 1 + noise);
  amp::detail::Rounds rounds;
  for (int i = 0; i < count; ++i) {
    const double busy = i % 4 == 3 ? 5 : 1;
    rounds.push_back({10 * busy * off(draw), 10 * busy * factor * off(draw)});
  }
  return rounds;
}

TEST(Rounds, DistinguishLevelsOnABusyMachine) {
  const auto different = rounds_with(0.66, 0.05, 8), equal = rounds_with(1, 0.02, 8), noisy = rounds_with(0.9, 0.5, 8);
  EXPECT_EQ(amp::detail::order_of(amp::detail::ratio_interval(different, 1, 0)), Order::faster);
  EXPECT_EQ(amp::detail::order_of(amp::detail::ratio_interval(different, 0, 1)), Order::slower);
  EXPECT_EQ(amp::detail::order_of(amp::detail::ratio_interval(equal, 1, 0)), Order::equal);
  EXPECT_EQ(amp::detail::order_of(amp::detail::ratio_interval(noisy, 1, 0)), Order::unknown);
}

TEST(Rounds, AreAddedWhileAnOrderIsUndecided) {
  EXPECT_TRUE(amp::detail::needs_rounds({}, 24));
  EXPECT_TRUE(amp::detail::needs_rounds(rounds_with(0.66, 0.05, 7), 24));  // not looked at yet
  EXPECT_FALSE(amp::detail::needs_rounds(rounds_with(0.66, 0.05, 8), 24));
  EXPECT_TRUE(amp::detail::needs_rounds(rounds_with(0.66, 0.05, 9), 24));  // looked at again after twelve
  EXPECT_TRUE(amp::detail::needs_rounds(rounds_with(0.9, 0.5, 8), 24));
  EXPECT_FALSE(amp::detail::needs_rounds(rounds_with(0.9, 0.5, 24), 24));
  EXPECT_FALSE(amp::detail::needs_rounds(rounds_with(0.66, 0.05, 4), 4));
  EXPECT_TRUE(amp::detail::has_unknown_order(rounds_with(0.9, 0.5, 24)));
  EXPECT_FALSE(amp::detail::has_unknown_order(rounds_with(0.66, 0.05, 8)));
  EXPECT_FALSE(amp::detail::has_unknown_order({}));
}

TEST(Rounds, AreWrittenAsTables) {
  const amp::detail::TimedGroup group{"net", 2, {"O0", "O4"}, rounds_with(0.5, 0, 8)};
  EXPECT_EQ(amp::detail::times_rows(group), "net,2,O0,8,10,10,50\nnet,2,O4,8,5,5,25\n");
  EXPECT_EQ(amp::detail::ratios_rows(group), "net,2,O0,O4,8,2,2,2,slower\nnet,2,O4,O0,8,0.5,0.5,0.5,faster\n");
}

// A linear layer on random numbers, which the seed gives.
void train_linear(const amp::OptLevel& level, amp::ComparisonRun& run) {
  torch::nn::Linear model(64, 32);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  auto [net, opt] = amp::initialize(model, optimizer, level);
  while (run.next()) {
    opt.zero_grad();
    const auto loss = net->forward(torch::randn({16, 64})).square().mean();
    amp::scale_loss(loss, opt).backward();
    opt.step();
    run.loss(loss);
  }
  if (!run.only_times()) run.test_accuracy(0.75);
}

std::vector<std::string> lines_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

TEST(Comparison, RecordsEveryLevelWithEverySeed) {
  const Scratch scratch;
  std::vector<std::string> tasks;
  const auto options = amp::ComparisonOptions().steps(8).seeds(2).seed(5).timed_steps(3).rounds(2).on_run(
      [&](const std::string& task) { tasks.push_back(task); });
  amp::Comparison comparison({"O0", "O2", "O4"}, train_linear, options);
  comparison.run(scratch.path());
  const auto cells = lines_of(scratch.read("cells.csv"));
  ASSERT_EQ(cells.size(), 7u);
  EXPECT_EQ(cells[0], "cell,config,level,seed,processes,reference,finished");
  EXPECT_EQ(cells[2], "program-O2-seed0,program,O2,5,1,program-O0-seed0,1");
  EXPECT_EQ(tasks.size(), 6u + 2 * 3);
  EXPECT_EQ(tasks[1], "training at O2");
  EXPECT_EQ(tasks[6], "timing O0");
  EXPECT_EQ(tasks[9], "timing O2");  // another one begins each round
  EXPECT_EQ(lines_of(scratch.read("times.csv")).size(), 4u);
  EXPECT_EQ(lines_of(scratch.read("ratios.csv")).size(), 7u);
  EXPECT_THROW(amp::properties(), c10::Error);  // no session is left
}

// Of three steps the first is left out, and one of the others takes at least 20 ms: their median, which is their mean, is at
// least 10 ms.
TEST(Comparison, TimesTheStepsAfterTheFirst) {
  const Scratch scratch;
  const auto program = [](const amp::OptLevel& level, amp::ComparisonRun& run) {
    torch::nn::Linear model(2, 2);
    auto net = amp::initialize(model, level);
    while (run.next()) {
      if (run.only_times() && run.step() == 2) std::this_thread::sleep_for(std::chrono::milliseconds(20));
      run.loss(1.0);
    }
  };
  const auto options = amp::ComparisonOptions().steps(1).seeds(1).timed_steps(3).rounds(1);
  amp::Comparison({"O0", "O1", "O2"}, program, options).run(scratch.path());
  const auto rows = lines_of(scratch.read("times.csv"));
  ASSERT_EQ(rows.size(), 4u);
  for (size_t i = 1; i < rows.size(); ++i) {
    size_t step_ms = 0;
    for (int field = 0; field < 4; ++field) step_ms = rows[i].find(',', step_ms) + 1;
    EXPECT_GE(std::stod(rows[i].substr(step_ms)), 10) << rows[i];
  }
}

TEST(Comparison, HasTheDtypesMemoryAndStepsOfEachLevel) {
  const Scratch scratch;
  amp::Comparison({"O0", "O2"}, train_linear, amp::ComparisonOptions().steps(8).seeds(1).timed_steps(1).rounds(1))
      .run(scratch.path());
  const std::string header = "parameter,numel,dtype,grad_dtype,master_dtype\n";
  EXPECT_EQ(scratch.read("cells/program-O0-seed0/parameters.csv"), header + "bias,32,Float,Float,\nweight,2048,Float,Float,\n");
  EXPECT_EQ(scratch.read("cells/program-O2-seed0/parameters.csv"),
            header + "bias,32,Half,Half,Float\nweight,2048,Half,Half,Float\n");
  EXPECT_EQ(scratch.read("cells/program-O2-seed0/result.csv"), "test_accuracy,test_loss,device\n0.75,,cpu\n");
  EXPECT_NE(scratch.read("cells/program-O2-seed0/trace.csv").find("\naten::addmm,,forward,Half Half Half,Half,"),
            std::string::npos);
  EXPECT_NE(scratch.read("cells/program-O0-seed0/trace.csv").find("\naten::addmm,,forward,Float Float Float,Float,"),
            std::string::npos);
  const auto steps = lines_of(scratch.read("cells/program-O2-seed0/steps.csv"));
  ASSERT_EQ(steps.size(), 9u);
  EXPECT_EQ(steps[0], "step,loss,loss_scale,skipped,step_ms");
  EXPECT_NE(steps[1].find(",65536,"), std::string::npos) << steps[1];
  // Weights, gradients and momentum in FP32: 3 * 2080 * 4 bytes. At most a tenth of that more is in use for single numbers.
  const auto row = lines_of(scratch.read("cells/program-O0-seed0/memory.csv")).at(1);
  const auto held = std::stoll(row), peak = std::stoll(row.substr(row.find(',') + 1));
  EXPECT_GE(held, 3 * 2080 * 4);
  EXPECT_LE(held, 3.3 * 2080 * 4);
  EXPECT_GE(peak, held + 16 * 64 * 4);  // the batch, at the least
}

TEST(TensorMemory, CountsEveryByteOfItsDevicesBlocks) {
  int first = 0, second = 0;
  amp::detail::TensorMemory memory, of_gpus(at::kCUDA);
  for (auto* counts : {&memory, &of_gpus}) counts->reportMemoryUsage(&first, 1, 0, 0, at::kCPU);
  EXPECT_EQ(memory.live(), 1);
  EXPECT_EQ(of_gpus.live(), 0);
  memory.reportMemoryUsage(&second, -64, 0, 0, at::kCPU);  // a block from before
  EXPECT_EQ(memory.live(), 1);
  memory.reportMemoryUsage(&first, -1, 0, 0, at::kCPU);
  EXPECT_EQ(memory.live(), 0);
  EXPECT_EQ(memory.take_peak(), 1);
  EXPECT_EQ(memory.take_peak(), 0);
  for (const int64_t bytes : {16, 8}) memory.reportMemoryUsage(&first, bytes, 0, 0, at::kCPU);  // freed on another thread
  EXPECT_EQ(memory.live(), 8);
}

TEST(Comparison, NamesOfFoldersFitIntoFileSystems) {
  const std::string level = "program-O2 float32_modules " + std::string(400, 'm');
  const auto first = amp::detail::folder_name(level + "-seed0"), second = amp::detail::folder_name(level + "-seed1");
  EXPECT_LE(first.size(), 200u);
  EXPECT_LE(second.size(), 200u);
  EXPECT_NE(first, second);
  EXPECT_EQ(amp::detail::folder_name("config-O2 loss_scale 128-seed0"), "config-O2_loss_scale_128-seed0");
}

TEST(Comparison, ARunThatThrowsLeavesNoTableOfEarlierRuns) {
  const Scratch scratch;
  const auto options = amp::ComparisonOptions().steps(2).seeds(1).timed_steps(1).rounds(1);
  amp::Comparison({"O0", "O4"}, train_linear, options).run(scratch.path());
  EXPECT_NE(scratch.read("cells.csv"), "");
  const auto fails_at_o4 = [](const amp::OptLevel& level, amp::ComparisonRun& run) {
    if (level.name() == "O4") throw std::runtime_error("no such level");
    train_linear(level, run);
  };
  EXPECT_THROW(amp::Comparison({"O0", "O4"}, fails_at_o4, options).run(scratch.path()), std::runtime_error);
  EXPECT_FALSE(std::filesystem::exists(scratch / "cells.csv"));
}

// Two losses, the second in the first step only; in the third step the first of two passes overflows, the second does not.
TEST(ComparisonRun, CountsASkipInItsOwnStepOnly) {
  const Scratch scratch;
  torch::nn::Linear model(2, 2);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", amp::InitializeOptions().verbosity(0).num_losses(2));
  const auto pass = [&net = net, &opt = opt](int64_t loss_id, double factor) {
    amp::scale_loss(net->forward(torch::ones({1, 2})).sum() * factor, opt, loss_id).backward();
  };
  amp::ComparisonRun run(4);
  while (run.next()) {
    opt.zero_grad();
    if (run.step() == 0) pass(1, INFINITY);
    pass(0, run.step() == 2 ? INFINITY : 1.0);
    pass(0, 1.0);
    opt.step();
    run.loss(1.0);
  }
  run.write(scratch.path());
  amp::reset();
  const auto rows = lines_of(scratch.read("steps.csv"));
  ASSERT_EQ(rows.size(), 5u);
  std::string skipped;
  for (size_t i = 1; i < rows.size(); ++i) skipped += rows[i].substr(0, rows[i].rfind(',')).back();
  EXPECT_EQ(skipped, "1010");
}

TEST(ComparisonRun, ListsNoFrozenParameters) {
  const Scratch scratch;
  amp::ComparisonRun run(1);
  torch::nn::Linear model(4, 2);
  model->bias.requires_grad_(false);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O0", amp::InitializeOptions().verbosity(0));
  while (run.next()) {
    const auto loss = net->forward(torch::ones({3, 4})).sum();
    amp::scale_loss(loss, opt).backward();
    opt.step();
    run.loss(loss);
  }
  run.write(scratch.path());
  EXPECT_EQ(scratch.read("parameters.csv"), "parameter,numel,dtype,grad_dtype,master_dtype\nweight,8,Float,Float,\n");
  amp::reset();
}

// The first step overflows, and halves the scale.
TEST(ComparisonRun, WritesTheSumOfLossesTheScaleAndSkippedSteps) {
  const Scratch scratch;
  amp::ComparisonRun run(2);
  torch::nn::Linear model(4, 2);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", amp::InitializeOptions().verbosity(0));
  while (run.next()) {
    opt.zero_grad();
    const double factor = run.step() == 0 ? std::numeric_limits<double>::infinity() : 1.0;
    amp::scale_loss(net->forward(torch::ones({3, 4})).mean() * factor, opt).backward();
    opt.step();
    run.loss(1.5);
    run.loss(2.0);
  }
  run.write(scratch.path());
  const auto rows = lines_of(scratch.read("steps.csv"));
  ASSERT_EQ(rows.size(), 3u);
  EXPECT_EQ(rows[1].substr(0, rows[1].rfind(',')), "1,3.5,65536,1");
  EXPECT_EQ(rows[2].substr(0, rows[2].rfind(',')), "2,3.5,32768,0");
  amp::reset();
}

TEST(Comparison, RepeatsRunsExactlyWithTheProgramsLosses) {
  const Scratch scratch;
  amp::Comparison comparison({"O0", "O4"}, train_linear,
                             amp::ComparisonOptions().steps(4).seeds(1).seed(3).timed_steps(1).rounds(1));
  std::vector<std::vector<std::string>> losses;
  for (const char* folder : {"a", "b"}) {
    comparison.run(scratch / folder);
    auto& of_run = losses.emplace_back();
    for (const auto& line : lines_of(scratch.read(folder + std::string("/cells/program-O0-seed0/steps.csv")))) {
      of_run.push_back(line.substr(0, line.rfind(',')));
    }
  }
  EXPECT_EQ(losses[0], losses[1]);
  torch::manual_seed(3);
  torch::nn::Linear model(64, 32);
  const auto first = model->forward(torch::randn({16, 64})).square().mean().item<double>();
  std::ostringstream wanted;
  wanted.precision(17);
  EXPECT_EQ(std::stod(losses[0][1].substr(2)), first);  // "1,LOSS,…"
}

TEST(Comparison, NumbersLevelsThatDifferInTheirCastListsAlone) {
  const Scratch scratch;
  const auto casts = [](const std::string& name) {
    return amp::OptLevel::from_yaml_string("{opt_level: O1, casts: {casts: {float32: [aten::" + name + "]}}}");
  };
  const auto options = amp::ComparisonOptions().steps(1).seeds(1).timed_steps(1).rounds(1);
  amp::Comparison({"O0", casts("mm"), casts("addmm"), casts("bmm")}, train_linear, options).run(scratch.path());
  const auto cells = lines_of(scratch.read("cells.csv"));
  ASSERT_EQ(cells.size(), 5u);
  const std::string end = ",0,1,program-O0-seed0,1";
  EXPECT_EQ(cells[2], "program-O1_casts-seed0,program,O1 casts" + end);
  EXPECT_EQ(cells[3], "program-O1_casts_2-seed0,program,O1 casts 2" + end);
  EXPECT_EQ(cells[4], "program-O1_casts_3-seed0,program,O1 casts 3" + end);
  const auto twice = [&] { amp::Comparison({"O0", casts("mm"), casts("bmm"), casts("bmm")}, train_linear); };
  EXPECT_NE(message_of<c10::Error>(twice).find("the level O1 casts 2 is listed twice"), std::string::npos);
}

TEST(Comparison, RejectsInvalidComparisons) {
  const auto message = [](std::vector<amp::OptLevel> levels, const amp::ComparisonOptions& options = {}) {
    return message_of<c10::Error>([&] { amp::Comparison(std::move(levels), train_linear, options); });
  };
  EXPECT_NE(message({"O1"}).find("O0 is not among the levels. Add it"), std::string::npos);
  EXPECT_NE(message({"O0", "O1", "O1"}).find("the level O1 is listed twice"), std::string::npos);
  EXPECT_NE(message({"O0", "O9"}).find("O9"), std::string::npos);
  EXPECT_NE(message({"O0"}, amp::ComparisonOptions().steps(0)).find("steps=0 is not allowed"), std::string::npos);
  EXPECT_NE(message({"O0"}, amp::ComparisonOptions().seeds(0)).find("seeds=0 is not allowed"), std::string::npos);
  EXPECT_NE(message({"O0"}, amp::ComparisonOptions().timed_steps(0)).find("timed_steps=0 is not allowed"), std::string::npos);
}

TEST(ComparisonRun, RejectsCallsInTheWrongOrderAndInvalidValues) {
  const Scratch scratch;
  torch::nn::Linear model(2, 2);
  torch::optim::SGD optimizer(model->parameters(), 0.1);
  const auto error_of = [](const auto& action) { return message_of<c10::Error>(action); };
  amp::ComparisonRun run(2);
  EXPECT_NE(error_of([&] { run.next(); }).find("before amp::initialize"), std::string::npos);
  auto [net, opt] = amp::initialize(model, optimizer, "O0", amp::InitializeOptions().verbosity(0));
  EXPECT_NE(error_of([&] { run.loss(1.0); }).find("was called before next()"), std::string::npos);
  EXPECT_NE(error_of([&] { run.write(scratch.path()); }).find("before the run ended"), std::string::npos);
  EXPECT_TRUE(run.next());
  EXPECT_NE(error_of([&] { run.loss(torch::ones({2})); }).find("a tensor of 2 elements"), std::string::npos);
  EXPECT_NE(error_of([&] { run.next(); }).find("step 0 ended without its loss"), std::string::npos);
  EXPECT_NE(error_of([&] { run.test_accuracy(75); }).find("Give the fraction of correct predictions"), std::string::npos);
  EXPECT_NE(error_of([&] { run.test_accuracy(-0.5); }).find("Give the fraction of correct predictions"), std::string::npos);
  for (const double share : {0.0, 1.0}) EXPECT_EQ(error_of([&] { run.test_accuracy(share); }), "") << share;
  EXPECT_NE(error_of([] { amp::ComparisonRun(0); }).find("steps=0 is not allowed"), std::string::npos);
  run.loss(1.0);
  EXPECT_TRUE(run.next());
  run.loss(0.5);
  EXPECT_FALSE(run.next());
  EXPECT_FALSE(run.next());
  scratch.write("file", "");
  EXPECT_NE(error_of([&] { run.write(scratch / "file"); }).find("cannot write '"), std::string::npos);
  run.write(scratch / "a/b");
  EXPECT_EQ(lines_of(scratch.read("a/b/steps.csv")).size(), 3u);
  amp::reset();
}

TEST(Comparison, AProgramThatStopsEarlyIsAnError) {
  const Scratch scratch;
  amp::Comparison comparison({"O0"}, [](const amp::OptLevel&, amp::ComparisonRun&) {});
  EXPECT_NE(message_of<c10::Error>([&] { comparison.run(scratch.path()); }).find("ended before run.next() returned false"),
            std::string::npos);
}

}  // namespace
}  // namespace apex::test
