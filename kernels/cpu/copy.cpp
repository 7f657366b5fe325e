#include <cstring>

#include "kernels/cpu/driver.h"
#include "kernels/cpu/pass.h"
#include "kernels/rules/scale.h"

namespace apex::kernels::cpu {
namespace {

void copy_bytes(const plan::Group& group) {
  const auto size = static_cast<int64_t>(c10::elementSize(group.dtypes[0]));
  for_each_chunk(group, [&](int64_t i) {
    const plan::Chunk& chunk = group.chunks[static_cast<size_t>(i)];
    const auto& data = group.rows[static_cast<size_t>(chunk.row)].data;
    const int64_t begin = chunk.offset * size;
    // From and to the same memory is allowed, and memmove's to deal with.
    std::memmove(static_cast<char*>(data[1]) + begin, static_cast<char*>(data[0]) + begin,
                 static_cast<size_t>(chunk.size * size));
  });
}

}  // namespace

void copy(const plan::Group& group) {
  if (group.dtypes[0] == group.dtypes[1]) return copy_bytes(group);
  group.has_double() ? void(run_pass(group, rules::Copy<double>())) : void(run_pass(group, rules::Copy<float>()));
}

}  // namespace apex::kernels::cpu
