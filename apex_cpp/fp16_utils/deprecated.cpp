#include <apex_cpp/fp16_utils/deprecated.h>
#include <c10/util/Exception.h>

namespace apex::fp16_utils::detail {

void warn_deprecated(const char* name, const char* instead) {
  TORCH_WARN_DEPRECATION("apex::fp16_utils::", name, " is kept for programs from before amp. New code: ", instead, ".");
}

}  // namespace apex::fp16_utils::detail
