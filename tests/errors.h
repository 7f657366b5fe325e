#pragma once

#include <c10/util/Exception.h>
#include <gtest/gtest.h>

#include <exception>
#include <string>
#include <vector>

namespace apex::test {

/// What the Error that `call` throws says, without LibTorch's backtrace; empty if it throws nothing. Others pass through.
template <class Error = std::exception, class Call>
std::string message_of(Call&& call) {
  try {
    call();
  } catch (const Error& error) {
    const auto* of_torch = dynamic_cast<const c10::Error*>(&error);
    return of_torch ? of_torch->what_without_backtrace() : error.what();
  }
  return {};
}

/// Expects an Error whose text holds every one of `parts`.
template <class Error = c10::Error, class Call>
void expect_error(Call&& call, const std::vector<std::string>& parts) {
  const std::string text = message_of<Error>(call);
  EXPECT_NE(text, "") << "nothing was thrown";
  for (const std::string& part : parts) EXPECT_NE(text.find(part), std::string::npos) << part << " is missing in: " << text;
}

}  // namespace apex::test
