// Chunk tables and groups (MTA-01, MTA-06, BUG-21, BUG-22). The sizes are numbers only; no memory is allocated.
#include <gtest/gtest.h>

#include "kernels/plan/plan.h"
#include "tests/kernels/support.h"

namespace kernels_test {
namespace {

namespace plan = apex::kernels::plan;
using plan::Access;

// Expects every element of every tensor to be in exactly one chunk, in order, and no chunk to be empty or too large.
void expect_exact_cover(const std::vector<int64_t>& numels, int64_t chunk_size) {
  const auto chunks = plan::make_chunks(numels, chunk_size);
  std::vector<int64_t> covered(numels.size(), 0);
  int64_t row = 0;
  for (const plan::Chunk& chunk : chunks) {
    ASSERT_GE(chunk.row, row);
    row = chunk.row;
    ASSERT_EQ(chunk.offset, covered[static_cast<size_t>(row)]);
    ASSERT_GT(chunk.size, 0);
    ASSERT_LE(chunk.size, chunk_size);
    covered[static_cast<size_t>(row)] += chunk.size;
  }
  EXPECT_EQ(covered, numels);
}

TEST(Chunks, CoverEveryElementOnce) {
  expect_exact_cover(boundary_sizes(), plan::kChunkSize);
  expect_exact_cover(boundary_sizes(), 512);
  expect_exact_cover({}, plan::kChunkSize);
  expect_exact_cover({0, 0, 0}, plan::kChunkSize);
  expect_exact_cover(std::vector<int64_t>(30000, 1), plan::kChunkSize);
}

// BUG-21: offsets beyond 2^31 and 2^32 elements.
TEST(Chunks, CountBeyond32Bits) {
  const int64_t huge = (int64_t{1} << 33) + 5;
  expect_exact_cover({3, huge, 0, (int64_t{1} << 31) - 1, (int64_t{1} << 31) + 1}, plan::kChunkSize);
  const auto chunks = plan::make_chunks(std::vector<int64_t>{huge});
  EXPECT_EQ(chunks.size(), (size_t{1} << 17) + 1);
  EXPECT_EQ(chunks.back().offset, int64_t{1} << 33);
  EXPECT_EQ(chunks.back().size, 5);
}

TEST(Chunks, HaveApexsSize) { EXPECT_EQ(plan::kChunkSize, 2048 * 32); }

TEST(Groups, HoldTensorsOfEqualDtypesInOrder) {
  const Tensors in = {at::ones({2}, at::kHalf), at::ones({3}), at::ones({0}, at::kHalf), at::ones({4}, at::kHalf),
                      at::ones({5}, at::kHalf)};
  const Tensors out = {at::ones({2}), at::ones({3}), at::ones({0}), at::ones({4}), at::ones({5}, at::kHalf)};
  const auto groups = plan::make_groups({{"in", in, Access::read}, {"out", out, Access::write}});
  ASSERT_EQ(groups.size(), 3u);
  ASSERT_EQ(groups[0].rows.size(), 2u);
  EXPECT_EQ(groups[0].rows[0].index, 0u);
  EXPECT_EQ(groups[0].rows[1].index, 3u);
  EXPECT_EQ(groups[0].numel, 6);
  EXPECT_EQ(groups[0].rows[1].data[0], in[3].data_ptr());
  EXPECT_EQ(groups[0].rows[1].data[1], out[3].data_ptr());
  EXPECT_EQ(groups[1].rows[0].index, 1u);
  EXPECT_EQ(groups[2].rows[0].index, 4u);
}

TEST(Groups, KeepDevicesApart) {
  const auto meta = at::TensorOptions().device(at::kMeta);
  const Tensors in = {at::ones({2}), at::ones({3}, meta), at::ones({4})};
  const auto groups = plan::make_groups({{"in", in, Access::read}});
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].rows.size(), 2u);
  EXPECT_EQ(groups[1].device, c10::Device(at::kMeta));
}

TEST(Groups, RecordWhetherATensorIsFloat64) {
  const Tensors in = {at::ones({2}, at::kHalf)};
  const Tensors out = {at::ones({2}, at::kDouble)};
  EXPECT_TRUE(plan::make_groups({{"in", in, Access::read}, {"out", out, Access::write}})[0].has_double());
  EXPECT_FALSE(plan::make_groups({{"in", in, Access::read}})[0].has_double());
}

TEST(Groups, HaveFloat32BehindTheLastList) {
  const Tensors in = {at::ones({2}, at::kHalf)};
  const auto groups = plan::make_groups({{"in", in, Access::read}});
  ASSERT_EQ(groups.size(), 1u);
  EXPECT_EQ(groups[0].dtypes[0], at::kHalf);
  for (size_t list = 1; list < plan::kMaxLists; ++list) EXPECT_EQ(groups[0].dtypes[list], at::kFloat) << list;
}

TEST(Groups, KeepAddressesOfManyTensors) {
  Tensors in;
  for (int i = 0; i < 25000; ++i) in.push_back(at::full({1}, i, at::kFloat));
  const auto groups = plan::make_groups({{"in", in, Access::read}});
  ASSERT_EQ(groups.size(), 1u);
  ASSERT_EQ(groups[0].rows.size(), in.size());
  for (size_t i = 0; i < in.size(); ++i) ASSERT_EQ(groups[0].rows[i].data[0], in[i].data_ptr());
}

// Floats at `data` on a device whose addresses may be those of other tensors on the CPU. Nothing may read or write them.
at::Tensor elsewhere(float* data, int64_t numel) {
  const auto bytes = static_cast<size_t>(numel) * sizeof(float);
  c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, c10::DataPtr(data, c10::Device(at::kXPU, 0)));
  auto tensor =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKey::XPU, caffe2::TypeMeta::Make<float>());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous({numel});
  return tensor;
}

TEST(Outputs, OfSeveralDevicesAreComparedWithinEach) {
  const at::Tensor memory = at::ones({16});
  auto* const data = memory.mutable_data_ptr<float>();
  const auto check = [](const Tensors& in, const Tensors& out) {
    plan::check_outputs_apart("check", {{"in", in, Access::read}, {"out", out, Access::write}});
  };
  const Tensors none;
  check(none, {elsewhere(data, 8), memory.narrow(0, 2, 4)});
  // By address alone, the tensor on the CPU would be between the two that overlap.
  expect_error(
      [&] {
        check(none, {elsewhere(data, 8), memory.narrow(0, 2, 1), elsewhere(data + 4, 8)});
      },
      {"out[2] shares memory with out[0]"});
  // By address alone, the output on the CPU would be behind the input, and those behind it not looked at.
  expect_error(
      [&] {
        check({elsewhere(data, 4)}, {memory.narrow(0, 8, 4), elsewhere(data, 4)});
      },
      {"out[1] shares memory with in[0]"});
}

}  // namespace
}  // namespace kernels_test
