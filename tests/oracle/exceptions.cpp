#include "tests/oracle/exceptions.h"

#include <c10/util/Exception.h>

namespace oracle {

std::string python_name(const std::exception& error) {
  if (dynamic_cast<const c10::ValueError*>(&error)) return "ValueError";
  if (dynamic_cast<const c10::TypeError*>(&error)) return "TypeError";
  if (dynamic_cast<const c10::NotImplementedError*>(&error)) return "NotImplementedError";
  if (dynamic_cast<const c10::IndexError*>(&error)) return "IndexError";
  if (dynamic_cast<const c10::Error*>(&error)) return "RuntimeError";
  return "another exception";
}

namespace {

// Python exceptions that have no counterpart in C++ are plain errors.
std::string counterpart(const std::string& name) {
  return name == "AssertionError" || name == "AttributeError" || name == "KeyError" ? "RuntimeError" : name;
}

}  // namespace

void check_exception(Report& report, const Json* expected, const std::function<void()>& action) {
  const std::string wanted = expected && !expected->is_null() ? counterpart(expected->as_string()) : "none";
  std::string got = "none";
  std::string message;
  try {
    action();
  } catch (const Skipped&) {
    throw;
  } catch (const RejectedWhenCompiled&) {
    got = wanted == "none" ? "an error of the compiler" : wanted;
  } catch (const std::exception& error) {
    got = python_name(error);
    message = std::string(": ") + error.what();
  }
  report.check(got == wanted, "exception", wanted, got + message);
}

}  // namespace oracle
