#pragma once

namespace cuda_host {

// How the device code is compiled. The tests themselves are not instrumented.
enum class Sanitizer { none, address, thread };
Sanitizer sanitizer();

}  // namespace cuda_host
