#include <apex_cpp/amp/torch_amp/device_type_arg.h>

#include <c10/core/Device.h>
#include <c10/util/Exception.h>

namespace apex::amp {
namespace {

c10::DeviceType type_named(const std::string& name) {
  const c10::Device device(name);
  TORCH_CHECK(!device.has_index(), "A device type was given as '", name, "'. Leave the index out: it holds for every device '",
              c10::DeviceTypeName(device.type(), true), "'.");
  return device.type();
}

}  // namespace

DeviceTypeArg::DeviceTypeArg(const std::string& name) : type_(type_named(name)) {}

std::string DeviceTypeArg::name() const { return c10::DeviceTypeName(type_, /*lower_case=*/true); }

}  // namespace apex::amp
