#include <apex_cpp/amp/casts/only_copy.h>

#include <c10/util/Exception.h>

#include <apex_cpp/amp/casts/dispatch.h>
#include <apex_cpp/amp/casts/kernel_library.h>

namespace apex::amp::detail {

// It has the fallback of the engine's key, as long as it is loaded.
bool is_only_copy() {
  static const std::optional<torch::Library> fallback = fallthrough_library(kCastKey);
  return fallback.has_value();
}

void check_only_copy() {
  TORCH_CHECK(is_only_copy(),
              "Another copy of apex_cpp is loaded in this process, whose casts this one's would replace. Where the program and "
              "its plugins, or several shared libraries, use apex_cpp, link all of them with the shared library: "
              "find_package(apex_cpp COMPONENTS shared), or BUILD_SHARED_LIBS=ON.");
}

}  // namespace apex::amp::detail
