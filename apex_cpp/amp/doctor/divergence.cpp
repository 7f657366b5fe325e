#include <apex_cpp/amp/doctor/divergence.h>

#include <ostream>

namespace apex::amp {

std::string Divergence::place() const {
  return kind == Kind::none ? "none" : std::string(backward ? "backward " : "forward ") + module + " " + op;
}

std::ostream& operator<<(std::ostream& stream, const Divergence& divergence) {
  stream << divergence.place();
  if (!divergence) return stream;
  stream << " (step " << divergence.step << ", call " << divergence.call << "): ";
  if (divergence.kind == Divergence::Kind::nonfinite) return stream << divergence.count << " values are Inf or NaN";
  if (divergence.kind == Divergence::Kind::underflow) stream << "most values became 0, ";
  return stream << "signal to noise " << divergence.sqnr << " dB";
}

}  // namespace apex::amp
