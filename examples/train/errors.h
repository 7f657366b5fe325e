#pragma once

#include <stdexcept>

namespace train {

/// Something the user can put right (a config, a file, an argument). `main` prints the text as one line and exits with 2.
struct UserError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace train
