#pragma once

#include <string>

#include <c10/util/Exception.h>

#include "common/user_error.h"

namespace train {

using common::UserError;

/// Returns what `action` returns, which hands the user's own words to the library: a level, the names of modules and operators.
/// An `Error` of the library becomes a UserError, whose text begins with `where`.
template <class Error = c10::Error, class Action>
auto as_user_error(const Action& action, const std::string& where = "") {
  try {
    return action();
  } catch (const Error& error) {
    throw UserError(where + error.what_without_backtrace());
  }
}

}  // namespace train
