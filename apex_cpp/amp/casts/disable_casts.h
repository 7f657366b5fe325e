#pragma once

#include <cstdint>

namespace apex::amp {

/// Switches casts off on the calling thread for its lifetime; guards may nest, and end by exceptions as well. Without O1 or O4
/// it does nothing. What a torch::autograd::Function that was applied within it computes again in backward is not cast either.
/// As in Apex (SL-20), the errors for in-place functions and banned functions on 16-bit tensors remain.
class disable_casts {
 public:
  disable_casts();
  ~disable_casts();
  disable_casts(const disable_casts&) = delete;
  disable_casts& operator=(const disable_casts&) = delete;

 private:
  bool previous_;
  uint64_t first_node_;
};

}  // namespace apex::amp
