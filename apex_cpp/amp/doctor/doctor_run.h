#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>

namespace apex::amp {

namespace detail {
struct RunRecord;
}

/// One run of a training program for `amp::Doctor`, which decides how long it is and looks at what the program does.
class DoctorRun {
 public:
  /// For the doctor: what to do, and where to note what happened.
  explicit DoctorRun(std::shared_ptr<detail::RunRecord> record);
  ~DoctorRun();
  DoctorRun(const DoctorRun&) = delete;
  DoctorRun& operator=(const DoctorRun&) = delete;

  /// Begins the next step; false: the run is to end. To be called after `initialize`, before each step's first forward pass.
  /// Errors: RuntimeError where the step before was not told its loss.
  bool next();
  /// The number of the step that has begun, from 0: which batch is due.
  int64_t step() const;
  /// Takes the step's loss, unscaled, of one element; of several losses their sum counts. Waits for the device.
  void loss(const at::Tensor& loss);
  void loss(double loss);

 private:
  void begin();
  void end();

  std::shared_ptr<detail::RunRecord> record_;
};

}  // namespace apex::amp
