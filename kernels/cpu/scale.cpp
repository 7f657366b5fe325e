#include "kernels/rules/scale.h"

#include <atomic>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/driver.h"

namespace apex::kernels::cpu {
namespace {

template <class Math>
bool scale_as(const plan::Group& group, Math factor) {
  const auto read = reader<Math>(group.dtypes[0]);
  const auto write = writer<Math>(group.dtypes[1]);
  std::atomic<bool> found{false};
  for_each_chunk(group, [&](int64_t i) {
    bool finite = true;
    for_each_block(group, group.chunks[static_cast<size_t>(i)], [&](const Block& block) {
      Math buffer[kBlock];
      Math results[kBlock];
      const Math* in = read(block.row.data[0], block.offset, block.size, buffer);
      finite &= all_finite(in, block.size);
      for (int64_t k = 0; k < block.size; ++k) results[k] = rules::scale(in[k], factor);
      write(results, block.row.data[1], block.offset, block.size);
    });
    if (!finite) found = true;
  });
  return found;
}

}  // namespace

bool scale(const plan::Group& group, double factor) {
  return group.has_double() ? scale_as<double>(group, factor) : scale_as<float>(group, static_cast<float>(factor));
}

}  // namespace apex::kernels::cpu
