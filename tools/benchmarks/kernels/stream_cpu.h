#pragma once

#include <cstdint>
#include <vector>

#include "stream.h"

namespace bench::kernels {

/// A part of all tensors with the same index.
struct Part {
  size_t index;
  int64_t begin, size;
};

/// One pass over lists of CPU tensors, planned once.
class StreamPass {
 public:
  StreamPass(const PassTraffic& lists, const Way& way);
  void run() const;

 private:
  struct List {
    std::vector<char*> data;  // by index
    int64_t element_size;
    Access access;
  };
  void run(const Part& part) const;

  std::vector<List> lists_;
  std::vector<Part> parts_;
  Way way_;
};

}  // namespace bench::kernels
