#pragma once

#include <stdexcept>

namespace common {

/// Something the user can put right (a config, a file, an argument): `what` names it and says how. A program prints the text as
/// one line and exits with 2.
struct UserError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace common
