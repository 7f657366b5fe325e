#pragma once

#include <optional>

#include <apex_cpp/amp/doctor/examination.h>
#include <apex_cpp/amp/doctor/kept.h>

namespace apex::amp::detail {

/// What `amp::Doctor` does with one level.
class Consultation {
 public:
  Consultation(OptLevel level, DoctorProgram program, const DoctorOptions& options)
      : level_(std::move(level)), examination_(std::move(program), options) {}

  const Finding& finding();
  OptLevel minimal_float32();

 private:
  /// Follows one divergence after the other, and keeps in FP32 what is blamed.
  KeptList guess();
  /// All that could be kept. Errors: RuntimeError where that does not train.
  KeptList all();

  OptLevel level_;
  Examination examination_;
  std::optional<Finding> finding_;
};

}  // namespace apex::amp::detail
