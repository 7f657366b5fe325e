// Control values that are tensors: both drivers read them when the update runs (FOPT capturable).
#include <gtest/gtest.h>

#include <optional>

#include "tests/kernels/host_grid.h"
#include "tests/kernels/optimizer_cases.h"

namespace kernels_test {
namespace {

namespace kernels = apex::kernels;

const std::vector<int64_t> kControlSizes = {0, 1, 33, 8200};

// Runs with either driver: the bits must not depend on it.
class ControlTensors : public ::testing::TestWithParam<bool> {
 protected:
  ControlTensors() {
    if (GetParam()) grid_.emplace();
  }

  std::optional<OnHostGrid> grid_;
};

// An update of tensors with several dtypes, which are several groups on the CPU.
struct Lists {
  Tensors grads, params, first, second, updates;

  Lists() {
    for (const auto dtype : {at::kHalf, at::kBFloat16, at::kFloat}) {
      for (const int64_t size : kControlSizes) {
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

// Runs the update with control values as numbers and as tensors.
template <class Control, class Run>
void expect_tensors_to_count(const Run& run) {
  const Lists before;
  Lists with_values(before), with_tensors(before);
  Control control;
  control.weight_decay = 0.1;
  Control values = control, tensors = control;
  // values that a float32 tensor can hold
  values.grad_scale = 0.5 * static_cast<double>(0.3f);
  values.lr = static_cast<double>(0.01f);
  tensors.grad_scale = 0.5;
  tensors.grad_scale_tensor = number(0.3f);
  tensors.lr = 77;
  tensors.lr_tensor = number(0.01f);
  if constexpr (std::is_base_of_v<kernels::MomentControl, Control>) {
    values.step = 1001;
    tensors.step = 77;
    tensors.step_tensor = steps(1000);
  }
  run(with_values, values);
  run(with_tensors, tensors);
  EXPECT_TRUE(same_bytes(with_tensors.all(), with_values.all()));
  EXPECT_FALSE(same_bytes(with_tensors.all(), before.all()));
  if constexpr (std::is_base_of_v<kernels::MomentControl, Control>) {
    EXPECT_EQ(tensors.step_tensor.template item<int>(), 1001);
  }
}

TEST_P(ControlTensors, ApplyToSgd) {
  expect_tensors_to_count<kernels::SgdControl>(
      [](Lists& l, const auto& control) { kernels::multi_tensor_sgd(l.grads, l.params, {}, {}, control); });
  expect_tensors_to_count<kernels::SgdControl>([](Lists& l, auto control) {
    control.momentum = 0.9;
    kernels::multi_tensor_sgd(l.grads, l.params, l.first, {}, control);
  });
}

TEST_P(ControlTensors, ApplyToAdam) {
  expect_tensors_to_count<kernels::AdamControl>(
      [](Lists& l, const auto& control) { kernels::multi_tensor_adam(l.grads, l.params, l.first, l.second, {}, control); });
}

TEST_P(ControlTensors, ApplyToAdagrad) {
  expect_tensors_to_count<kernels::AdagradControl>(
      [](Lists& l, const auto& control) { kernels::multi_tensor_adagrad(l.grads, l.params, l.second, {}, control); });
}

TEST_P(ControlTensors, ApplyToNovoGrad) {
  for (const auto norm_type : {kernels::NormType::l2, kernels::NormType::inf}) {
    expect_tensors_to_count<kernels::NovoGradControl>([&](Lists& l, auto control) {
      control.norm_type = norm_type;
      const at::Tensor norms = at::ones({static_cast<int64_t>(l.grads.size())});
      kernels::multi_tensor_novograd(l.grads, l.params, l.first, norms, {}, control);
      l.updates.push_back(norms);
    });
  }
}

// The first stage counts the step, the second does not count it again.
TEST_P(ControlTensors, ApplyToLamb) {
  expect_tensors_to_count<kernels::LambControl>([](Lists& l, auto control) {
    control.global_grad_norm = number(3.5);
    const auto norms = kernels::multi_tensor_lamb_stage_1(l.grads, l.params, l.first, l.second, l.updates, control);
    kernels::multi_tensor_lamb_stage_2(l.updates, l.params, {}, norms, control);
  });
}

TEST_P(ControlTensors, ApplyToLarc) {
  expect_tensors_to_count<kernels::LarcControl>(
      [](Lists& l, const auto& control) { kernels::multi_tensor_larc(l.grads, l.params, control); });
}

TEST_P(ControlTensors, AreReadInEveryCall) {
  Lists values, tensors(values);
  kernels::AdamControl by_value, by_tensor;
  by_tensor.step_tensor = steps(0);
  by_tensor.lr_tensor = number(0);
  for (int step = 1; step <= 4; ++step) {
    by_value.step = step;
    by_value.lr = static_cast<double>(static_cast<float>(0.1 * step));
    by_tensor.lr_tensor.fill_(0.1 * step);
    kernels::multi_tensor_adam(values.grads, values.params, values.first, values.second, {}, by_value);
    kernels::multi_tensor_adam(tensors.grads, tensors.params, tensors.first, tensors.second, {}, by_tensor);
    ASSERT_TRUE(same_bytes(tensors.all(), values.all())) << step;
    ASSERT_EQ(by_tensor.step_tensor.item<int>(), step);
  }
}

TEST_P(ControlTensors, AStoppedCallDoesNotCountAsAStep) {
  Lists lists;
  const Lists before(lists);
  kernels::AdamControl adam;
  adam.found_inf = at::ones({1}, at::kInt);
  adam.step_tensor = steps(5);
  kernels::multi_tensor_adam(lists.grads, lists.params, lists.first, lists.second, {}, adam);
  kernels::LambControl lamb;
  lamb.found_inf = adam.found_inf;
  lamb.step_tensor = adam.step_tensor;
  kernels::multi_tensor_lamb_stage_1(lists.grads, lists.params, lists.first, lists.second, lists.updates, lamb);
  EXPECT_EQ(adam.step_tensor.item<int>(), 5);
  EXPECT_TRUE(same_bytes(lists.all(), before.all()));
}

TEST_P(ControlTensors, ACallWithoutElementsCountsAsAStep) {
  kernels::AdamControl control;
  control.step_tensor = steps(5);
  kernels::multi_tensor_adam({}, {}, {}, {}, {}, control);
  EXPECT_EQ(control.step_tensor.item<int>(), 6);
  const Tensors a = {at::ones({0})}, b = {at::ones({0})}, c = {at::ones({0})}, d = {at::ones({0})};
  kernels::multi_tensor_adam(a, b, c, d, {}, control);
  EXPECT_EQ(control.step_tensor.item<int>(), 7);
}

INSTANTIATE_TEST_SUITE_P(Drivers, ControlTensors, ::testing::Bool(),
                         [](const auto& test) { return test.param ? "Kernels" : "Cpu"; });

// Both drivers multiply the powers of beta in the same order.
TEST(ControlTensors, GiveTheSameBitsWithBothDriversAtAnyStep) {
  for (const int64_t taken : {0, 1, 6, 999, 1000000, 2000000000}) {
    Lists on_cpu, by_kernels(on_cpu);
    kernels::AdamControl control;
    control.step_tensor = steps(taken);
    {
      const UseIsa isa(kernels::cpu::Isa::portable);
      kernels::multi_tensor_adam(on_cpu.grads, on_cpu.params, on_cpu.first, on_cpu.second, {}, control);
    }
    control.step_tensor = steps(taken);
    const OnHostGrid grid;
    kernels::multi_tensor_adam(by_kernels.grads, by_kernels.params, by_kernels.first, by_kernels.second, {}, control);
    EXPECT_TRUE(same_bytes(by_kernels.all(), on_cpu.all())) << taken;
  }
}

TEST(RefusedControlTensors, HaveAnotherDtypeSizeOrDevice) {
  const Tensors a = {at::ones({3})}, b = {at::ones({3})}, c = {at::ones({3})}, d = {at::ones({3})};
  const auto expect_refused = [&](const kernels::AdamControl& control, const std::vector<std::string>& parts) {
    expect_error([&] { kernels::multi_tensor_adam(a, b, c, d, {}, control); }, parts);
    EXPECT_TRUE(b[0].eq(1).all().item<bool>());
  };
  kernels::AdamControl control;
  control.lr_tensor = at::ones({1}, at::kDouble);
  expect_refused(control, {"multi_tensor_adam", "lr_tensor", "Float", "Double"});
  control.lr_tensor = at::ones({2});
  expect_refused(control, {"lr_tensor", "[2]"});
  control.lr_tensor = at::ones({1}, at::kMeta);
  expect_refused(control, {"lr_tensor is on meta", "cpu"});
  control.lr_tensor = at::Tensor();
  control.grad_scale_tensor = at::ones({1}, at::kHalf);
  expect_refused(control, {"grad_scale_tensor", "Half"});
  control.grad_scale_tensor = at::Tensor();
  control.step_tensor = at::ones({1});
  expect_refused(control, {"step_tensor", "Int", "Float"});
}

}  // namespace
}  // namespace kernels_test
