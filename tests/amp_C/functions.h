#pragma once

#include <functional>

#include "support.h"

namespace amp_C_test {

// A function of amp_C with all its arguments but flag and lists (of float32), and what the flag is to it.
struct Function {
  std::string name;
  size_t depth;
  std::vector<size_t> searched;  // lists in which a value that is not finite sets the flag
  bool stops;                    // a flag that is set leaves all lists as they are
  std::function<void(at::Tensor, TensorLists)> call;
};

inline std::ostream& operator<<(std::ostream& out, const Function& function) { return out << function.name; }

// Every function over lists, some with several choices of arguments.
const std::vector<Function>& functions();

}  // namespace amp_C_test
