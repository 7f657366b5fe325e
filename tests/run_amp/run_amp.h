#pragma once
// Shared by Apex's run_amp tests: sizes, levels, devices, and the dtype that a listed operator must return.
#include <apex_cpp/amp.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <string>
#include <vector>

namespace apex::test::run_amp {

namespace amp = apex::amp;

// Apex's sizes.
constexpr int64_t kHidden = 64;
constexpr int64_t kBatch = 16;
constexpr int64_t kChannels = 16;
constexpr int64_t kKernel = 3;
constexpr int64_t kSteps = 10;

/// The grid: O1 (half) and O4 (bfloat16), on CPU and CUDA tensors.
struct Setting {
  c10::DeviceType device;
  const char* level;
};
std::vector<Setting> all_settings();
std::string name_of(const ::testing::TestParamInfo<Setting>& test);

/// Casts are on, on this thread, until the test ends; a CUDA setting is skipped where there is no GPU.
class RunAmp : public ::testing::TestWithParam<Setting> {
 protected:
  void SetUp() override;
  void TearDown() override;
  /// Starts over with other options.
  void initialize(const amp::InitializeOptions& options = {});

  /// The level's 16-bit type.
  c10::ScalarType low() const;
  std::vector<c10::ScalarType> dtypes() const { return {torch::kFloat, low()}; }
  torch::Device device() const { return GetParam().device; }
  torch::TensorOptions of(c10::ScalarType dtype) const { return torch::dtype(dtype).device(device()); }
  torch::Tensor input(at::IntArrayRef shape, c10::ScalarType dtype) const;  // a random leaf that requires grad
  template <class Module>
  Module on_device(Module module) const {
    module->to(device());
    return module;
  }

  enum class Result { low, float32, as_input };
  using Function = std::function<torch::Tensor(const torch::Tensor&)>;
  /// For input of each dtype, each function returns the dtype `expected` and the values of the same function in float32, and
  /// the input's gradient has the input's dtype.
  void expect_result(const std::vector<Function>& functions, Result expected, at::IntArrayRef shape) const;
  /// `result` is `reference`, computed in float32, up to sixteen roundings in 16 bits, each by half an epsilon.
  void expect_close(const torch::Tensor& result, const torch::Tensor& reference) const;

 private:
  torch::nn::Linear any_model_{1, 1};
};

}  // namespace apex::test::run_amp
