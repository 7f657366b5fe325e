#include <apex_cpp/amp/init.h>
#include <c10/util/Exception.h>

namespace apex::amp::detail {

void throw_replaced(const char* name, const char* instead) {
  C10_THROW_ERROR(Error,
                  std::string("amp::") + name + " belongs to Apex's old interface, which is gone. Write " + instead + ".");
}

}  // namespace apex::amp::detail
