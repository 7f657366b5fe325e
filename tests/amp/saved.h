#pragma once
// torch::save to a string, and torch::load from one.
#include <torch/serialize.h>

#include <sstream>
#include <string>

namespace apex::test {

template <class Value>
std::string saved(const Value& value) {
  std::ostringstream stream;
  torch::save(value, stream);
  return stream.str();
}

template <class Value>
void restore(Value& value, const std::string& bytes) {
  std::istringstream stream(bytes);
  torch::load(value, stream);
}

}  // namespace apex::test
