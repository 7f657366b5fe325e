#pragma once

#include <cstdint>

// Runs the CUDA driver on the host: its own code and the kernel bodies of a device, in blocks whose threads run in turn.
namespace kernels_test {

struct Grid {
  int64_t blocks = 3;
  int threads = 96;        // per block, unless the order of sums fixes the number
  bool backwards = false;  // blocks and threads run from the last to the first
};

// While it lives, the CUDA driver processes CPU tensors on such a grid.
class OnHostGrid {
 public:
  explicit OnHostGrid(const Grid& grid = {});
  ~OnHostGrid();
  OnHostGrid(const OnHostGrid&) = delete;
  OnHostGrid& operator=(const OnHostGrid&) = delete;

  // Launches since construction.
  int launches() const;
};

}  // namespace kernels_test
