#pragma once

#include <apex_cpp/amp/doctor/step_observer.h>

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <iosfwd>
#include <string>
#include <utility>
#include <vector>

namespace apex::amp {

/// A place where a level's run parts from the reference's: the first call whose inputs agree and whose outputs do not. In the
/// backward pass these are the gradients that come to its outputs, and those that it hands on to its inputs.
struct Divergence {
  /// How the runs part.
  enum class Kind {
    none,       ///< the runs agree
    nonfinite,  ///< Inf or NaN where the reference is finite
    precision,  ///< the signal-to-noise ratio is below the threshold
    underflow,  ///< the same, since more than half of the values became 0
    weight      ///< a weight has Inf or NaN before the step's forward pass: an optimizer's step made them
  };

  Kind kind = Kind::none;
  bool backward = false;
  std::string module;  ///< path of the module whose parameter the call used, or of the module around it; "model" for the whole
  std::string op;      ///< "aten::conv2d", an overload follows a dot; or the class of an autograd function; or the weight
  int64_t call = 0;    ///< which of the step's calls of this operator in this module, from 0
  int64_t step = 0;    ///< of the training run, from 0
  double sqnr = 0;     ///< of the worst output in dB: 20 log10(|x| / |x - y|)
  int64_t count = 0;   ///< values that are Inf or NaN
  double fixed_loss_scale = 1;  ///< the level's loss scale, unless it is dynamic

  explicit operator bool() const { return kind != Kind::none; }
  /// "forward encoder.0 aten::addmm", "optimizer encoder.0 weight", or "none".
  std::string place() const;
};

/// The place, what is wrong there, and the remedy where it is no module's, without the last full stop.
std::ostream& operator<<(std::ostream& stream, const Divergence& divergence);

}  // namespace apex::amp

namespace apex::amp::detail {

/// How well a tensor agrees with what it should be.
struct Agreement {
  double sqnr = 0;  ///< 10 log10(sum x^2 / sum (x - y)^2), over elements that are finite in both; +Inf where x or x - y is 0
  int64_t nonfinite = 0;  ///< elements of y that are Inf or NaN where x is finite
  double lost = 0;        ///< of the elements of x that are not 0, the share that is 0 in y
};

/// Of `y` with `x`. In float64 on the host; waits for the device. Tensors of different sizes agree: they cannot be
/// compared.
Agreement agreement(const at::Tensor& x, const at::Tensor& y);

/// Pairs the equal names of two sequences in order, (place in `a`, place in `b`). Where they part it goes on at the nearest
/// pair of equal names, counted in names left out.
std::vector<std::pair<size_t, size_t>> align(const std::vector<std::string>& a, const std::vector<std::string>& b);

/// Ratios of signal to noise in dB below which a tensor does not agree with the reference's.
struct Thresholds {
  double forward, backward;
};

/// A divergence, and which call of the level's step it is.
struct LocatedDivergence {
  Divergence divergence;
  size_t call = 0;
};

/// The first call of `level` to blame, or the weight that was Inf or NaN before all of them, or no divergence. `control` is the
/// reference from weights that are some rounding errors off: what does not agree there either depends on the last bits at any
/// precision, and nobody is blamed for it.
LocatedDivergence first_divergence(const ObservedStep& reference, const ObservedStep& control, const ObservedStep& level,
                                   const Thresholds& thresholds);

}  // namespace apex::amp::detail
