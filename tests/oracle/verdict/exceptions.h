#pragma once

#include <exception>
#include <functional>
#include <optional>
#include <string>

#include "tests/oracle/reading/json.h"
#include "tests/oracle/verdict/report.h"

namespace oracle {

// Thrown for a call that C++ rejects at compile time: counts as the error that Python raises at run time, of any class.
class RejectedWhenCompiled : public std::exception {};

// What an exception is called in Python: "RuntimeError", "ValueError", …
std::string python_name(const std::exception& error);

// Runs `action` and checks that it throws the counterpart of the named Python exception (RuntimeError: c10::Error, ValueError:
// c10::ValueError, …). `expected` null or a JSON null: it must not throw. Returns the exception's message, if any.
std::optional<std::string> check_exception(Report& report, const Json* expected, const std::function<void()>& action);

}  // namespace oracle
