// Optimizer updates by the kernel bodies of the CUDA driver, run on the host: for every plan the bits of the scalar CPU driver,
// every element updated once, nothing else written.
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/kernels/host_grid.h"
#include "tests/kernels/optimizer_cases.h"

namespace kernels_test {
namespace {

namespace kernels = apex::kernels;

const std::vector<int64_t> kDeviceSizes = {0, 1, 7, 8, 9, 31, 32, 33, 511, 512, 513, 1500};
const Storage kDeviceMasters = {at::kHalf, at::kFloat, at::kFloat, at::kHalf};
const std::vector<Grid> kUpdateGrids = {{1, 32, false}, {3, 96, false}, {7, 256, true}, {200, 64, true}};

class DeviceUpdate : public ::testing::TestWithParam<Case> {};

Tensors by_scalar_driver(const Case& update, const Problem& before, const at::Tensor& flag = clear_flag()) {
  const UseIsa isa(kernels::cpu::Isa::portable);
  Problem work = before.copy();
  update.step(work, flag);
  return work.all();
}

Tensors by_kernels(const Case& update, const Problem& before, const Grid& grid, const at::Tensor& flag = clear_flag()) {
  const OnHostGrid on_grid(grid);
  Problem work = before.copy();
  update.step(work, flag);
  EXPECT_GT(on_grid.launches(), 0);
  EXPECT_LE(on_grid.launches(), 2);
  return work.all();
}

TEST_P(DeviceUpdate, HasTheBitsOfTheScalarDriverForEveryDtypeMix) {
  for (const Storage& storage : storages()) {
    const Problem problem = make_problem(GetParam(), storage, kDeviceSizes, /*offset=*/3);
    EXPECT_TRUE(same_bytes(by_kernels(GetParam(), problem, {}), by_scalar_driver(GetParam(), problem))) << storage.name();
  }
}

TEST_P(DeviceUpdate, HasTheBitsOfTheScalarDriverOnEveryGrid) {
  const Problem problem =
      make_problem(GetParam(), kDeviceMasters, {65535, 65536, 65537, 1, 3 * 65536 + 5, 0, 8191, 8193, 16384});
  const Tensors expected = by_scalar_driver(GetParam(), problem);
  for (const Grid& grid : kUpdateGrids) {
    EXPECT_TRUE(same_bytes(by_kernels(GetParam(), problem, grid), expected)) << grid.blocks << " x " << grid.threads;
  }
}

// Tensors of every storage without a model copy, or with one, in one call.
TEST_P(DeviceUpdate, UpdatesMixedDtypesInOneLaunch) {
  for (const bool copies : {false, true}) {
    Problem mixed;
    for (const Storage& storage : storages()) {
      if (storage.has_models() != copies) continue;
      Problem part = make_problem(GetParam(), storage, {37, 1030});
      const auto from = part.lists(), to = mixed.lists();
      for (size_t i = 0; i < to.size(); ++i) to[i]->insert(to[i]->end(), from[i]->begin(), from[i]->end());
    }
    if (GetParam().has_norms) mixed.norms = at::ones({static_cast<int64_t>(mixed.grads.size())});
    EXPECT_TRUE(same_bytes(by_kernels(GetParam(), mixed, {}), by_scalar_driver(GetParam(), mixed)));
  }
}

TEST_P(DeviceUpdate, UpdatesAnyNumberOfTensorsInOneLaunch) {
  for (const int64_t count : {1, 161, 2000}) {
    std::vector<int64_t> sizes;
    for (int64_t i = 0; i < count; ++i) sizes.push_back(i * 7 % 70);
    const Problem problem = make_problem(GetParam(), kDeviceMasters, sizes, /*offset=*/1);
    EXPECT_TRUE(same_bytes(by_kernels(GetParam(), problem, {}), by_scalar_driver(GetParam(), problem))) << count;
  }
}

// Memory for a tensor, `offset` bytes after a multiple of 64, surrounded by guard bytes that must not change.
class Guarded {
 public:
  Guarded(const at::Tensor& tensor, int64_t offset)
      : memory_(at::full({static_cast<int64_t>(tensor.nbytes()) + 2 * kGuard + 128}, kMark, at::kByte)) {
    auto* const start = static_cast<uint8_t*>(memory_.data_ptr());
    inside_ = start + kGuard + (64 - reinterpret_cast<uintptr_t>(start + kGuard) % 64) + offset;
    view = at::from_blob(inside_, tensor.sizes(), tensor.options());
    view.copy_(tensor);
  }

  bool is_untouched_outside() const {
    const auto* const start = static_cast<const uint8_t*>(memory_.const_data_ptr());
    const auto is_mark = [](uint8_t byte) { return byte == kMark; };
    return std::all_of<const uint8_t*>(start, inside_, is_mark) &&
           std::all_of<const uint8_t*>(inside_ + view.nbytes(), start + memory_.numel(), is_mark);
  }

  at::Tensor view;

 private:
  static constexpr int64_t kGuard = 64;
  static constexpr uint8_t kMark = 0xa5;

  at::Tensor memory_;
  uint8_t* inside_ = nullptr;
};

TEST_P(DeviceUpdate, HasTheSameBitsAtEveryAlignmentAndWritesNothingElse) {
  const Problem aligned = make_problem(GetParam(), kDeviceMasters, {37, 530, 8200});
  const Tensors expected = by_scalar_driver(GetParam(), aligned);
  for (int64_t bytes = 0; bytes < 64; bytes += 2) {
    Problem moved = aligned.copy();
    std::vector<Guarded> guarded;
    int64_t place = bytes;
    for (Tensors* list : moved.lists()) {
      for (at::Tensor& tensor : *list) {
        // A different offset for each tensor of each list, aligned for its dtype.
        place = (place * 5 + bytes) % 64 / tensor.element_size() * tensor.element_size();
        guarded.emplace_back(tensor, place);
        tensor = guarded.back().view;
      }
    }
    {
      const OnHostGrid on_grid;
      GetParam().step(moved, clear_flag());
    }
    ASSERT_TRUE(same_bytes(moved.all(), expected)) << bytes;
    for (const Guarded& memory : guarded) ASSERT_TRUE(memory.is_untouched_outside()) << bytes;
  }
}

TEST_P(DeviceUpdate, ChangesNothingIfFoundInfIsSet) {
  for (const Storage& storage : storages()) {
    const Problem problem = make_problem(GetParam(), storage, kDeviceSizes);
    Problem before = problem.copy();
    EXPECT_TRUE(same_bytes(by_kernels(GetParam(), problem, {}, at::ones({1}, at::kInt)), before.all())) << storage.name();
  }
}

// The next call with the same tensors reuses the table.
TEST_P(DeviceUpdate, CanBeRepeatedWithTheSameTensors) {
  const Problem problem = make_problem(GetParam(), kDeviceMasters, {70000, 33, 0, 8193});
  Problem expected = problem.copy(), work = problem.copy();
  for (int step = 0; step < 3; ++step) {
    {
      const UseIsa isa(kernels::cpu::Isa::portable);
      GetParam().step(expected, clear_flag());
    }
    const OnHostGrid on_grid;
    GetParam().step(work, clear_flag());
    ASSERT_TRUE(same_bytes(work.all(), expected.all())) << "step " << step;
  }
}

INSTANTIATE_TEST_SUITE_P(Optimizers, DeviceUpdate, ::testing::ValuesIn(cases()),
                         [](const auto& test) { return test.param.name; });

// NovoGrad finds gradients that are not finite by itself.
TEST(DeviceNovoGrad, SetsTheFlagThatStopsItsOwnUpdate) {
  for (const auto norm_type : {kernels::NormType::l2, kernels::NormType::inf}) {
    kernels::NovoGradSettings settings;
    settings.norm_type = norm_type;
    kernels::StepTensors step;
    step.found_inf = clear_flag();
    step.step = at::zeros({1}, at::kInt);
    const Tensors grads = {at::ones({40}), at::ones({70000})}, params = {at::ones({40}), at::ones({70000})};
    const Tensors means = {at::ones({40}), at::ones({70000})};
    const at::Tensor norms = at::ones({2});
    grads[1][69999] = INFINITY;
    const OnHostGrid on_grid;
    kernels::multi_tensor_novograd(grads, params, means, norms, {}, settings, step);
    EXPECT_EQ(step.found_inf.item<int>(), 1);
    EXPECT_EQ(step.step.item<int>(), 0);
    for (const at::Tensor& tensor : {params[0], params[1], means[0], means[1], norms}) {
      EXPECT_TRUE(tensor.eq(1).all().item<bool>());
    }
  }
}

}  // namespace
}  // namespace kernels_test
