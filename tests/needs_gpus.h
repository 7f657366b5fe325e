#pragma once

#include <gtest/gtest.h>
#include <torch/cuda.h>

#include <cstdlib>
#include <string>

namespace apex::test {

// Why a test that needs `count` GPUs cannot run here. Empty if it can.
inline std::string missing_gpus(size_t count) {
  const size_t found = torch::cuda::device_count();
  if (found >= count) return "";
  return "needs " + (count == 1 ? "a GPU" : std::to_string(count) + " GPUs") + ", and LibTorch finds " +
         (found == 0 ? "none" : std::to_string(found));
}

// Whether the environment says that this machine has `count` GPUs (APEX_CPP_REQUIRE_GPU=1): then a GPU that LibTorch does not
// find is a failure.
inline bool gpus_are_required(size_t count) {
  const char* const required = std::getenv("APEX_CPP_REQUIRE_GPU");
  return required != nullptr && static_cast<size_t>(std::atoi(required)) >= count;
}

}  // namespace apex::test

// Skips a test, or a fixture in SetUp(), on machines with fewer GPUs.
#define APEX_CPP_NEEDS_GPUS(count)                                                            \
  if (!::apex::test::missing_gpus(count).empty() && ::apex::test::gpus_are_required(count))   \
    GTEST_FAIL() << ::apex::test::missing_gpus(count) << ", but APEX_CPP_REQUIRE_GPU is set"; \
  if (!::apex::test::missing_gpus(count).empty()) GTEST_SKIP() << ::apex::test::missing_gpus(count)
