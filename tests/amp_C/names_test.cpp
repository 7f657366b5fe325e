// Code ported from Apex: its own declarations, names and calls.
#include "support.h"

// Declarations as in ported code; they may follow the header, precede it or replace it.
void multi_tensor_scale_cuda(int chunk_size, at::Tensor noop_flag, std::vector<std::vector<at::Tensor>> tensor_lists,
                             float scale);
std::tuple<at::Tensor, at::Tensor> multi_tensor_l2norm_cuda(int chunk_size, at::Tensor noop_flag,
                                                            std::vector<std::vector<at::Tensor>> tensor_lists,
                                                            at::optional<bool> per_tensor_python);
at::Tensor update_scale_hysteresis_cuda(at::Tensor current_scale, at::Tensor growth_tracker, at::Tensor hysteresis_tracker,
                                        at::Tensor found_inf, const double growth_factor, const double backoff_factor,
                                        const int64_t growth_interval, const int hysteresis);

namespace {

using amp_C_test::flag;
using Tensors = std::vector<at::Tensor>;

TEST(Names, CppAndPythonNamesAreTheSameFunction) {
  EXPECT_EQ(&apex::amp_C::multi_tensor_scale, &::multi_tensor_scale_cuda);
  EXPECT_EQ(&apex::amp_C::multi_tensor_scale_cuda, &::multi_tensor_scale_cuda);
  EXPECT_EQ(&apex::amp_C::multi_tensor_adam_capturable_master, &::multi_tensor_adam_capturable_master_cuda);
  EXPECT_EQ(&apex::amp_C::multi_tensor_lamb_stage2_cuda, &::multi_tensor_lamb_stage2_cuda);
  EXPECT_EQ(&apex::amp_C::update_scale_hysteresis, &::update_scale_hysteresis_cuda);
}

TEST(Names, NoCallIsAmbiguousUnderAUsingDirective) {
  using namespace apex::amp_C;
  const Tensors in = {at::full({3}, 2.0)};
  const Tensors out = {at::empty({3})};
  multi_tensor_scale_cuda(65536, flag(), {in, out}, 3.0f);
  EXPECT_TRUE(at::equal(out[0], at::full({3}, 6.0)));
  multi_tensor_scale(65536, flag(), {in, out}, 4.0f);
  EXPECT_TRUE(at::equal(out[0], at::full({3}, 8.0)));
}

// MTA-01
TEST(Names, TheApplierPassesTheChunkSizeFirst) {
  using apex::amp_C::multi_tensor_applier;
  EXPECT_EQ(multi_tensor_applier.chunk_size, 65536);
  const Tensors in = {at::full({16}, 2.0)};
  const auto [norm, each] = multi_tensor_applier(apex::amp_C::multi_tensor_l2norm, flag(), {in}, true);
  EXPECT_EQ(norm.item<double>(), 8.0);
  EXPECT_EQ(each.numel(), 1);
  int seen = 0;
  apex::amp_C::MultiTensorApply{7}([&](int chunk_size, const auto&...) { seen = chunk_size; }, flag(), {in});
  EXPECT_EQ(seen, 7);
}

// A program that unscales, clips and steps, after its #include of Apex was replaced.
TEST(Names, PortedStepRunsOnCpuTensors) {
  const Tensors scaled = {at::full({4}, 1024.0).to(at::kHalf), at::full({2}, -2048.0).to(at::kHalf)};
  const Tensors grads = {at::empty({4}), at::empty({2})};
  const Tensors params = {at::ones({4}), at::ones({2})};
  const Tensors model = {at::ones({4}, at::kHalf), at::ones({2}, at::kHalf)};
  const Tensors momentum = {at::zeros({4}), at::zeros({2})};
  at::Tensor overflow = flag();
  multi_tensor_scale_cuda(2048 * 32, overflow, {scaled, grads}, 1.0f / 1024);
  multi_tensor_sgd_cuda(2048 * 32, overflow, {grads, params, momentum, model}, 0.0f, 0.9f, 0.0f, 0.25f, false, true, false,
                        1.0f);
  EXPECT_TRUE(at::equal(params[0], at::full({4}, 0.75)));
  EXPECT_TRUE(at::equal(model[1], at::full({2}, 1.5).to(at::kHalf)));
}

}  // namespace
