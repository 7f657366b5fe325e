#include "kernels/rules/axpby.h"

#include "kernels/cpu/driver.h"
#include "kernels/cpu/pass.h"

namespace apex::kernels::cpu {
namespace {

template <class Math>
bool axpby_as(const plan::Group& group, double a, double b, CheckArg check) {
  bool finite = true;
  for (const auto& [x, y] : run_pass(group, rules::Axpby<Math>{static_cast<Math>(a), static_cast<Math>(b)})) {
    finite &= (check == CheckArg::y || x == 0) && (check == CheckArg::x || y == 0);
  }
  return !finite;
}

}  // namespace

bool axpby(const plan::Group& group, double a, double b, CheckArg check) {
  return group.has_double() ? axpby_as<double>(group, a, b, check) : axpby_as<float>(group, a, b, check);
}

}  // namespace apex::kernels::cpu
