#pragma once

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <typeinfo>

namespace apex::opt_levels::testing {

/// What a call ended with, by the name Python gives it; `accepted` if it returned.
enum class Outcome { accepted, runtime_error, value_error, other };

inline std::ostream& operator<<(std::ostream& out, Outcome outcome) {
  constexpr const char* kNames[] = {"accepted", "RuntimeError", "ValueError", "another error"};
  return out << kNames[static_cast<int>(outcome)];
}

struct CallResult {
  Outcome outcome = Outcome::accepted;
  std::string message;
};

template <class Call>
CallResult result_of(Call&& call) {
  try {
    call();
  } catch (const c10::Error& error) {
    const auto& type = typeid(error);
    const Outcome outcome = type == typeid(c10::Error)        ? Outcome::runtime_error
                            : type == typeid(c10::ValueError) ? Outcome::value_error
                                                              : Outcome::other;
    return {outcome, error.what_without_backtrace()};
  }
  return {};
}

inline void expect_mentions(const std::string& message, const std::string& part) {
  EXPECT_NE(message.find(part), std::string::npos) << "\"" << message << "\" does not mention \"" << part << "\"";
}

template <class Call>
void expect_error(Outcome outcome, std::initializer_list<const char*> parts, Call&& call) {
  const CallResult result = result_of(call);
  EXPECT_EQ(result.outcome, outcome) << result.message;
  for (const char* part : parts) expect_mentions(result.message, part);
}

}  // namespace apex::opt_levels::testing
