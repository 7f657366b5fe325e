// Optimizer updates: the bits of the CPU driver.
#include <ATen/ATen.h>

#include <cmath>

#include "tests/cuda_host/runtime/control.h"
#include "tests/cuda_host/support.h"
#include "tests/kernels/optimizer_cases.h"

namespace cuda_host_test {
namespace {

namespace kernels = apex::kernels;
using kernels_test::Case;
using kernels_test::cases;
using kernels_test::clear_flag;
using kernels_test::make_problem;
using kernels_test::Problem;
using kernels_test::same_bytes;
using kernels_test::Storage;
using kernels_test::storages;

const Storage kMasters = {at::kHalf, at::kFloat, at::kFloat, at::kHalf};

Problem moved(c10::Device device, const Problem& problem) {
  return {on(device, problem.grads),  on(device, problem.params),
          on(device, problem.first),  on(device, problem.second),
          on(device, problem.models), problem.norms.defined() ? problem.norms.to(device) : problem.norms};
}

class HostUpdate : public OnFakeDeviceWith<Case> {
 protected:
  static void expect_the_bits_of_the_cpu(const Problem& problem, int steps = 1,
                                         std::vector<c10::Device> on_devices = devices()) {
    Problem expected = problem.copy();
    for (int i = 0; i < steps; ++i) GetParam().step(expected, clear_flag());
    for (const c10::Device device : on_devices) {
      Problem work = moved(device, problem);
      const at::Tensor flag = clear_flag().to(device);
      for (int i = 0; i < steps; ++i) GetParam().step(work, flag);
      EXPECT_TRUE(same_bytes(on_cpu(work.all()), expected.all())) << device;
      EXPECT_EQ(flag.item<int>(), 0);
    }
  }
};

// Sizes next to the boundaries of packs and spans.
TEST_P(HostUpdate, HasTheBitsOfTheCpuForEveryDtypeMix) {
  for (const Storage& storage : storages()) {
    SCOPED_TRACE(storage.name());
    expect_the_bits_of_the_cpu(make_problem(GetParam(), storage, {0, 1, 7, 8, 9, 33, 1025}, /*offset=*/3), /*steps=*/1,
                               {devices().front()});
    if (is_small()) return;
  }
}

TEST_P(HostUpdate, HasTheBitsOfTheCpuForTensorsOfSeveralParts) {
  expect_the_bits_of_the_cpu(make_problem(GetParam(), kMasters, {8191, 8193, 65537, 0, 2 * 65536 + 5, 65536, 1}, /*offset=*/1));
}

TEST_P(HostUpdate, HasTheBitsOfTheCpuForManyTensors) {
  std::vector<int64_t> sizes;
  for (int64_t i = 0; i < (is_small() ? 10 : 60); ++i) sizes.push_back(i * 7 % 40);
  expect_the_bits_of_the_cpu(make_problem(GetParam(), kMasters, sizes, /*offset=*/1));
}

// Every pair of alignments of the two 16-bit lists, and of the lists of float32.
TEST_P(HostUpdate, HasTheBitsOfTheCpuAtEveryAlignment) {
  for (int64_t offset = 0; offset < 8; ++offset) {
    Problem problem = make_problem(GetParam(), kMasters, {37, 530}, offset);
    const Problem other = make_problem(GetParam(), kMasters, {37, 530}, /*offset=*/5);
    problem.params = other.params;
    problem.models = other.models;
    expect_the_bits_of_the_cpu(problem);
  }
}

TEST_P(HostUpdate, CanBeRepeatedWithTheSameTensors) {
  expect_the_bits_of_the_cpu(make_problem(GetParam(), kMasters, {70000, 33, 0}), /*steps=*/3);
}

TEST_P(HostUpdate, ChangesNothingIfFoundInfIsSet) {
  const Problem problem = make_problem(GetParam(), kMasters, {1, 33, 70000});
  Problem work = moved(kDevice, problem), before = problem.copy();
  GetParam().step(work, at::ones({1}, at::kInt).to(kDevice));
  EXPECT_TRUE(same_bytes(on_cpu(work.all()), before.all()));
}

TEST_P(HostUpdate, DoesNotWaitForTheDevice) {
  Problem work = moved(kDevice, make_problem(GetParam(), kMasters, {1, 33, 70000}));
  const at::Tensor flag = clear_flag().to(kDevice);
  for (int step = 0; step < 2; ++step) {  // the first makes the table
    const int64_t waits = cuda_host::host_waits(), launches = cuda_host::launches();
    GetParam().step(work, flag);
    EXPECT_EQ(cuda_host::host_waits(), waits);
    EXPECT_GE(cuda_host::launches() - launches, 1);
    EXPECT_LE(cuda_host::launches() - launches, 2);
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, HostUpdate, ::testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

class HostSteps : public OnFakeDevice {};

// The kernels count steps, without elements too.
TEST_F(HostSteps, AreCountedOnTheDevice) {
  for (const int64_t size : {0, 5, 70001}) {
    const c10::Device device = kDevice;
    const Tensors grads = on(device, {at::ones({size})}), params = on(device, {at::ones({size})});
    const Tensors means = on(device, {at::zeros({size})}), squares = on(device, {at::zeros({size})});
    kernels::StepTensors tensors;
    tensors.step = clear_flag().to(device);
    tensors.found_inf = clear_flag().to(device);
    for (int i = 0; i < 3; ++i) kernels::multi_tensor_adam(grads, params, means, squares, {}, {}, tensors);
    tensors.found_inf.fill_(1);
    kernels::multi_tensor_adam(grads, params, means, squares, {}, {}, tensors);
    EXPECT_EQ(tensors.step.item<int>(), 3) << size;
  }
}

// NovoGrad finds gradients that are not finite by itself.
TEST_F(HostSteps, OfNovoGradStopThemselves) {
  for (const auto norm_type : {kernels::NormType::l2, kernels::NormType::inf}) {
    kernels::NovoGradSettings settings;
    settings.norm_type = norm_type;
    const c10::Device device = kDevice;
    kernels::StepTensors tensors;
    tensors.step = clear_flag().to(device);
    tensors.found_inf = clear_flag().to(device);
    const Tensors grads = on(device, {at::ones({40}), at::ones({70000})}),
                  params = on(device, {at::ones({40}), at::ones({70000})});
    const Tensors means = on(device, {at::ones({40}), at::ones({70000})});
    const at::Tensor norms = at::ones({2}).to(device);
    grads[1][69999] = INFINITY;
    kernels::multi_tensor_novograd(grads, params, means, norms, {}, settings, tensors);
    EXPECT_EQ(tensors.found_inf.item<int>(), 1);
    EXPECT_EQ(tensors.step.item<int>(), 0);
    for (const at::Tensor& tensor : {params[0], params[1], means[0], means[1], norms}) {
      EXPECT_TRUE(tensor.cpu().eq(1).all().item<bool>());
    }
  }
}

}  // namespace
}  // namespace cuda_host_test
