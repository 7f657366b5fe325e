#pragma once

#include "kernels/cuda/apply.h"
#include "kernels/cuda/control.h"
#include "kernels/rules/axpby.h"
#include "kernels/rules/scale.h"

// The Ops of multi_tensor_scale, _check_finite, _axpby and _copy. What an Op is: update_pass.h.
namespace apex::kernels::cuda {

struct Elementwise {
  static constexpr bool kTakesDoubles = true;
  static constexpr int kCopied = kNoCopy;

  DEVICE_BODY bool stopped() const { return false; }
  DEVICE_BODY bool finishes() const { return false; }
  template <class Block>
  DEVICE_BODY void finish(const Block&, const Table&) const {}
};

// A factor whose value is in memory of the device, unless there is no address.
struct Factor {
  double value = 1.0;
  const float* address = nullptr;

  DEVICE_BODY Factor now() const { return {address == nullptr ? value : double{*address}, nullptr}; }
};

// Of one list that is looked through for values that are not finite.
struct Checked : Elementwise {
  int32_t* found_inf;

  explicit Checked(int32_t* flag) : found_inf(flag) {}

  template <class Residues>
  DEVICE_BODY void report(const Residues& residues) const {
    if (residues[0][0] != 0) raise(found_inf);
  }
};

struct Scale : Checked {
  Factor factor;

  Scale(const Factor& by, int32_t* flag) : Checked(flag), factor(by) {}

  DEVICE_BODY Scale prepared() const {
    Scale result = *this;
    result.factor = factor.now();
    return result;
  }
  template <class Real>
  DEVICE_BODY rules::Scale<Real> rule(const Row&) const {
    return {static_cast<Real>(factor.value)};
  }
};

struct CheckFinite : Checked {
  using Checked::Checked;

  DEVICE_BODY const CheckFinite& prepared() const { return *this; }
  template <class Real>
  DEVICE_BODY rules::CheckFinite<Real> rule(const Row&) const {
    return {};
  }
};

struct Axpby : Elementwise {
  double a, b;
  bool checks_x, checks_y;
  int32_t* found_inf;

  Axpby(double x_factor, double y_factor, bool x, bool y, int32_t* flag)
      : a(x_factor), b(y_factor), checks_x(x), checks_y(y), found_inf(flag) {}

  DEVICE_BODY const Axpby& prepared() const { return *this; }
  template <class Real>
  DEVICE_BODY rules::Axpby<Real> rule(const Row&) const {
    return {static_cast<Real>(a), static_cast<Real>(b)};
  }
  template <class Residues>
  DEVICE_BODY void report(const Residues& residues) const {
    if ((checks_x && residues[0][0] != 0) || (checks_y && residues[1][0] != 0)) raise(found_inf);
  }
};

struct Copy : Elementwise {
  DEVICE_BODY const Copy& prepared() const { return *this; }
  template <class Real>
  DEVICE_BODY rules::Copy<Real> rule(const Row&) const {
    return {};
  }
};

}  // namespace apex::kernels::cuda
