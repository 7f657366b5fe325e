#pragma once

#include <c10/core/ScalarType.h>

namespace apex::amp::detail {

/// Where the engine reports casts while `amp::trace` is on.
class TraceRecorder {
 public:
  virtual ~TraceRecorder() = default;
  /// A tensor of the operator that is being called was cast, or its cast was found in the cache.
  virtual void add_cast(c10::ScalarType from, c10::ScalarType to, bool cached) = 0;
  /// The operator that is being called, or one that it is made of, computes in FP32 for 16-bit CPU tensors.
  virtual void add_float32() = 0;

  TraceRecorder* outer = nullptr;  ///< that of the trace within which this one began
};

}  // namespace apex::amp::detail
