#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

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
