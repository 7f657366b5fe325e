#pragma once
// IWYU pragma: private, include <apex_cpp/amp/doctor.h>

#include <apex_cpp/amp/doctor/step_observer.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

namespace apex::amp {

/// The first call of a level's run whose inputs agree with the reference's and whose outputs do not. In the backward pass, the
/// inputs are the gradients of the call's results, and the outputs are the gradients of the call's arguments.
struct Divergence {
  /// How the runs differ.
  enum class Kind {
    none,       ///< the runs agree
    nonfinite,  ///< Inf or NaN where the reference is finite
    precision,  ///< the signal-to-noise ratio is below the threshold
    underflow,  ///< as precision, and more than half of the values became 0
    weight      ///< an optimizer's step left Inf or NaN in a weight, before the step's forward pass
  };

  Kind kind = Kind::none;
  bool backward = false;
  std::string module;  ///< path of the module whose parameter the call used, or of the enclosing module; "model" for the root
  std::string op;      ///< "aten::conv2d", overload after a dot; or the class of an autograd function; or the weight's name
  int64_t call = 0;    ///< index among the step's calls of this operator in this module, from 0
  int64_t step = 0;    ///< index of the training step, from 0
  double sqnr = 0;     ///< signal-to-noise ratio of the worst output, in dB: 20 log10(|x| / |x - y|)
  int64_t count = 0;   ///< number of values that are Inf or NaN
  double fixed_loss_scale = 1;  ///< the level's loss scale; 1 if it is dynamic

  explicit operator bool() const { return kind != Kind::none; }
  /// "forward encoder.0 aten::addmm", "optimizer encoder.0 weight", or "none".
  std::string place() const;
};

/// Prints the place, the problem and, if the loss scale or the optimizer is the cause, the remedy. Prints no final full stop.
std::ostream& operator<<(std::ostream& stream, const Divergence& divergence);

}  // namespace apex::amp

namespace apex::amp::detail {

/// How well a tensor y agrees with its reference x.
struct Agreement {
  double sqnr = 0;        ///< 10 log10(sum x^2 / sum (x - y)^2), over elements that are finite in both; +Inf if x or x - y is 0
  int64_t nonfinite = 0;  ///< elements of y that are Inf or NaN where x is finite
  double became_zero = 0;  ///< share of the nonzero elements of x that are 0 in y
};

/// Compares `y` with the reference `x`, in float64 on the CPU. Waits for the device. Tensors of different sizes count as equal,
/// because they cannot be compared.
Agreement agreement(const at::Tensor& x, const at::Tensor& y);

/// Pairs the equal names of two sequences, in order, as (index in `a`, index in `b`). After a mismatch it continues at the pair
/// of equal names that skips the fewest names.
std::vector<std::pair<size_t, size_t>> align(const std::vector<std::string>& a, const std::vector<std::string>& b);

/// Minimum signal-to-noise ratios in dB at which a tensor agrees with the reference.
struct Thresholds {
  double forward, backward;
};

/// A divergence, and the index of its call in the level's step.
struct LocatedDivergence {
  Divergence divergence;
  size_t call = 0;
};

/// Finds the first divergent call of `level`. If a weight had Inf or NaN before the step, returns that weight in place of the
/// call. `control` is the reference run from weights that are perturbed by rounding errors. A tensor that differs between
/// `reference` and `control` depends on the last bits at any precision, and is ignored.
LocatedDivergence first_divergence(const ObservedStep& reference, const ObservedStep& control, const ObservedStep& level,
                                   const Thresholds& thresholds);

}  // namespace apex::amp::detail
