#pragma once

#include <stdexcept>

namespace common {

/// An error that the user can fix, in a config, a file or an argument. `what` names the cause and the fix. A program prints it
/// as one line and exits with 2.
struct UserError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace common
