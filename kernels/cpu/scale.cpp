#include "kernels/rules/scale.h"

#include "kernels/cpu/driver.h"
#include "kernels/cpu/pass.h"

namespace apex::kernels::cpu {
namespace {

template <class Math>
bool scale_as(const plan::Group& group, double factor) {
  bool finite = true;
  for (const auto& [residue] : run_pass(group, rules::Scale<Math>{static_cast<Math>(factor)})) finite &= residue == 0;
  return !finite;
}

}  // namespace

bool scale(const plan::Group& group, double factor) {
  return group.has_double() ? scale_as<double>(group, factor) : scale_as<float>(group, factor);
}

}  // namespace apex::kernels::cpu
