// The kernels on a GPU: the bits of the CPU driver, and no host waits.
#include <c10/cuda/CUDAGuard.h>

#include <cmath>

#include "tests/cuda/host_waits.h"
#include "tests/cuda/support.h"

namespace cuda_test {
namespace {

namespace kernels = apex::kernels;
using kernels_test::boundary_sizes;
using kernels_test::Case;
using kernels_test::cases;
using kernels_test::clear_flag;
using kernels_test::dtypes;
using kernels_test::make_problem;
using kernels_test::outputs_for;
using kernels_test::param_name;
using kernels_test::random_list;
using kernels_test::random_values;
using kernels_test::same_bits;
using kernels_test::same_bytes;
using kernels_test::Storage;
using kernels_test::storages;

const Storage kMasters = {at::kHalf, at::kFloat, at::kFloat, at::kHalf};

class GpuUpdate : public OnGpuWith<Case> {
 protected:
  static void expect_same_update(const Problem& problem) {
    Problem expected = problem.copy(), work = on_gpu(problem);
    GetParam().step(expected, clear_flag());
    const at::Tensor flag = clear_flag_on_gpu();
    GetParam().step(work, flag);
    EXPECT_TRUE(same_bytes(on_cpu(work.all()), expected.all()));
    EXPECT_EQ(flag.item<int>(), 0);
  }
};

TEST_P(GpuUpdate, HasTheBitsOfTheCpuForEveryDtypeMix) {
  for (const Storage& storage : storages()) {
    SCOPED_TRACE(storage.name());
    expect_same_update(make_problem(GetParam(), storage, boundary_sizes(), /*offset=*/1));
  }
}

TEST_P(GpuUpdate, HasTheBitsOfTheCpuForManyAndForLargeTensors) {
  expect_same_update(make_problem(GetParam(), kMasters, std::vector<int64_t>(2000, 1023)));
  expect_same_update(make_problem(GetParam(), kMasters, {(int64_t{40} << 20) + 3, 17}));
}

TEST_P(GpuUpdate, ChangesNothingIfFoundInfIsSet) {
  const Problem problem = make_problem(GetParam(), kMasters, {1, 33, 70000});
  Problem work = on_gpu(problem), before = problem.copy();
  GetParam().step(work, clear_flag_on_gpu().fill_(1));
  EXPECT_TRUE(same_bytes(on_cpu(work.all()), before.all()));
}

TEST_P(GpuUpdate, DoesNotWaitForTheDevice) {
  Problem work = on_gpu(make_problem(GetParam(), kMasters, {1, 33, 70000}));
  const at::Tensor flag = clear_flag_on_gpu();
  GetParam().step(work, flag);
  const NoWaiting no_waiting;
  const int64_t waits = host_waits();
  EXPECT_NO_THROW(GetParam().step(work, flag));
  EXPECT_EQ(host_waits(), waits);
}

TEST_P(GpuUpdate, OnAnotherStreamUsesTheSameTensors) {
  const Problem problem = make_problem(GetParam(), kMasters, {1, 33, 70000});
  Problem expected = problem.copy(), work = on_gpu(problem);
  const at::Tensor flag = clear_flag_on_gpu();
  for (int i = 0; i < 3; ++i) GetParam().step(expected, clear_flag());
  c10::cuda::device_synchronize();
  for (int i = 0; i < 3; ++i) {
    const auto stream = c10::cuda::getStreamFromPool();
    const c10::cuda::CUDAStreamGuard guard(stream);
    GetParam().step(work, flag);
    stream.synchronize();
  }
  EXPECT_TRUE(same_bytes(on_cpu(work.all()), expected.all()));
}

INSTANTIATE_TEST_SUITE_P(Optimizers, GpuUpdate, ::testing::ValuesIn(cases()), [](const auto& test) { return test.param.name; });

// Values of all exponents: a device divides moderate values by another sequence than the rest.
TEST_P(GpuUpdate, HasTheBitsOfTheCpuForWildValues) {
  Problem problem = make_problem(GetParam(), kMasters, {70001});
  const auto scaled = [](const at::Tensor& tensor) {
    tensor.mul_(at::exp2(at::randint(-30, 31, tensor.sizes()).to(at::kFloat)).to(tensor.scalar_type()));
  };
  for (int times = 0; times < 4; ++times) {
    for (const Tensors& list : {problem.params, problem.first, problem.second}) {
      for (const at::Tensor& tensor : list) scaled(tensor);
    }
  }
  Problem expected = problem.copy(), work = on_gpu(problem);
  GetParam().step(expected, clear_flag());
  GetParam().step(work, clear_flag_on_gpu());
  EXPECT_TRUE(same_bits(on_cpu(work.all()), expected.all()));
}

// --- Elementwise operations and norms

using Mix = std::tuple<at::ScalarType, at::ScalarType>;
class GpuMix : public OnGpuWith<Mix> {};

TEST_P(GpuMix, ScaleAxpbyAndCopyHaveTheBitsOfTheCpu) {
  const auto [in_dtype, out_dtype] = GetParam();
  const Tensors x = random_list(in_dtype, 1), y = random_list(out_dtype, 5);
  const auto run = [&](const Tensors& a, const Tensors& b, const at::Tensor& flag, Tensors out) {
    kernels::multi_tensor_scale(flag, a, out, 0.37);
    kernels::multi_tensor_axpby(flag, out, b, out, 0.3, -1.7, kernels::CheckArg::both);
    Tensors results = on_cpu(out);
    for (const at::Tensor& inv_scale : {at::full({1}, 0.3f), at::full({1}, 0.3f, flag.options().dtype(at::kFloat))}) {
      kernels::multi_tensor_unscale(flag, a, out, inv_scale);
      for (const at::Tensor& unscaled : on_cpu(out)) results.push_back(unscaled);
    }
    kernels::multi_tensor_check_finite(flag, a);
    results.push_back(flag.cpu());
    kernels::multi_tensor_copy(a, out);
    out.insert(out.end(), results.begin(), results.end());
    return out;
  };
  const Tensors expected = run(x, y, clear_flag(), outputs_for(x, out_dtype, 3));
  EXPECT_TRUE(
      same_bits(on_cpu(run(on_gpu(x), on_gpu(y), clear_flag_on_gpu(), on_gpu(outputs_for(x, out_dtype, 3)))), expected));
}

INSTANTIATE_TEST_SUITE_P(Mixes, GpuMix, ::testing::Combine(::testing::ValuesIn(dtypes()), ::testing::ValuesIn(dtypes())),
                         param_name<Mix>);

class GpuNorms : public OnGpu {};

TEST_F(GpuNorms, HaveTheBitsOfTheCpu) {
  Tensors mixed;
  for (const auto dtype : dtypes()) {
    for (const at::Tensor& tensor : random_list(dtype, 3)) mixed.push_back(tensor);
  }
  mixed.push_back(random_values((int64_t{530} << 16) + 77, at::kHalf));
  const at::Tensor inv_scale = at::full({1}, 1.0 / 3, at::kFloat);
  const auto run = [](const Tensors& in, const at::Tensor& flag, const at::Tensor& scale) {
    const auto l2 = kernels::multi_tensor_l2norm(flag, in, true);
    const auto unscaled = kernels::multi_tensor_unscale_l2norm(flag, in, scale, true);
    const auto largest = kernels::multi_tensor_maxnorm(flag, in, true);
    return Tensors{std::get<0>(l2),
                   std::get<1>(l2),
                   std::get<0>(unscaled),
                   std::get<1>(unscaled),
                   std::get<0>(largest),
                   std::get<1>(largest),
                   flag};
  };
  const Tensors expected = run(mixed, clear_flag(), inv_scale);
  const Tensors there = on_gpu(mixed);
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(same_bits(on_cpu(run(there, clear_flag_on_gpu(), inv_scale.cuda())), expected));
}

TEST_F(GpuNorms, SetTheFlagOnAnyDevice) {
  Tensors in = on_gpu({at::ones({70001}, at::kHalf)});
  in[0][70000] = INFINITY;
  for (const at::Tensor& flag : {clear_flag(), clear_flag_on_gpu()}) {
    kernels::multi_tensor_l2norm(flag, in, false);
    EXPECT_EQ(flag.item<int>(), 1);
  }
}

// One call with tensors on both devices.
TEST_F(GpuNorms, OfTensorsOnSeveralDevicesHaveTheBitsOfTheCpu) {
  const Tensors in = random_list(at::kFloat);
  Tensors mixed = on_gpu(in);
  for (size_t i = 1; i < mixed.size(); i += 2) mixed[i] = in[i];
  const auto [expected, expected_each] = kernels::multi_tensor_l2norm(clear_flag(), in, true);
  const auto [total, each] = kernels::multi_tensor_l2norm(clear_flag_on_gpu(), mixed, true);
  EXPECT_TRUE(same_bits(total.cpu(), expected));
  EXPECT_TRUE(same_bits(each.cpu(), expected_each));
}

class GpuLossScale : public OnGpu {};

TEST_F(GpuLossScale, IsUpdatedLikeOnTheCpu) {
  EXPECT_TRUE(same_bits(kernels_test::updated_loss_scales(at::kCUDA), kernels_test::updated_loss_scales(at::kCPU)));
}

}  // namespace
}  // namespace cuda_test
