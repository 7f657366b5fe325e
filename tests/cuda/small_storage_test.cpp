// Parameters with remainders and moments in 8 bits on a GPU: the bits of the CPU driver, in kernels and in optimizers.
#include <apex_cpp/amp.h>
#include <apex_cpp/optimizers.h>
#include <torch/torch.h>

#include "tests/cuda/support.h"
#include "tests/kernels/small_problems.h"

namespace cuda_test {
namespace {

namespace amp = apex::amp;
namespace kernels = apex::kernels;
using namespace apex::optimizers;
using kernels_test::Case;
using kernels_test::clear_flag;
using kernels_test::Coded;
using kernels_test::Kind;
using kernels_test::kKinds;
using kernels_test::same_bytes;

const std::vector<int64_t> kSizes = {0, 1, 7, 8, 9, 33, 511, 513, 8193, 65537, (int64_t{4} << 20) + 3};

class GpuSplitUpdate : public OnGpuWith<Case> {};

TEST_P(GpuSplitUpdate, HasTheBitsOfTheCpu) {
  for (const auto grad : {at::kBFloat16, at::kHalf, at::kFloat}) {
    for (const auto remainder : {at::kShort, at::kChar}) {
      for (const int64_t offset : {0, 3}) {
        const Problem exact = kernels_test::make_problem(GetParam(), {grad, at::kFloat, at::kFloat, at::kDouble}, kSizes);
        const Problem parts = kernels_test::split_problem(exact, remainder, offset);
        Problem expected = parts.copy(), work = on_gpu(parts);
        GetParam().step(expected, clear_flag());
        GetParam().step(work, clear_flag_on_gpu());
        EXPECT_TRUE(same_bytes(on_cpu(work.all()), expected.all())) << grad << ", " << remainder << ", " << offset;
      }
    }
  }
}

TEST_P(GpuSplitUpdate, OfTinyValuesHasTheBitsOfTheCpu) {
  Problem exact = kernels_test::make_problem(GetParam(), {at::kBFloat16, at::kFloat, at::kFloat, at::kDouble}, {7, 1025});
  kernels_test::make_tiny(exact);
  const Problem parts = kernels_test::split_problem(exact, at::kShort, /*offset=*/0);
  Problem expected = parts.copy(), work = on_gpu(parts);
  GetParam().step(expected, clear_flag());
  GetParam().step(work, clear_flag_on_gpu());
  EXPECT_TRUE(same_bytes(on_cpu(work.all()), expected.all()));
}

INSTANTIATE_TEST_SUITE_P(Optimizers, GpuSplitUpdate, ::testing::ValuesIn(kernels_test::cases_with_remainders()),
                         [](const auto& test) { return test.param.name; });

class GpuCodedAdam : public OnGpu {
 protected:
  static Coded on_gpu_too(const Coded& coded) {
    return {on_gpu(coded.grads), on_gpu(coded.params), on_gpu(coded.means), on_gpu(coded.squares), on_gpu(coded.models)};
  }
};

TEST_F(GpuCodedAdam, HasTheBitsOfTheCpu) {
  for (const Kind kind : kKinds) {
    for (const auto grad : {at::kBFloat16, at::kHalf, at::kFloat}) {
      const Coded coded = kernels_test::make_coded(kind, grad, {0, 1, 31, 33, 1030, 8193, 65537, 300001});
      const Coded expected = coded.copy(), work = on_gpu_too(coded);
      for (int64_t step = 1; step < 4; ++step) {
        kernels_test::adam(expected, step);
        kernels_test::adam(work, step, clear_flag_on_gpu());
      }
      EXPECT_TRUE(same_bytes(on_cpu(work.all()), expected.all())) << static_cast<int>(kind) << ", " << grad;
    }
  }
}

TEST_F(GpuCodedAdam, ChangesNothingIfFoundInfIsSet) {
  const Coded coded = kernels_test::make_coded(Kind::split8, at::kBFloat16), work = on_gpu_too(coded);
  kernels_test::adam(work, 5, clear_flag_on_gpu().fill_(1));
  EXPECT_TRUE(same_bytes(on_cpu(work.all()), coded.all()));
}

// ---- the optimizer ----

class GpuSmallStorage : public OnGpuWith<MomentStorage> {
 protected:
  static FusedAdamOptions options() {
    return FusedAdamOptions(0.01).master_storage(MasterStorage::remainder8).moment_storage(GetParam());
  }
  static Tensors made(const Tensors& like, c10::Device device) {
    Tensors params;
    for (const at::Tensor& param : like)
      params.push_back(param.detach().to(device, /*non_blocking=*/false, /*copy=*/true).requires_grad_());
    return params;
  }
  static void step(FusedAdam& optimizer, const Tensors& params, uint64_t seed) {
    torch::manual_seed(seed);
    for (const at::Tensor& param : params) param.mutable_grad() = at::randn(param.sizes()).to(at::kBFloat16).to(param.device());
    optimizer.step();
  }
};

// Steps on both devices, with states that travel through a file in between.
TEST_P(GpuSmallStorage, MovesBetweenDevicesWithItsBits) {
  const Tensors start = {at::randn({70, 33}).to(at::kBFloat16), at::randn({5}).to(at::kBFloat16)};
  const Tensors here = made(start, at::kCPU), there = made(start, at::kCUDA);
  FusedAdam on_host(here, options()), on_device(there, options());
  for (uint64_t seed = 0; seed < 3; ++seed) {
    step(on_host, here, seed);
    step(on_device, there, seed);
  }
  EXPECT_TRUE(same_bytes(on_cpu(there), on_cpu(here)));
  const Tensors back = made(there, at::kCPU);
  FusedAdam loaded(back, options());
  std::stringstream file;
  torch::save(on_device, file);
  torch::load(loaded, file);
  for (uint64_t seed = 3; seed < 5; ++seed) {
    step(on_host, here, seed);
    step(loaded, back, seed);
  }
  EXPECT_TRUE(same_bytes(on_cpu(back), on_cpu(here)));
  for (size_t i = 0; i < back.size(); ++i) {
    EXPECT_TRUE(same_bytes({loaded.kept_master_of(back[i])}, {on_host.kept_master_of(here[i])}));
  }
}

INSTANTIATE_TEST_SUITE_P(Moments, GpuSmallStorage,
                         ::testing::Values(MomentStorage::float32, MomentStorage::bfloat16, MomentStorage::int8),
                         [](const auto& test) { return name_of(test.param); });

}  // namespace
}  // namespace cuda_test
