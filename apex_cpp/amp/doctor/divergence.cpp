#include <apex_cpp/amp/doctor/divergence.h>

#include <ostream>

namespace apex::amp {
namespace {

using Kind = Divergence::Kind;

std::ostream& print_nonfinite(const Divergence& divergence, std::ostream& stream) {
  stream << divergence.count << " values are Inf or NaN";
  if (!divergence.backward || divergence.fixed_loss_scale <= 1) return stream;
  return stream << "; the loss scale is fixed at " << divergence.fixed_loss_scale << ": try a lower one, or \"dynamic\"";
}

std::ostream& print_weight(const Divergence& divergence, std::ostream& stream) {
  return stream << " (before step " << divergence.step << "): it has Inf or NaN, and an optimizer's step made it so. Where the "
                << "optimizer's state is FP16, take a level with master weights, such as O2, or a larger eps";
}

}  // namespace

std::string Divergence::place() const {
  if (kind == Kind::none) return "none";
  return (kind == Kind::weight ? "optimizer " : backward ? "backward " : "forward ") + module + " " + op;
}

std::ostream& operator<<(std::ostream& stream, const Divergence& divergence) {
  stream << divergence.place();
  if (!divergence) return stream;
  if (divergence.kind == Kind::weight) return print_weight(divergence, stream);
  stream << " (step " << divergence.step << ", call " << divergence.call << "): ";
  if (divergence.kind == Kind::nonfinite) return print_nonfinite(divergence, stream);
  if (divergence.kind == Kind::underflow) stream << "most values became 0, ";
  return stream << "signal to noise " << divergence.sqnr << " dB";
}

}  // namespace apex::amp
