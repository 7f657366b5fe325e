#pragma once

#include <cstdint>

// The CUDA driver on the host: its own code, and the very kernel bodies that a device runs, in blocks whose threads take turns.
namespace kernels_test {

struct Grid {
  int64_t blocks = 3;
  int threads = 96;        // of a block; where the order of sums asks for a number of threads it has that
  bool backwards = false;  // blocks and threads take turns from the last to the first
};

// For a scope, CPU tensors are worked on by the CUDA driver on such a grid.
class OnHostGrid {
 public:
  explicit OnHostGrid(const Grid& grid = {});
  ~OnHostGrid();
  OnHostGrid(const OnHostGrid&) = delete;
  OnHostGrid& operator=(const OnHostGrid&) = delete;

  // Launches since it was made.
  int launches() const;
};

}  // namespace kernels_test
