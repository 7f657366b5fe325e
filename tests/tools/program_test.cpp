// The benchmark program as a user calls it.
#include <ATen/Context.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

#include <sys/wait.h>

namespace {

struct Run {
  int status;
  std::string output;  // both streams
};

Run bench(const std::string& arguments) {
  const std::string command = std::string(BENCH_PROGRAM) + " " + arguments + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  std::string output;
  std::array<char, 256> part;
  while (std::fgets(part.data(), part.size(), pipe)) output += part.data();
  return {WEXITSTATUS(pclose(pipe)), output};
}

bool contains(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(BenchProgram, ListsItsSuites) {
  const auto run = bench("--help");
  EXPECT_EQ(run.status, 0);
  for (const auto* suite :
       {"casts", "compile", "contrib", "convolution", "ddp", "kernels", "pages", "statistics", "step", "train"})
    EXPECT_TRUE(contains(run.output, suite)) << run.output;
}

TEST(BenchProgram, RejectsUnknownSuites) {
  for (const auto* arguments :
       {"", "no_such_suite", "casts --only no_such_benchmark", "casts --csv /no/such/folder/x.csv", "kernels --device tpu"}) {
    const auto run = bench(arguments);
    EXPECT_EQ(run.status, 2) << arguments << "\n" << run.output;
    EXPECT_TRUE(contains(run.output, "bench: ")) << run.output;
  }
}

TEST(BenchProgram, RejectsADeviceInOneLine) {
  const auto cpu_alone = bench("casts --device cuda");
  EXPECT_EQ(cpu_alone.status, 2) << cpu_alone.output;
  EXPECT_EQ(cpu_alone.output.rfind("bench: suite 'casts' measures the CPU", 0), 0u) << cpu_alone.output;
  if (at::hasCUDA()) return;
  for (const std::string suite : {"step", "kernels", "train"}) {
    const auto run = bench(suite + " --device cuda");
    EXPECT_EQ(run.status, 2) << run.output;
    EXPECT_EQ(run.output, "bench: --device cuda needs a GPU, but LibTorch finds none; use cpu\n");
  }
}

TEST(BenchProgram, MeasuresTheRequestedSuitesAndWritesTheNumbers) {
  const auto csv = testing::TempDir() + "apex_cpp_bench_test_" + std::to_string(getpid()) + ".csv";
  const auto run = bench("casts --rounds 3 --only 'off/relu|ops/linear, weight from cache' --csv " + csv);
  ASSERT_EQ(run.status, 0) << run.output;
  std::ostringstream written;
  written << std::ifstream(csv).rdbuf();
  std::remove(csv.c_str());
  for (const auto* line :
       {"casts,off,relu 4x4 (unlisted),1,never initialized ns,", "casts,ops,\"linear, weight from cache\",1,amp/torch,"}) {
    EXPECT_TRUE(contains(written.str(), line)) << line << " in\n" << written.str();
  }
  EXPECT_FALSE(contains(written.str(), "mse_loss")) << written.str();
}

TEST(BenchProgram, KeepsEarlierNumbersOfOtherSuites) {
  const auto csv = testing::TempDir() + "apex_cpp_bench_earlier_" + std::to_string(getpid()) + ".csv";
  std::ofstream(csv) << "earlier";
  EXPECT_EQ(bench("casts --only no_such_benchmark --csv " + csv).status, 2);
  std::ostringstream kept;
  kept << std::ifstream(csv).rdbuf();
  std::remove(csv.c_str());
  EXPECT_EQ(kept.str(), "earlier");
}

TEST(BenchProgram, ComparesStatisticsWithTorchAndTheBound) {
  const auto run = bench("statistics --rounds 3 --only 'f32/1 x 1'");
  ASSERT_EQ(run.status, 0) << run.output;
  for (const auto* column : {"apex_cpp us", "torch/apex_cpp", "bound/apex_cpp"})
    EXPECT_TRUE(contains(run.output, column)) << run.output;
}

TEST(BenchProgram, ComparesPagesOfBothSizes) {
  const auto run = bench("pages --rounds 3 --quick --only O5");
  ASSERT_EQ(run.status, 0) << run.output;
  for (const auto* text : {"weights/O5 FusedAdam", "activations/O5 FusedAdam", "4 KB pages ms", "huge/4 KB"})
    EXPECT_TRUE(contains(run.output, text)) << run.output;
}

TEST(BenchProgram, ComparesAnOptimizerAndAWholeStepWithTorchAndTheBound) {
  const auto kernels = bench("kernels --rounds 3 --only 'adam f32/1 x 1'");
  ASSERT_EQ(kernels.status, 0) << kernels.output;
  for (const auto* column :
       {"apex_cpp us", "fused/apex_cpp", "foreach/apex_cpp", "optim/apex_cpp", "bound/apex_cpp", "apex_cpp GB/s"}) {
    EXPECT_TRUE(contains(kernels.output, column)) << kernels.output;
  }
  const auto step = bench("step --rounds 3 --only 'O2/1 x 1'");
  ASSERT_EQ(step.status, 0) << step.output;
  for (const auto* column : {"FusedAdam/apex_cpp", "torch/apex_cpp", "bound/apex_cpp"})
    EXPECT_TRUE(contains(step.output, column)) << step.output;
}

}  // namespace
