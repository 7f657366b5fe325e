#pragma once

namespace apex::amp {

/// Switches casts off on the calling thread for its lifetime; guards may nest, and end by exceptions as well. Without O1 or O4
/// it does nothing. As in Apex (SL-20), the errors for in-place functions and banned functions on 16-bit tensors remain.
class disable_casts {
 public:
  disable_casts();
  ~disable_casts();
  disable_casts(const disable_casts&) = delete;
  disable_casts& operator=(const disable_casts&) = delete;

 private:
  bool previous_;
};

}  // namespace apex::amp
