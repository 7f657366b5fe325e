#include "kernels/rules/l2norm.h"

#include <ATen/ops/zeros.h>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/driver.h"

namespace apex::kernels::cpu {
namespace {

static_assert(kBlock == rules::kLanes, "element i of a block belongs to lane i");

template <class Math>
double chunk_sum(const plan::Group& group, const plan::Chunk& chunk, Reader<Math> read) {
  Math lanes[kBlock] = {};
  for_each_block(group, chunk, [&](const Block& block) {
    Math buffer[kBlock];
    const Math* in = read(block.row.data[0], block.offset, block.size, buffer);
    for (int64_t k = 0; k < block.size; ++k) lanes[k] = rules::add_square(lanes[k], in[k]);
  });
  return rules::fold_lanes(lanes);
}

template <class Math>
std::vector<double> chunk_sums(const plan::Group& group) {
  const auto read = reader<Math>(group.dtypes[0]);
  std::vector<double> sums(group.chunks.size());
  for_each_chunk(group, [&](int64_t i) {
    const auto chunk = static_cast<size_t>(i);
    sums[chunk] = chunk_sum(group, group.chunks[chunk], read);
  });
  return sums;
}

}  // namespace

double ordered_sum(c10::ArrayRef<double> values) {
  double lanes[rules::kLanes] = {};
  for (size_t i = 0; i < values.size(); ++i) lanes[i % rules::kLanes] = rules::add(lanes[i % rules::kLanes], values[i]);
  return rules::fold_lanes(lanes);
}

at::Tensor sums_of_squares(const plan::Group& group, size_t count) {
  const std::vector<double> parts = group.has_double() ? chunk_sums<double>(group) : chunk_sums<float>(group);
  const c10::ArrayRef<double> all(parts);
  const at::Tensor result = at::zeros({static_cast<int64_t>(count)}, at::TensorOptions().dtype(at::kDouble));
  double* const sums = result.mutable_data_ptr<double>();
  for (size_t begin = 0, end = 0; begin < all.size(); begin = end) {
    const int64_t row = group.chunks[begin].row;
    while (end < all.size() && group.chunks[end].row == row) ++end;
    sums[group.rows[static_cast<size_t>(row)].index] = ordered_sum(all.slice(begin, end - begin));
  }
  return result;
}

}  // namespace apex::kernels::cpu
