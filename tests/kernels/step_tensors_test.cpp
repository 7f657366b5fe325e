// Step tensors replace or scale settings when the update runs, in both drivers (FOPT capturable).
#include <gtest/gtest.h>

#include <optional>

#include "tests/kernels/host_grid.h"
#include "tests/kernels/optimizer_cases.h"

namespace kernels_test {
namespace {

namespace kernels = apex::kernels;

const std::vector<int64_t> kStepTensorSizes = {0, 1, 33, 8200};

// With the CPU driver and with the CUDA driver: both must give the same bits.
class StepTensors : public ::testing::TestWithParam<bool> {
 protected:
  StepTensors() {
    if (GetParam()) grid_.emplace();
  }

  std::optional<OnHostGrid> grid_;
};

// An update of tensors with different dtypes: several groups on the CPU.
struct Lists {
  Tensors grads, params, first, second, updates;

  Lists() {
    for (const auto dtype : {at::kHalf, at::kBFloat16, at::kFloat}) {
      for (const int64_t size : kStepTensorSizes) {
        grads.push_back(random_values(size, dtype));
        params.push_back(random_values(size, at::kFloat));
        first.push_back(random_values(size, at::kFloat));
        second.push_back(random_values(size, at::kFloat).abs());
        updates.push_back(at::zeros({size}));
      }
    }
  }
  Lists(const Lists& other)
      : grads(copies_of(other.grads)),
        params(copies_of(other.params)),
        first(copies_of(other.first)),
        second(copies_of(other.second)),
        updates(copies_of(other.updates)) {}

  Tensors all() const {
    Tensors tensors;
    for (const Tensors& list : {grads, params, first, second, updates}) tensors.insert(tensors.end(), list.begin(), list.end());
    return tensors;
  }
};

at::Tensor number(double value) { return at::full({1}, value, at::kFloat); }
at::Tensor steps(int64_t count) { return at::full({1}, count, at::kInt); }

// Runs the update with values in the settings, and with the same values in tensors.
template <class Settings, class Run>
void expect_tensors_to_count(const Run& run) {
  constexpr bool kHasStep = std::is_base_of_v<kernels::MomentSettings, Settings>;
  const Lists before;
  Lists with_values(before), with_tensors(before);
  Settings settings;
  settings.weight_decay = 0.1;
  Settings values = settings, replaced = settings;
  kernels::StepTensors tensors;
  // float32 values: what a tensor can hold.
  values.grad_scale = 0.5 * static_cast<double>(0.3f);
  values.lr = static_cast<double>(0.01f);
  replaced.grad_scale = 0.5;
  tensors.grad_scale = number(0.3f);
  replaced.lr = 77;
  tensors.lr = number(0.01f);
  if constexpr (kHasStep) {
    values.step = 1001;
    replaced.step = 77;
    tensors.step = steps(1000);
  }
  run(with_values, values, kernels::StepTensors());
  run(with_tensors, replaced, tensors);
  EXPECT_TRUE(same_bytes(with_tensors.all(), with_values.all()));
  EXPECT_FALSE(same_bytes(with_tensors.all(), before.all()));
  if constexpr (kHasStep) {
    EXPECT_EQ(tensors.step.item<int>(), 1001);
  }
}

TEST_P(StepTensors, CountForSgd) {
  expect_tensors_to_count<kernels::SgdSettings>([](Lists& l, const auto& settings, const auto& tensors) {
    kernels::multi_tensor_sgd(l.grads, l.params, {}, {}, settings, tensors);
  });
  expect_tensors_to_count<kernels::SgdSettings>([](Lists& l, auto settings, const auto& tensors) {
    settings.momentum = 0.9;
    kernels::multi_tensor_sgd(l.grads, l.params, l.first, {}, settings, tensors);
  });
}

TEST_P(StepTensors, CountForAdam) {
  expect_tensors_to_count<kernels::AdamSettings>([](Lists& l, const auto& settings, const auto& tensors) {
    kernels::multi_tensor_adam(l.grads, l.params, l.first, l.second, {}, settings, tensors);
  });
}

TEST_P(StepTensors, CountForAdagrad) {
  expect_tensors_to_count<kernels::AdagradSettings>([](Lists& l, const auto& settings, const auto& tensors) {
    kernels::multi_tensor_adagrad(l.grads, l.params, l.second, {}, settings, tensors);
  });
}

TEST_P(StepTensors, CountForNovoGrad) {
  for (const auto norm_type : {kernels::NormType::l2, kernels::NormType::inf}) {
    expect_tensors_to_count<kernels::NovoGradSettings>([&](Lists& l, auto settings, const auto& tensors) {
      settings.norm_type = norm_type;
      const at::Tensor norms = at::ones({static_cast<int64_t>(l.grads.size())});
      kernels::multi_tensor_novograd(l.grads, l.params, l.first, norms, {}, settings, tensors);
      l.updates.push_back(norms);
    });
  }
}

// The first stage counts the step, the second does not count it again.
TEST_P(StepTensors, CountForLamb) {
  expect_tensors_to_count<kernels::LambSettings>([](Lists& l, const auto& settings, const auto& tensors) {
    const auto norms =
        kernels::multi_tensor_lamb_stage_1(l.grads, l.params, l.first, l.second, l.updates, number(3.5), settings, tensors);
    kernels::multi_tensor_lamb_stage_2(l.updates, l.params, {}, norms, settings, tensors);
  });
}

TEST_P(StepTensors, CountForLambWithRemainders) {
  expect_tensors_to_count<kernels::LambSettings>([](Lists& l, const auto& settings, const auto& tensors) {
    for (size_t i = 0; i < l.params.size(); ++i) {
      l.params[i] = l.params[i].to(at::kBFloat16);
      l.updates[i] = at::full_like(l.params[i], 5, at::kShort);
    }
    kernels::multi_tensor_split_lamb(l.grads, l.params, l.first, l.second, l.updates, number(3.5), settings, tensors);
  });
}

TEST_P(StepTensors, CountForLarc) {
  expect_tensors_to_count<kernels::LarcSettings>([](Lists& l, const auto& settings, const auto& tensors) {
    kernels::multi_tensor_larc(l.grads, l.params, settings, tensors);
  });
}

TEST_P(StepTensors, CountForLion) {
  expect_tensors_to_count<kernels::LionSettings>([](Lists& l, const auto& settings, const auto& tensors) {
    kernels::multi_tensor_lion(l.grads, l.params, l.first, {}, settings, tensors);
  });
}

TEST_P(StepTensors, CountForLars) {
  expect_tensors_to_count<kernels::LarsSettings>([](Lists& l, auto settings, const auto& tensors) {
    settings.momentum = 0.9;
    kernels::multi_tensor_lars(l.grads, l.params, l.first, {}, /*norms=*/{}, settings, tensors);
  });
}

TEST_P(StepTensors, CountForScheduleFreeAdamW) {
  expect_tensors_to_count<kernels::ScheduleFreeSettings>([](Lists& l, auto settings, const auto& tensors) {
    settings.average_weight = 0.25;
    kernels::multi_tensor_schedule_free_adamw(l.grads, l.params, l.first, l.second, {}, settings, tensors);
  });
}

// An update that does not count steps leaves the count alone.
TEST_P(StepTensors, AStepCountIsOnlyForUpdatesWithMeans) {
  Lists lists;
  kernels::StepTensors tensors;
  tensors.step = steps(5);
  kernels::multi_tensor_sgd(lists.grads, lists.params, {}, {}, {}, tensors);
  EXPECT_EQ(tensors.step.item<int>(), 5);
}

TEST_P(StepTensors, AreReadAnewInEveryCall) {
  Lists values, tensors(values);
  kernels::AdamSettings by_value;
  kernels::StepTensors by_tensor;
  by_tensor.step = steps(0);
  by_tensor.lr = number(0);
  for (int step = 1; step <= 4; ++step) {
    by_value.step = step;
    by_value.lr = static_cast<double>(static_cast<float>(0.1 * step));
    by_tensor.lr.fill_(0.1 * step);
    kernels::multi_tensor_adam(values.grads, values.params, values.first, values.second, {}, by_value);
    kernels::multi_tensor_adam(tensors.grads, tensors.params, tensors.first, tensors.second, {}, {}, by_tensor);
    ASSERT_TRUE(same_bytes(tensors.all(), values.all())) << step;
    ASSERT_EQ(by_tensor.step.item<int>(), step);
  }
}

TEST_P(StepTensors, AStoppedCallIsNoStep) {
  Lists lists;
  const Lists before(lists);
  kernels::StepTensors tensors;
  tensors.found_inf = at::ones({1}, at::kInt);
  tensors.step = steps(5);
  kernels::multi_tensor_adam(lists.grads, lists.params, lists.first, lists.second, {}, {}, tensors);
  kernels::multi_tensor_lamb_stage_1(lists.grads, lists.params, lists.first, lists.second, lists.updates, {}, {}, tensors);
  EXPECT_EQ(tensors.step.item<int>(), 5);
  EXPECT_TRUE(same_bytes(lists.all(), before.all()));
}

TEST_P(StepTensors, ACallWithoutElementsIsAStep) {
  kernels::StepTensors tensors;
  tensors.step = steps(5);
  kernels::multi_tensor_adam({}, {}, {}, {}, {}, {}, tensors);
  EXPECT_EQ(tensors.step.item<int>(), 6);
  const Tensors a = {at::ones({0})}, b = {at::ones({0})}, c = {at::ones({0})}, d = {at::ones({0})};
  kernels::multi_tensor_adam(a, b, c, d, {}, {}, tensors);
  EXPECT_EQ(tensors.step.item<int>(), 7);
}

// The kernels have no such device; LibTorch counts there.
TEST_P(StepTensors, ACallWithoutElementsIsAStepOnAnyDevice) {
  kernels::StepTensors tensors;
  tensors.step = at::zeros({1}, at::TensorOptions().dtype(at::kInt).device(at::kMeta));
  const int64_t version = tensors.step._version();
  kernels::multi_tensor_adam({}, {}, {}, {}, {}, {}, tensors);
  EXPECT_EQ(tensors.step._version(), version + 1);
  const Tensors a = {at::ones({0}, at::kMeta)}, b = {at::ones({0}, at::kMeta)}, c = {at::ones({0}, at::kMeta)},
                d = {at::ones({0}, at::kMeta)};
  kernels::multi_tensor_adam(a, b, c, d, {}, {}, tensors);
  EXPECT_EQ(tensors.step._version(), version + 2);
}

TEST_P(StepTensors, AStoppedCallWithoutElementsIsNoStep) {
  kernels::StepTensors tensors;
  tensors.found_inf = at::ones({1}, at::kInt);
  tensors.step = steps(5);
  kernels::multi_tensor_adam({}, {}, {}, {}, {}, {}, tensors);
  EXPECT_EQ(tensors.step.item<int>(), 5);
  tensors.found_inf.zero_();
  kernels::multi_tensor_adam({}, {}, {}, {}, {}, {}, tensors);
  EXPECT_EQ(tensors.step.item<int>(), 6);
}

INSTANTIATE_TEST_SUITE_P(Drivers, StepTensors, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Kernels" : "Cpu"; });

// Both drivers, one result: the powers of beta are products in one order.
TEST(StepTensors, GiveTheSameBitsWithBothDriversAtAnyStep) {
  for (const int64_t taken : {0, 1, 6, 999, 1000000, 2000000000}) {
    Lists on_cpu, by_kernels(on_cpu);
    kernels::StepTensors tensors;
    tensors.step = steps(taken);
    {
      const UseIsa isa(kernels::cpu::Isa::portable);
      kernels::multi_tensor_adam(on_cpu.grads, on_cpu.params, on_cpu.first, on_cpu.second, {}, {}, tensors);
    }
    tensors.step = steps(taken);
    const OnHostGrid grid;
    kernels::multi_tensor_adam(by_kernels.grads, by_kernels.params, by_kernels.first, by_kernels.second, {}, {}, tensors);
    EXPECT_TRUE(same_bytes(by_kernels.all(), on_cpu.all())) << taken;
  }
}

TEST(RefusedStepTensors, AreThoseOfAnotherDtypeSizeOrDevice) {
  const Tensors a = {at::ones({3})}, b = {at::ones({3})}, c = {at::ones({3})}, d = {at::ones({3})};
  const auto expect_refused = [&](const kernels::StepTensors& tensors, const std::vector<std::string>& parts) {
    expect_error([&] { kernels::multi_tensor_adam(a, b, c, d, {}, {}, tensors); }, parts);
    EXPECT_TRUE(b[0].eq(1).all().item<bool>());
  };
  kernels::StepTensors tensors;
  tensors.lr = at::ones({1}, at::kDouble);
  expect_refused(tensors, {"multi_tensor_adam", "tensors.lr", "Float", "Double"});
  tensors.lr = at::ones({2});
  expect_refused(tensors, {"tensors.lr", "[2]"});
  tensors.lr = at::ones({1}, at::kMeta);
  expect_refused(tensors, {"tensors.lr is on meta", "cpu"});
  tensors.lr = at::Tensor();
  tensors.grad_scale = at::ones({1}, at::kHalf);
  expect_refused(tensors, {"tensors.grad_scale", "Half"});
  tensors.grad_scale = at::Tensor();
  tensors.step = at::ones({1});
  expect_refused(tensors, {"tensors.step", "Int", "Float"});
}

// A call's device is that of its first tensor with elements, or of its first tensor if none has any.
TEST(RefusedStepTensors, AreThoseOfAnotherDeviceThanTheFirstTensorWithElements) {
  Tensors lists[4];
  for (Tensors& list : lists) list = {at::ones({0}, at::kMeta)};
  kernels::StepTensors tensors;
  tensors.lr = number(0.5);
  const auto adam = [&] { kernels::multi_tensor_adam(lists[0], lists[1], lists[2], lists[3], {}, {}, tensors); };
  expect_error(adam, {"multi_tensor_adam", "tensors.lr is on cpu", "grads are on meta"});
  for (Tensors& list : lists) list.push_back(at::ones({3}));
  adam();
  EXPECT_FALSE(lists[1][1].eq(1).any().item<bool>());
}

}  // namespace
}  // namespace kernels_test
