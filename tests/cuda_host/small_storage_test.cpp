// Parameters with remainders and moments in 8 bits: the bits of the CPU driver.
#include <ATen/ATen.h>

#include "tests/cuda_host/support.h"
#include "tests/kernels/small_problems.h"

namespace cuda_host_test {
namespace {

using kernels_test::Case;
using kernels_test::clear_flag;
using kernels_test::Coded;
using kernels_test::Kind;
using kernels_test::kKinds;
using kernels_test::Problem;
using kernels_test::same_bytes;

class HostSplitUpdate : public OnFakeDeviceWith<Case> {
 protected:
  static void expect_bits_of_the_cpu(const Problem& parts) {
    Problem expected = parts.copy();
    GetParam().step(expected, clear_flag());
    const c10::Device device = devices().front();
    Problem work = {on(device, parts.grads),  on(device, parts.params),
                    on(device, parts.first),  on(device, parts.second),
                    on(device, parts.models), parts.norms.defined() ? parts.norms.to(device) : parts.norms};
    GetParam().step(work, clear_flag().to(device));
    EXPECT_TRUE(same_bytes(on_cpu(work.all()), expected.all()));
  }
};

TEST_P(HostSplitUpdate, HasTheBitsOfTheCpu) {
  for (const auto grad : {at::kBFloat16, at::kFloat}) {
    for (const auto remainder : {at::kShort, at::kChar}) {
      for (const int64_t offset : {0, 3}) {
        SCOPED_TRACE(::testing::Message() << remainder << ", offset " << offset);
        const Problem exact = kernels_test::make_problem(GetParam(), {grad, at::kFloat, at::kFloat, at::kDouble},
                                                         {0, 1, 7, 8, 33, 1025, is_small() ? 9 : 8193}, offset);
        expect_bits_of_the_cpu(kernels_test::split_problem(exact, remainder, offset));
      }
    }
  }
}

TEST_P(HostSplitUpdate, OfTinyValuesHasTheBitsOfTheCpu) {
  Problem exact = kernels_test::make_problem(GetParam(), {at::kBFloat16, at::kFloat, at::kFloat, at::kDouble}, {7, 1025});
  kernels_test::make_tiny(exact);
  expect_bits_of_the_cpu(kernels_test::split_problem(exact, at::kShort, /*offset=*/0));
}

INSTANTIATE_TEST_SUITE_P(Optimizers, HostSplitUpdate, ::testing::ValuesIn(kernels_test::cases_with_remainders()),
                         [](const auto& test) { return test.param.name; });

class HostCodedAdam : public OnFakeDevice {};

TEST_F(HostCodedAdam, HasTheBitsOfTheCpu) {
  for (const Kind kind : kKinds) {
    for (const auto grad : {at::kBFloat16, at::kFloat}) {
      const Coded coded = kernels_test::make_coded(kind, grad, {0, 1, 31, 33, 1030, is_small() ? 9 : 8193});
      const Coded expected = coded.copy();
      const c10::Device device = devices().front();
      const Coded work = {on(device, coded.grads), on(device, coded.params), on(device, coded.means), on(device, coded.squares),
                          on(device, coded.models)};
      for (int64_t step = 1; step < 3; ++step) {
        kernels_test::adam(expected, step);
        kernels_test::adam(work, step, clear_flag().to(device));
      }
      EXPECT_TRUE(same_bytes(on_cpu(work.all()), expected.all())) << static_cast<int>(kind);
    }
  }
}

// Parameters, and moments of 32 and 16 bits: what is bfloat16 is rounded at random.
TEST_F(HostCodedAdam, RoundsAtRandomToTheBitsOfTheCpu) {
  for (const auto moment : {at::kFloat, at::kBFloat16}) {
    Coded problem = kernels_test::make_coded(Kind::rounded, at::kBFloat16, {0, 1, 31, 33, 1030, is_small() ? 9 : 8193});
    for (size_t i = 0; i < problem.params.size(); ++i) {
      const int64_t numel = problem.params[i].numel();
      problem.means[i] = kernels_test::random_values(numel, moment);
      problem.squares[i] = kernels_test::random_values(numel, moment).square();
    }
    auto settings = kernels_test::adam_settings(5);
    settings.rounds_params_at_random = settings.rounds_moments_at_random = true;
    const Coded expected = problem.copy();
    kernels_test::adam(expected, settings);
    const c10::Device device = devices().front();
    const Coded work = {on(device, problem.grads), on(device, problem.params), on(device, problem.means),
                        on(device, problem.squares), on(device, problem.models)};
    kernels_test::adam(work, settings, clear_flag().to(device));
    EXPECT_TRUE(same_bytes(on_cpu(work.all()), expected.all())) << moment;
    EXPECT_FALSE(same_bytes(expected.params, problem.params)) << moment;
  }
}

}  // namespace
}  // namespace cuda_host_test
