// Invalid arguments are errors that name them (MTA-02, MTA-03, MTA-04).
#include "support.h"

namespace {

using namespace amp_C_test;

Tensors ones(int64_t count, at::ScalarType dtype = at::kFloat) {
  Tensors list;
  for (int64_t i = 0; i < count; ++i) list.push_back(at::ones({4}, dtype));
  return list;
}

void adam(const TensorLists& lists, int step = 1, int mode = 1) {
  multi_tensor_adam_cuda(kChunk, flag(), lists, 0.5f, 0.5f, 0.5f, 1, step, mode, 1, 0);
}

TEST(Errors, NumberOfLists) {
  expect_error(
      [] {
        adam({ones(1), ones(1), ones(1)});
      },
      {"multi_tensor_adam_cuda", "3 tensor lists", "expected 4", "grads, params, exp_avgs, exp_avg_sqs"});
  expect_error(
      [] {
        multi_tensor_sgd_cuda(kChunk, flag(), {ones(1), ones(1)}, 0, 0, 0, 1, false, false, false, 1);
      },
      {"2 tensor lists", "expected 3"});
  expect_error([] { multi_tensor_scale_cuda(kChunk, flag(), {}, 1); }, {"0 tensor lists"});
}

TEST(Errors, EmptyLists) {
  expect_error([] { multi_tensor_l2norm_cuda(kChunk, flag(), {{}}, true); }, {"tensor_lists[0] (in) is empty"});
}

TEST(Errors, LengthsOfLists) {
  expect_error(
      [] {
        adam({ones(2), ones(2), ones(1), ones(2)});
      },
      {"tensor_lists[2] (exp_avgs) has 1 tensors", "tensor_lists[0] (grads) has 2"});
}

// MTA-03: Apex assumes that all tensors of a list have the dtype of the first.
TEST(Errors, DtypesWithinAList) {
  Tensors mixed = ones(3);
  mixed[2] = mixed[2].to(at::kHalf);
  expect_error(
      [&] {
        adam({ones(3), mixed, ones(3), ones(3)});
      },
      {"tensor_lists[1][2] (params) has dtype Half",
       "tensor_lists[1][0] (params) has Float. The tensors of one list must have "
       "the same dtype: make one call for each dtype."});
}

// As happens when a moving average covers all of a model's tensors, including batch norm's num_batches_tracked.
TEST(Errors, IntegersWithinAList) {
  Tensors mixed = ones(3);
  mixed[2] = mixed[2].to(at::kLong);
  expect_error(
      [&] {
        multi_tensor_axpby_cuda(kChunk, flag(), {mixed, mixed, mixed}, 0.5f, 0.5f, -1);
      },
      {"tensor_lists[0][2] (x) has dtype Long",
       "One call cannot take integers and floating-point numbers: leave the integers out, and copy them"});
}

TEST(Errors, UnsupportedDtypes) {
  expect_error(
      [] {
        multi_tensor_scale_cuda(kChunk, flag(), {ones(1, at::kInt), ones(1)}, 1);
      },
      {"multi_tensor_scale_cuda: tensor_lists[0][0] (in)", "Int"});
  expect_error(
      [] {
        multi_tensor_sgd_cuda(kChunk, flag(), {ones(1), ones(1, at::kDouble), ones(1)}, 0, 0, 0, 1, 0, 0, 0, 1);
      },
      {"multi_tensor_sgd_cuda: tensor_lists[1][0] (params)", "Double"});
}

TEST(Errors, NumbersOfElements) {
  Tensors longer = ones(2);
  longer[1] = at::ones({5});
  expect_error(
      [&] {
        adam({ones(2), ones(2), ones(2), longer});
      },
      {"tensor_lists[3][1] (exp_avg_sqs) has 5 elements", "tensor_lists[0][1] (grads) has 4"});
}

TEST(Errors, UndefinedSparseAndNonDenseTensors) {
  Tensors list = ones(2);
  list[1] = at::Tensor();
  expect_error([&] { multi_tensor_l2norm_cuda(kChunk, flag(), {list}, true); }, {"tensor_lists[0][1] (in) is undefined"});
  list[1] = at::ones({4}).to_sparse();
  expect_error([&] { multi_tensor_l2norm_cuda(kChunk, flag(), {list}, true); }, {"tensor_lists[0][1] (in) is sparse"});
  list[1] = at::ones({8}).slice(0, 0, 8, 2);
  expect_error([&] { multi_tensor_l2norm_cuda(kChunk, flag(), {list}, true); }, {"tensor_lists[0][1] (in)", "contiguous()"});
}

// MTA-04: linear memory is walked, so layouts must agree.
TEST(Errors, DifferentLayouts) {
  const at::Tensor image = at::ones({2, 3, 4, 5});
  const at::Tensor channels_last = image.contiguous(at::MemoryFormat::ChannelsLast);
  expect_error(
      [&] {
        multi_tensor_scale_cuda(kChunk, flag(), {{channels_last}, {image}}, 1);
      },
      {"tensor_lists[1][0] (out) has strides", "memory layout"});
  const at::Tensor out = at::zeros_like(channels_last);
  multi_tensor_scale_cuda(kChunk, flag(), {{channels_last}, {out}}, 2);
  EXPECT_TRUE(at::equal(out, image * 2));
}

TEST(Errors, TheFlag) {
  const TensorLists lists = {ones(1)};
  expect_error([&] { multi_tensor_l2norm_cuda(kChunk, at::Tensor(), lists, true); }, {"noop_flag must be an Int tensor"});
  expect_error([&] { multi_tensor_l2norm_cuda(kChunk, at::zeros({1}), lists, true); }, {"noop_flag", "Float"});
  expect_error([&] { multi_tensor_l2norm_cuda(kChunk, at::zeros({2}, at::kInt), lists, true); }, {"noop_flag", "[2]"});
  const at::Tensor elsewhere = at::zeros({1}, at::TensorOptions(at::kMeta).dtype(at::kInt));
  expect_error([&] { multi_tensor_l2norm_cuda(kChunk, elsewhere, lists, true); }, {"noop_flag is on meta", "cpu"});
}

TEST(Errors, TensorsOnSeveralDevices) {
  const Tensors elsewhere = {at::ones({4}, at::TensorOptions(at::kMeta))};
  expect_error(
      [&] {
        multi_tensor_scale_cuda(kChunk, flag(), {ones(1), elsewhere}, 1);
      },
      {"tensor_lists[1][0] (out) is on meta", "tensor_lists[0][0] (in) on cpu"});
}

TEST(Errors, ChunkSize) {
  for (const int chunk_size : {0, -1}) {
    expect_error<c10::ValueError>([&] { multi_tensor_l2norm_cuda(chunk_size, flag(), {ones(1)}, true); }, {"chunk_size is "});
  }
}

TEST(Errors, ArgumentsWithFixedChoices) {
  expect_error<c10::ValueError>([] { adam({ones(1), ones(1), ones(1), ones(1)}, 1, 2); }, {"mode is 2"});
  expect_error<c10::ValueError>([] { adam({ones(1), ones(1), ones(1), ones(1)}, 0); }, {"step is 0"});
  expect_error<c10::ValueError>(
      [] {
        multi_tensor_axpby_cuda(kChunk, flag(), {ones(1), ones(1), ones(1)}, 1, 1, 2);
      },
      {"arg_to_check is 2"});
  expect_error<c10::ValueError>(
      [] {
        multi_tensor_novograd_cuda(kChunk, flag(), {ones(1), ones(1), ones(1)}, at::ones({1}), 1, 0, 0, 1, 1, 1, 0, 1, 1, 1);
      },
      {"norm_type is 1"});
}

TEST(Errors, TensorArguments) {
  const TensorLists lists = {ones(1), ones(1), ones(1), ones(1)};
  expect_error(
      [&] { multi_tensor_adam_capturable_cuda(kChunk, flag(), lists, scalar(1), 0, 0, 1, scalar(1), 1, 1, 0, scalar(1)); },
      {"step is a Float tensor", "Int"});
  expect_error(
      [&] {
        multi_tensor_adam_capturable_cuda(kChunk, flag(), lists, at::Tensor(), 0, 0, 1, int_scalar(1), 1, 1, 0, scalar(1));
      },
      {"lr is undefined"});
  expect_error(
      [&] {
        multi_tensor_novograd_cuda(kChunk, flag(), {ones(2), ones(2), ones(2)}, at::ones({1}), 1, 0, 0, 1, 1, 1, 0, 1, 1, 2);
      },
      {"grad_norms", "[1]", "number of elements: 2"});
  const auto lars = [](const at::Tensor& grad_norms, const at::Tensor& param_norms) {
    multi_tensor_lars_cuda(kChunk, flag(), {ones(2), ones(2), ones(2)}, grad_norms, param_norms, 1, 1, 0, 0, 0, 0, false, true,
                           false, 1, false);
  };
  expect_error([&] { lars(at::ones({1}), at::ones({2})); }, {"grad_norms", "[1]", "number of elements: 2"});
  expect_error([&] { lars(at::ones({2}), at::ones({2}, at::kDouble)); }, {"param_norms", "Double"});
  expect_error([&] { multi_tensor_unscale_l2norm_cuda(kChunk, flag(), {ones(1)}, at::ones({2}), true); }, {"inv_scale", "[2]"});
  const TensorLists five = {ones(1), ones(1), ones(1), ones(1), ones(1)};
  const auto lamb = [&](const at::Tensor& decays, const at::Tensor& norm) {
    multi_tensor_lamb_stage1_cuda(kChunk, flag(), five, decays, 1, 0, 0, 1, norm, 1);
  };
  expect_error([&] { lamb(at::Tensor(), scalar(1)); }, {"per_tensor_decay is undefined"});
  expect_error([&] { lamb(scalar(0), at::Tensor()); }, {"global_grad_norm is undefined"});
}

TEST(Errors, OverlappingOutputs) {
  const at::Tensor memory = at::ones({6});
  expect_error(
      [&] {
        multi_tensor_scale_cuda(kChunk, flag(), {{memory.slice(0, 0, 4)}, {memory.slice(0, 2, 6)}}, 2);
      },
      {"shares memory"});
  EXPECT_TRUE(at::equal(memory, at::ones({6})));
}

}  // namespace
