// The table from which kernels read their work: every element is in exactly one chunk and one span for all sizes, dtypes and
// alignments of the tensors, and 16-byte accesses are aligned.
#include <gtest/gtest.h>

#include "kernels/cuda/packs.h"
#include "kernels/cuda/table_image.h"
#include "tests/kernels/support.h"

namespace kernels_test {
namespace {

namespace cuda = apex::kernels::cuda;
namespace plan = apex::kernels::plan;

// A table in host memory.
class TableInHostMemory {
 public:
  explicit TableInHostMemory(const std::vector<plan::TensorList>& lists)
      : plan_{plan::make_groups(lists), lists.front().tensors.size(), nullptr},
        image_(plan_, c10::kCPU),
        memory_(image_.bytes()),
        scratch_(zeros()) {
    table = image_.table_at(memory_.data(), scratch_.data());
  }

  std::vector<std::byte> zeros() const { return std::vector<std::byte>(image_.scratch_size()); }
  // The same table for a launch with other scratch memory, or with none.
  cuda::Table with_scratch(void* scratch) { return image_.table_at(memory_.data(), scratch); }

  cuda::Table table;

 private:
  plan::Plan plan_;
  cuda::TableImage image_;
  std::vector<std::byte> memory_, scratch_;
};

using PartAt = cuda::Part (*)(const cuda::Table&, int64_t);

// Counts, for each element of each tensor, the packs that contain it.
std::vector<std::vector<int>> visits(const cuda::Table& table, const cuda::Parts& parts, PartAt part_at) {
  std::vector<std::vector<int>> counts(static_cast<size_t>(table.count));
  for (int64_t p = 0; p < parts.count; ++p) {
    const cuda::Part part = part_at(table, p);
    auto& count = counts[static_cast<size_t>(part.row->index)];
    count.resize(static_cast<size_t>(part.row->numel));
    for (int64_t i = 0; i < cuda::pack_count<cuda::kPack>(part); ++i) {
      const auto pack = cuda::pack_at<cuda::kPack>(part, i);
      for (int e = 0; e < cuda::kPack; ++e) {
        if (pack.has(e)) ++count.at(static_cast<size_t>(pack.first + e));
      }
    }
  }
  return counts;
}

void expect_each_once(const Tensors& tensors, const std::vector<std::vector<int>>& counts) {
  for (size_t t = 0; t < tensors.size(); ++t) {
    ASSERT_EQ(counts[t], std::vector<int>(static_cast<size_t>(tensors[t].numel()), 1)) << tensors[t].numel();
  }
}

TEST(DeviceTable, HasEveryElementInOneChunkAndOneSpan) {
  for (const int64_t offset : {0, 1, 3, 7}) {
    const Tensors in = random_list(at::kHalf, offset), out = random_list(at::kFloat, 7 - offset);
    const TableInHostMemory host({{"in", in, plan::Access::read}, {"out", out, plan::Access::write}});
    expect_each_once(in, visits(host.table, host.table.chunks, cuda::chunk_at));
    expect_each_once(in, visits(host.table, host.table.spans, cuda::span_at));
  }
}

TEST(DeviceTable, HoldsTensorsOfAllDtypesInGroupOrder) {
  const Tensors in = {at::ones({3}, at::kHalf), at::ones({0}), at::ones({5}, at::kDouble), at::ones({7}, at::kHalf)};
  const Tensors out = {at::ones({3}), at::ones({0}), at::ones({5}, at::kBFloat16), at::ones({7})};
  const TableInHostMemory host({{"in", in, plan::Access::read}, {"out", out, plan::Access::write}});
  EXPECT_EQ(host.table.count, 4);
  EXPECT_EQ(host.table.chunks.count, 3);
  EXPECT_TRUE(host.table.has_double);
  for (int row = 0; row < 3; ++row) {
    const cuda::Row& found = host.table.rows[row];
    const auto index = static_cast<size_t>(found.index);
    EXPECT_EQ(found.data[0], in[index].data_ptr());
    EXPECT_EQ(found.data[1], out[index].data_ptr());
    EXPECT_EQ(found.data[2], nullptr);
    EXPECT_EQ(found.numel, in[index].numel());
    EXPECT_EQ(found.has_double, index == 2);
    EXPECT_EQ(found.dtypes[1] == cuda::Dtype::bfloat16, index == 2);
  }
}

// Every pair of places that two lists can have within 64 bytes.
TEST(DeviceTable, RecordsAlignment) {
  for (int64_t x = 0; x < 32; ++x) {
    for (int64_t y = 0; y < 16; ++y) {
      const Tensors in = {at::ones({100 + x}, at::kHalf).narrow(0, x, 100)};
      const Tensors out = {at::ones({100 + y}, at::kFloat).narrow(0, y, 100)};
      const TableInHostMemory host({{"in", in, plan::Access::read}, {"out", out, plan::Access::write}});
      const cuda::Row& row = host.table.rows[0];
      ASSERT_LT(row.shift, cuda::kPack);
      const auto aligned = [&](const at::Tensor& tensor) {
        const auto before = static_cast<uintptr_t>(row.shift) * tensor.element_size();
        return (reinterpret_cast<uintptr_t>(tensor.data_ptr()) - before) % 16 == 0;
      };
      EXPECT_EQ(row.is_aligned(0), aligned(in[0]));
      EXPECT_EQ(row.is_aligned(1), aligned(out[0]));
      EXPECT_TRUE(row.is_aligned(0) || row.is_aligned(1));
      // A common alignment exists if x % 4 == y % 4: a pack is 16 bytes of one list and 32 bytes of the other.
      EXPECT_EQ(row.is_aligned(0) && row.is_aligned(1), x % 4 == y % 4) << x << ' ' << y;
    }
  }
}

// Two launches at a time over the same tensors read one table, and get in each other's way nowhere.
TEST(DeviceTable, KeepsSumsAndTicketsOnlyInTheScratch) {
  const Tensors in = random_list(at::kFloat);
  TableInHostMemory host({{"in", in, plan::Access::read}});
  std::vector<std::byte> scratch = host.zeros();
  const cuda::Table other = host.with_scratch(scratch.data());
  EXPECT_EQ(other.rows, host.table.rows);
  EXPECT_EQ(other.chunks.row_of, host.table.chunks.row_of);
  EXPECT_EQ(other.spans.row_of, host.table.spans.row_of);
  const auto is_inside = [&](const void* address, size_t size) {
    const auto* const begin = static_cast<const std::byte*>(address);
    return begin >= scratch.data() && begin + size <= scratch.data() + scratch.size();
  };
  for (int s = 0; s < cuda::kSums; ++s) {
    EXPECT_TRUE(is_inside(other.chunk_sums(s), sizeof(double) * static_cast<size_t>(other.chunks.count)));
    EXPECT_TRUE(is_inside(other.row_sums(s), sizeof(double) * static_cast<size_t>(other.count)));
  }
  EXPECT_TRUE(is_inside(other.row_tickets, sizeof(uint32_t)));
  EXPECT_TRUE(is_inside(other.grid_ticket, sizeof(uint32_t)));
  EXPECT_EQ(other.grid_ticket - other.row_tickets, static_cast<std::ptrdiff_t>(in.size() - 1))
      << "one for each that is not empty";
}

TEST(DeviceTable, NeedsNoScratchForALaunchWithoutSums) {
  const Tensors in = random_list(at::kFloat);
  TableInHostMemory host({{"in", in, plan::Access::read}});
  const cuda::Table without_scratch = host.with_scratch(nullptr);
  EXPECT_EQ(without_scratch.rows, host.table.rows);
  EXPECT_EQ(without_scratch.all_chunk_sums, nullptr);
  EXPECT_EQ(without_scratch.all_row_sums, nullptr);
  EXPECT_EQ(without_scratch.row_tickets, nullptr);
  EXPECT_EQ(without_scratch.grid_ticket, nullptr);
}

TEST(DeviceScratch, IsSharedOnlyByLaunchesOfOneStream) {
  cuda::Scratch scratch;
  int made = 0;
  const auto make = [&] { return at::full({1}, ++made); };
  const at::Tensor first = scratch.of_launch(/*stream=*/7, /*captured=*/false, make);
  EXPECT_TRUE(scratch.of_launch(7, false, make).is_same(first));
  const at::Tensor of_other_stream = scratch.of_launch(0, false, make);
  EXPECT_FALSE(of_other_stream.is_same(first));
  EXPECT_TRUE(scratch.of_launch(0, false, make).is_same(of_other_stream));
  EXPECT_EQ(made, 2);
}

// A graph may replay beside a launch on the stream that captured it, and its branches may run concurrently.
TEST(DeviceScratch, BelongsToOneLaunchInAGraph) {
  cuda::Scratch scratch;
  const auto make = [] { return at::zeros({1}); };
  const at::Tensor eager = scratch.of_launch(7, /*captured=*/false, make);
  const at::Tensor captured = scratch.of_launch(7, /*captured=*/true, make);
  EXPECT_FALSE(captured.is_same(eager));
  EXPECT_FALSE(scratch.of_launch(7, true, make).is_same(captured));
  EXPECT_TRUE(scratch.of_launch(7, false, make).is_same(eager));
}

}  // namespace
}  // namespace kernels_test
