#include "tests/run_amp/run_amp.h"
#include "tests/needs_gpus.h"

#include <limits>

namespace apex::test::run_amp {

std::vector<Setting> all_settings() {
  return {{torch::kCPU, "O1"}, {torch::kCPU, "O4"}, {torch::kCUDA, "O1"}, {torch::kCUDA, "O4"}};
}

std::string name_of(const ::testing::TestParamInfo<Setting>& test) {
  return std::string(test.param.device == torch::kCUDA ? "cuda_" : "cpu_") + test.param.level;
}

void RunAmp::SetUp() {
  if (device().is_cuda()) {
    APEX_CPP_NEEDS_GPUS(1);
  }
  torch::manual_seed(7);
  initialize();
}

void RunAmp::TearDown() { amp::reset(); }

void RunAmp::initialize(const amp::InitializeOptions& options) {
  amp::reset();
  auto quiet = options;
  [[maybe_unused]] const auto net = amp::initialize(any_model_, GetParam().level, quiet.verbosity(0));
}

c10::ScalarType RunAmp::low() const { return GetParam().level == std::string("O4") ? torch::kBFloat16 : torch::kHalf; }

torch::Tensor RunAmp::input(at::IntArrayRef shape, c10::ScalarType dtype) const {
  return torch::randn(shape, of(dtype)).requires_grad_();
}

void RunAmp::expect_result(const std::vector<Function>& functions, Result expected, at::IntArrayRef shape) const {
  for (size_t i = 0; i < functions.size(); ++i) {
    for (const auto dtype : dtypes()) {
      SCOPED_TRACE(testing::Message() << "form " << i << ", input " << dtype);
      const auto x = input(shape, dtype);
      const auto y = functions[i](x);
      EXPECT_EQ(y.scalar_type(), expected == Result::as_input ? dtype : expected == Result::low ? low() : torch::kFloat);
      {
        const torch::NoGradGuard no_grad;
        const amp::disable_casts off;
        expect_close(y, functions[i](x.to(torch::kFloat)));
      }
      y.to(torch::kFloat).sum().backward();
      EXPECT_EQ(x.grad().scalar_type(), dtype);
    }
  }
}

void RunAmp::expect_close(const torch::Tensor& result, const torch::Tensor& reference) const {
  const double rounding =
      low() == torch::kHalf ? std::numeric_limits<c10::Half>::epsilon() : std::numeric_limits<c10::BFloat16>::epsilon();
  const auto error = (result.detach().to(torch::kCPU, torch::kFloat) - reference.detach().cpu()).abs().max().item<double>();
  EXPECT_LE(error, 8 * rounding * (1 + reference.abs().max().item<double>()));
}

}  // namespace apex::test::run_amp
