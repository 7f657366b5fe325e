// The layer itself: kernels with faults are reported, with the place in the kernel.
#include "tests/cuda_host/faults.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <functional>
#include <string>
#include <vector>

#include "tests/cuda_host/layer/grid.h"
#include "tests/cuda_host/layer/half.h"
#include "tests/cuda_host/runtime/control.h"
#include "tests/cuda_host/sanitizers.h"

namespace cuda_host_test {
namespace {

namespace faults = cuda_host::faults;

constexpr auto kSource = "tests/cuda_host/faults.cu";

// The lines of faults.cu that a message names.
std::string lines_in(const std::string& message) {
  std::vector<std::string> lines;
  std::ifstream file(std::string(CUDA_HOST_ROOT "/") + kSource);
  for (std::string line; std::getline(file, line);) lines.push_back(line);
  const std::string place = std::string(kSource) + ":";
  std::string found;
  for (size_t at = message.find(place); at != std::string::npos; at = message.find(place, at + 1)) {
    found += lines.at(std::stoul(message.substr(at + place.size())) - 1) + "\n";
  }
  return found;
}
class Layer : public ::testing::Test {
 protected:
  void SetUp() override { cuda_host::seed_schedules(1); }

  // Of a launch and the wait for it.
  template <class Launch>
  static std::string error_of(const Launch& launch) {
    alignas(16) static int values[64];
    try {
      EXPECT_EQ(launch(values), cudaSuccess);
      cuda_host::finish_device();
    } catch (const cuda_host::DeviceError& error) {
      return error.what();
    }
    return "no error";
  }
};

void expect_part(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << part << " is not in\n" << text;
}

TEST_F(Layer, ReportsABarrierThatSomeThreadsNeverReach) {
  const std::string error = error_of(faults::launch_half_a_barrier);
  expect_part(error, "no thread of a block can go on");
  expect_part(error, "from thread 0 on: waits at the barrier");
  expect_part(error, "from thread 32 on: waits at the shuffle");
  expect_part(error, "seed 1");
  expect_part(lines_in(error), "if (threadIdx.x < kWarp) __syncthreads();");
}

TEST_F(Layer, ReportsDifferentBarriers) {
  const std::string error = error_of(faults::launch_two_barriers);
  expect_part(error, "threads of a block wait at different barriers");
  expect_part(lines_in(error), "__syncthreads();  // of the first warp");
  expect_part(lines_in(error), "__syncthreads();  // of the second warp");
}

TEST_F(Layer, ReportsThreadsThatEndBeforeABarrier) {
  const std::string error = error_of(faults::launch_early_end);
  expect_part(error, "no thread of a block can go on");
  expect_part(error, "from thread 5 on: has ended");
  expect_part(lines_in(error), "__syncthreads();");
}

TEST_F(Layer, ReportsAShuffleWithLanesThatHaveEnded) {
  const std::string error = error_of(faults::launch_absent_lanes);
  expect_part(error, "from thread 1 on: waits at the shuffle");
  expect_part(lines_in(error), "__shfl_xor_sync(kAllLanes, 1, 2)");
}

TEST_F(Layer, ReportsAShuffleByALaneThatItsMaskDoesNotName) {
  const std::string error = error_of(faults::launch_unnamed_lane);
  expect_part(error, "a shuffle by a lane that its mask does not name");
  expect_part(lines_in(error), "__shfl_xor_sync(0xffffu, 1, 1)");
}

TEST_F(Layer, ReportsAMisalignedAccess) {
  const std::string error = error_of(faults::launch_misaligned);
  expect_part(error, "a misaligned access of several bytes");
  expect_part(lines_in(error), "__ldcg(from)");
}

TEST_F(Layer, RefusesALaunchOfTooManyThreads) {
  int values[1];
  EXPECT_EQ(faults::launch_too_many_threads(values), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST_F(Layer, FillsSharedMemoryWithNaN) {
  float values[64] = {};
  EXPECT_EQ(faults::launch_unfilled(values), cudaSuccess);
  cuda_host::finish_device();
  for (const float value : values) EXPECT_TRUE(std::isnan(value));
}

TEST_F(Layer, ComputesTheSameUnderEverySchedule) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    cuda_host::seed_schedules(seed);
    int values[3 * 64] = {};
    EXPECT_EQ(faults::launch_without_fault(values), cudaSuccess);
    cuda_host::finish_device();
    for (int i = 0; i < 3 * 64; ++i) {
      const int of_block = 63 * 64 / 2, of_first_warp = 31 * 32 / 2;
      EXPECT_EQ(values[i], of_block + of_first_warp + (i % 64 < 32 ? 0 : 32 * 32));
    }
  }
}

// Different schedules end a race differently.
TEST_F(Layer, RunsThreadsInOrdersThatTheSeedDetermines) {
  const auto last_writer = [](uint64_t seed) {
    cuda_host::seed_schedules(seed);
    int value = -1;
    EXPECT_EQ(faults::launch_race_of_blocks(&value), cudaSuccess);
    cuda_host::finish_device();
    return value;
  };
  if (cuda_host::sanitizer() == cuda_host::Sanitizer::thread) GTEST_SKIP() << "ThreadSanitizer would report the race";
  bool differ = false;
  for (uint64_t seed = 0; seed < 20; ++seed) {
    EXPECT_EQ(last_writer(seed), last_writer(seed));
    differ |= last_writer(seed) != last_writer(0);
  }
  EXPECT_TRUE(differ);
}

// A sanitizer ends the program.
void run_and_exit(const std::function<cudaError_t(int*)>& launch) {
  int values[64] = {};
  (void)launch(values);
  cuda_host::finish_device();
}

TEST(LayerDeathTest, FindsAccessesOutsideOfSharedMemory) {
  if (cuda_host::sanitizer() != cuda_host::Sanitizer::address) GTEST_SKIP() << "needs AddressSanitizer";
  EXPECT_DEATH(run_and_exit(faults::launch_outside), "use-after-poison");
}

TEST(LayerDeathTest, FindsRaces) {
  if (cuda_host::sanitizer() != cuda_host::Sanitizer::thread) GTEST_SKIP() << "needs ThreadSanitizer";
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  const auto race_with_atomic = [](int* out) { return faults::launch_race_with_atomic(reinterpret_cast<unsigned*>(out)); };
  EXPECT_EXIT((run_and_exit(faults::launch_race_in_block), _exit(0)), ::testing::ExitedWithCode(66), "data race");
  EXPECT_EXIT((run_and_exit(faults::launch_race_of_blocks), _exit(0)), ::testing::ExitedWithCode(66), "data race");
  EXPECT_EXIT((run_and_exit(race_with_atomic), _exit(0)), ::testing::ExitedWithCode(66), "data race");
}

}  // namespace
}  // namespace cuda_host_test
