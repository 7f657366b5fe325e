#include "kernels/rules/axpby.h"

#include <atomic>

#include "kernels/cpu/blocks.h"
#include "kernels/cpu/driver.h"

namespace apex::kernels::cpu {
namespace {

template <class Math>
bool axpby_as(const plan::Group& group, Math a, Math b, CheckArg check) {
  const auto read_x = reader<Math>(group.dtypes[0]);
  const auto read_y = reader<Math>(group.dtypes[1]);
  const auto write = writer<Math>(group.dtypes[2]);
  std::atomic<bool> found{false};
  for_each_chunk(group, [&](int64_t i) {
    bool finite = true;
    for_each_block(group, group.chunks[static_cast<size_t>(i)], [&](const Block& block) {
      Math x_buffer[kBlock];
      Math y_buffer[kBlock];
      Math results[kBlock];
      const Math* x = read_x(block.row.data[0], block.offset, block.size, x_buffer);
      const Math* y = read_y(block.row.data[1], block.offset, block.size, y_buffer);
      if (check != CheckArg::y) finite &= all_finite(x, block.size);
      if (check != CheckArg::x) finite &= all_finite(y, block.size);
      for (int64_t k = 0; k < block.size; ++k) results[k] = rules::axpby(a, x[k], b, y[k]);
      write(results, block.row.data[2], block.offset, block.size);
    });
    if (!finite) found = true;
  });
  return found;
}

}  // namespace

bool axpby(const plan::Group& group, double a, double b, CheckArg check) {
  if (group.has_double()) return axpby_as<double>(group, a, b, check);
  return axpby_as<float>(group, static_cast<float>(a), static_cast<float>(b), check);
}

}  // namespace apex::kernels::cpu
