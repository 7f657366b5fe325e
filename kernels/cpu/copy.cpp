#include <cstring>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/driver.h"

namespace apex::kernels::cpu {
namespace {

template <class Math>
void convert_as(const plan::Group& group) {
  const auto read = reader<Math>(group.dtypes[0]);
  const auto write = writer<Math>(group.dtypes[1]);
  for_each_chunk(group, [&](int64_t i) {
    for_each_block(group, group.chunks[static_cast<size_t>(i)], [&](const Block& block) {
      Math buffer[kBlock];
      write(read(block.row.data[0], block.offset, block.size, buffer), block.row.data[1], block.offset, block.size);
    });
  });
}

void copy_bytes(const plan::Group& group) {
  const auto element = static_cast<int64_t>(c10::elementSize(group.dtypes[0]));
  for_each_chunk(group, [&](int64_t i) {
    const plan::Chunk& chunk = group.chunks[static_cast<size_t>(i)];
    const plan::TensorRow& row = group.rows[static_cast<size_t>(chunk.row)];
    const char* from = static_cast<const char*>(row.data[0]) + chunk.offset * element;
    // from == to is allowed, and memmove's to deal with.
    std::memmove(static_cast<char*>(row.data[1]) + chunk.offset * element, from, static_cast<size_t>(chunk.size * element));
  });
}

}  // namespace

void copy(const plan::Group& group) {
  if (group.dtypes[0] == group.dtypes[1]) return copy_bytes(group);
  group.has_double() ? convert_as<double>(group) : convert_as<float>(group);
}

}  // namespace apex::kernels::cpu
