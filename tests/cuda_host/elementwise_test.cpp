// Elementwise operations and norms: the bits of the CPU driver.
#include <ATen/ATen.h>

#include <cmath>

#include "tests/cuda_host/support.h"
#include "tests/kernels/support.h"

namespace cuda_host_test {
namespace {

namespace kernels = apex::kernels;
using kernels_test::clear_flag;
using kernels_test::dtypes;
using kernels_test::outputs_for;
using kernels_test::param_name;
using kernels_test::random_values;
using kernels_test::same_bits;

// Of sizes next to the boundaries of packs and spans, and of two chunks.
Tensors random_tensors(at::ScalarType dtype, int64_t offset) {
  Tensors list;
  for (const int64_t size : {0, 1, 7, 8, 9, 33, 8191, 8193, 65537}) {
    if (size < 8192 || !is_small()) list.push_back(random_values(size, dtype, offset));
  }
  return list;
}

at::Tensor flag_on(c10::Device device) { return clear_flag().to(device); }

using Mix = std::tuple<at::ScalarType, at::ScalarType>;
class HostMix : public OnFakeDeviceWith<Mix> {};

TEST_P(HostMix, ScaleAxpbyAndCopyHaveTheBitsOfTheCpu) {
  const auto [in_dtype, out_dtype] = GetParam();
  const Tensors x = random_tensors(in_dtype, 1), y = random_tensors(out_dtype, 5), out = outputs_for(x, out_dtype, 3);
  const auto run = [&](c10::Device device) {
    const Tensors a = on(device, x), b = on(device, y), to = on(device, out);
    const at::Tensor flag = flag_on(device);
    Tensors results;
    const auto keep = [&] {
      for (const at::Tensor& tensor : on_cpu(to)) results.push_back(tensor.clone());
      results.push_back(flag.cpu());
    };
    kernels::multi_tensor_scale(flag, a, to, 0.37);
    keep();
    kernels::multi_tensor_axpby(flag, to, b, to, 0.3, -1.7, kernels::CheckArg::both);
    keep();
    kernels::multi_tensor_unscale(flag, a, to, at::full({1}, 0.3f));
    keep();
    kernels::multi_tensor_unscale(flag, a, to, at::full({1}, 0.7f).to(device));
    keep();
    kernels::multi_tensor_copy(a, to);
    kernels::multi_tensor_check_finite(flag, a);
    keep();
    return results;
  };
  const Tensors expected = run(at::kCPU);
  for (const c10::Device device : devices()) EXPECT_TRUE(same_bits(run(device), expected)) << device;
}

INSTANTIATE_TEST_SUITE_P(Mixes, HostMix, ::testing::Combine(::testing::ValuesIn(dtypes()), ::testing::ValuesIn(dtypes())),
                         param_name<Mix>);

class HostFlag : public OnFakeDevice {};

TEST_F(HostFlag, IsRaisedByTheInputsThatAreChecked) {
  for (const auto dtype : dtypes()) {
    for (const c10::Device device : devices()) {
      const Tensors finite = on(device, {at::ones({70001}, dtype)});
      const Tensors infinite = on(device, {at::ones({70001}, dtype)}), out = on(device, {at::ones({70001}, dtype)});
      infinite[0][69999] = -INFINITY;
      const auto raised = [&](const auto& call) {
        const at::Tensor flag = flag_on(device);
        call(flag);
        return flag.item<int>() == 1;
      };
      using kernels::CheckArg;
      const auto axpby = [&](const Tensors& x, const Tensors& y, CheckArg check) {
        return raised([&](const at::Tensor& flag) { kernels::multi_tensor_axpby(flag, x, y, out, 1, 1, check); });
      };
      EXPECT_TRUE(axpby(infinite, finite, CheckArg::x) && axpby(finite, infinite, CheckArg::y));
      EXPECT_FALSE(axpby(infinite, finite, CheckArg::y) || axpby(finite, infinite, CheckArg::x));
      EXPECT_TRUE(axpby(infinite, finite, CheckArg::both) && axpby(finite, infinite, CheckArg::both));
      EXPECT_FALSE(axpby(finite, finite, CheckArg::both));
      EXPECT_TRUE(raised([&](const at::Tensor& flag) { kernels::multi_tensor_scale(flag, infinite, out, 1); }));
      EXPECT_FALSE(raised([&](const at::Tensor& flag) { kernels::multi_tensor_scale(flag, finite, out, 1); }));
      EXPECT_TRUE(raised([&](const at::Tensor& flag) { kernels::multi_tensor_check_finite(flag, infinite); }));
      EXPECT_TRUE(raised([&](const at::Tensor& flag) { kernels::multi_tensor_l2norm(flag, infinite, false); }));
      EXPECT_TRUE(raised([&](const at::Tensor& flag) { kernels::multi_tensor_maxnorm(flag, infinite, false); }));
    }
  }
}

TEST_F(HostFlag, OnTheCpuIsRaisedToo) {
  const Tensors infinite = on(kDevice, {at::full({3}, INFINITY)});
  const at::Tensor flag = clear_flag();
  kernels::multi_tensor_l2norm(flag, infinite, false);
  EXPECT_EQ(flag.item<int>(), 1);
}

TEST_F(HostFlag, MayHaveNoDimensionsOnAnotherDevice) {
  const Tensors in = on(devices().front(), {at::full({3}, INFINITY)}), out = on(devices().front(), {at::zeros({3})});
  const at::Tensor flag = at::zeros({}, at::kInt);
  kernels::multi_tensor_scale(flag, in, out, 0.5);
  EXPECT_EQ(flag.item<int>(), 1);
}

class HostNorms : public OnFakeDevice {};

Tensors norms_of(const Tensors& in, const at::Tensor& flag, const at::Tensor& inv_scale) {
  const auto l2 = kernels::multi_tensor_l2norm(flag, in, true);
  const auto unscaled = kernels::multi_tensor_unscale_l2norm(flag, in, inv_scale, true);
  const auto largest = kernels::multi_tensor_maxnorm(flag, in, true);
  return {std::get<0>(l2),
          std::get<1>(l2),
          std::get<0>(unscaled),
          std::get<1>(unscaled),
          std::get<0>(largest),
          std::get<1>(largest),
          flag};
}

void expect_norms_of_the_cpu(const Tensors& in) {
  const at::Tensor inv_scale = at::full({1}, 1.0f / 3);
  const Tensors expected = norms_of(in, clear_flag(), inv_scale);
  for (const c10::Device device : devices()) {
    const Tensors there = on(device, in);
    for (int i = 0; i < 2; ++i) {
      EXPECT_TRUE(same_bits(on_cpu(norms_of(there, flag_on(device), inv_scale.to(device))), expected)) << device;
    }
  }
}

TEST_F(HostNorms, HaveTheBitsOfTheCpu) {
  Tensors mixed;
  for (const auto dtype : dtypes()) {
    for (const at::Tensor& tensor : random_tensors(dtype, 3)) mixed.push_back(tensor);
  }
  expect_norms_of_the_cpu(mixed);
}

// More tensors and more chunks than lanes: a lane adds several.
TEST_F(HostNorms, OfManyTensorsAndOfManyChunksHaveTheBitsOfTheCpu) {
  Tensors many;
  for (int64_t i = 0; i < (is_small() ? 20 : 600); ++i) many.push_back(random_values(i % 3, at::kFloat));
  expect_norms_of_the_cpu(many);
  expect_norms_of_the_cpu({random_values((int64_t{is_small() ? 3 : 20} << 16) + 5, at::kBFloat16, 1)});
}

TEST_F(HostNorms, OfNothingAreZero) {
  expect_norms_of_the_cpu({at::empty({0})});
  const auto [total, each] = kernels::multi_tensor_l2norm(flag_on(kDevice), {}, true);
  EXPECT_EQ(total.item<float>(), 0);
  EXPECT_EQ(each.numel(), 0);
}

TEST_F(HostNorms, OfTensorsOnSeveralDevicesHaveTheBitsOfTheCpu) {
  const Tensors in = random_tensors(at::kFloat, 0);
  Tensors mixed = in;
  for (size_t i = 0; i < mixed.size(); ++i) {
    if (i % 4 != 3) mixed[i] = in[i].to(c10::Device(at::kCUDA, static_cast<c10::DeviceIndex>(i % 4)));
  }
  const auto [expected, expected_each] = kernels::multi_tensor_l2norm(clear_flag(), in, true);
  const auto [total, each] = kernels::multi_tensor_l2norm(flag_on(kDevice), mixed, true);
  EXPECT_TRUE(same_bits(total.cpu(), expected));
  EXPECT_TRUE(same_bits(each.cpu(), expected_each));
}

class HostSharedMemory : public OnFakeDevice {};

// LibTorch copies shared memory to the current device when it is asked for an address to write to.
TEST_F(HostSharedMemory, IsCopiedOnItsDevice) {
  const at::Tensor written = random_values(100, at::kFloat).to(kDevice), before = written.cpu();
  const at::Tensor other = at::_lazy_clone(written);
  kernels::multi_tensor_scale(flag_on(kDevice), {written}, {written}, 2);
  EXPECT_EQ(written.storage().data_ptr().device(), kDevice);
  EXPECT_TRUE(same_bits(written.cpu(), before * 2));
  EXPECT_TRUE(same_bits(other.cpu(), before));
}

class HostLossScale : public OnFakeDevice {};

TEST_F(HostLossScale, IsUpdatedLikeOnTheCpu) {
  EXPECT_TRUE(same_bits(kernels_test::updated_loss_scales(kDevice), kernels_test::updated_loss_scales(at::kCPU)));
}

}  // namespace
}  // namespace cuda_host_test
