#include "opt_levels/loss_scale.h"

#include <c10/util/Exception.h>

#include "opt_levels/detail/values.h"

namespace apex::opt_levels {

LossScale::LossScale(const std::string& text) : dynamic(text == "dynamic") {
  if (dynamic) return;
  const auto number = detail::parse_number(text);
  TORCH_CHECK_VALUE(number, "loss_scale=\"", text, "\" is not a number. Give a positive number, or \"dynamic\".");
  value = *number;
}

}  // namespace apex::opt_levels
