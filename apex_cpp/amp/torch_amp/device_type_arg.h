#pragma once

#include <c10/core/DeviceType.h>

#include <string>

namespace apex::amp {

/// A device type as an argument: `at::kCUDA`, or its name as Python writes it, "cuda".
/// Errors: RuntimeError for a name that is no device type, an index ("cuda:0") among it.
class DeviceTypeArg {
 public:
  /* implicit */ DeviceTypeArg(c10::DeviceType type) : type_(type) {}
  /* implicit */ DeviceTypeArg(const std::string& name);
  /* implicit */ DeviceTypeArg(const char* name) : DeviceTypeArg(std::string(name)) {}

  /* implicit */ operator c10::DeviceType() const { return type_; }
  /// "cuda", "cpu", …
  std::string name() const;

 private:
  c10::DeviceType type_;
};

}  // namespace apex::amp
