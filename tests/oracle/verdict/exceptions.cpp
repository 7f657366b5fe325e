#include "tests/oracle/verdict/exceptions.h"

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

std::optional<std::string> check_exception(Report& report, const Json* expected, const std::function<void()>& action) {
  const std::string wanted = expected && !expected->is_null() ? counterpart(expected->as_string()) : "none";
  std::string got = "none";
  std::optional<std::string> message;
  try {
    action();
  } catch (const NeedsFeature&) {
    throw;
  } catch (const RejectedWhenCompiled&) {
    got = wanted == "none" ? "an error of the compiler" : wanted;
  } catch (const std::exception& error) {
    got = python_name(error);
    message = error.what();
  }
  report.check(got == wanted, "exception", wanted, message ? got + ": " + *message : got);
  return message;
}

}  // namespace oracle
