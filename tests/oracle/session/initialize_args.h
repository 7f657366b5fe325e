#pragma once

#include <apex_cpp/amp.h>

#include "tests/oracle/reading/json.h"

namespace oracle {

// Python's keyword arguments of `amp.initialize`, as a case or a table row gives them, in the form of the C++ API.
apex::amp::OptLevel opt_level_arg(const Json& args);
apex::amp::InitializeOptions initialize_options(const Json& args);

}  // namespace oracle
