#include <apex_cpp/amp/casts/function_arguments.h>

namespace apex::amp::detail {

const OperatorSlot& function_name(CastPolicy policy) {
  static const OperatorSlot half("amp::half_function", 0), float32("amp::float_function", 0),
      promote("amp::promote_function", 0);
  if (policy == CastPolicy::half) return half;
  return policy == CastPolicy::float32 ? float32 : promote;
}

}  // namespace apex::amp::detail
