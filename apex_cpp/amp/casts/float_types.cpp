#include <apex_cpp/amp/casts/float_types.h>

#include <sstream>

namespace apex::amp::detail {

std::string FloatTypes::names() const {
  std::ostringstream text;
  for (const auto type : {at::kHalf, at::kBFloat16, at::kFloat, at::kDouble}) {
    if (has(type)) text << (text.tellp() > 0 ? ", " : "") << type;
  }
  return text.str();
}

}  // namespace apex::amp::detail
