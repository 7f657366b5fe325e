#include <cstring>

#include "kernels/cpu/chunks.h"
#include "kernels/cpu/driver.h"
#include "kernels/cpu/kernels.h"
#include "kernels/cpu/pass.h"

namespace apex::kernels::cpu {
namespace {

// Where elements of a chunk are in list `list`.
void* element(const plan::Group& group, const plan::Chunk& chunk, size_t list, int64_t offset) {
  const auto size = static_cast<int64_t>(c10::elementSize(group.dtypes[list]));
  return static_cast<char*>(group.rows[static_cast<size_t>(chunk.row)].data[list]) + (chunk.offset + offset) * size;
}

template <class Real>
void convert_as(const plan::Group& group) {
  const Reader<Real> read = reader<Real>(group.dtypes[0]);
  const Writer<Real> write = writer<Real>(group.dtypes[1]);
  for_each_chunk(group, [&](int64_t i) {
    const plan::Chunk& chunk = group.chunks[static_cast<size_t>(i)];
    for (int64_t offset = 0; offset < chunk.size; offset += kBlock) {
      const int64_t size = std::min(kBlock, chunk.size - offset);
      void* const from = element(group, chunk, 0, offset);
      void* const to = element(group, chunk, 1, offset);
      alignas(64) Real buffer[kBlock];
      Real* const values = read == nullptr ? static_cast<Real*>(from) : write == nullptr ? static_cast<Real*>(to) : buffer;
      if (read != nullptr) read(from, values, size);
      if (write != nullptr) write(values, to, size);
    }
  });
}

void copy_bytes(const plan::Group& group) {
  for_each_chunk(group, [&](int64_t i) {
    const plan::Chunk& chunk = group.chunks[static_cast<size_t>(i)];
    // from == to is allowed, and memmove's to deal with.
    std::memmove(element(group, chunk, 1, 0), element(group, chunk, 0, 0),
                 static_cast<size_t>(chunk.size) * c10::elementSize(group.dtypes[0]));
  });
}

}  // namespace

void copy(const plan::Group& group) {
  if (group.dtypes[0] == group.dtypes[1]) return copy_bytes(group);
  group.has_double() ? convert_as<double>(group) : convert_as<float>(group);
}

}  // namespace apex::kernels::cpu
