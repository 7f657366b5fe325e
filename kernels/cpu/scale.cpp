#include "kernels/rules/scale.h"

#include "kernels/cpu/driver.h"
#include "kernels/cpu/pass.h"

namespace apex::kernels::cpu {
namespace {

// Whether a rule that looks for values that are not finite finds one.
template <class Rule>
bool finds_nonfinite(const plan::Group& group, const Rule& rule) {
  bool finite = true;
  for (const auto& [residue] : run_pass(group, rule)) finite &= residue == 0;
  return !finite;
}

}  // namespace

bool scale(const plan::Group& group, double factor) {
  return group.has_double() ? finds_nonfinite(group, rules::Scale<double>{factor})
                            : finds_nonfinite(group, rules::Scale<float>{static_cast<float>(factor)});
}

bool has_nonfinite(const plan::Group& group) {
  return group.has_double() ? finds_nonfinite(group, rules::CheckFinite<double>())
                            : finds_nonfinite(group, rules::CheckFinite<float>());
}

}  // namespace apex::kernels::cpu
