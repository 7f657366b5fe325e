#pragma once

#include <functional>
#include <tuple>
#include <type_traits>

#include "support.h"

namespace amp_C_test {

// A call of a function of amp_C: flag and lists; the tensors that it returns.
class Call {
 public:
  template <class F>
  Call(F function)  // NOLINT(google-explicit-constructor): rows of a table
      : call_([function](const at::Tensor& flag, const TensorLists& lists) { return results(function, flag, lists); }) {}
  Tensors operator()(const at::Tensor& flag, const TensorLists& lists) const { return call_(flag, lists); }

 private:
  template <class F>
  static Tensors results(const F& function, const at::Tensor& flag, const TensorLists& lists) {
    if constexpr (std::is_void_v<decltype(function(flag, lists))>) {
      function(flag, lists);
      return {};
    } else {
      return std::apply([](const auto&... each) { return Tensors{each...}; }, function(flag, lists));
    }
  }

  std::function<Tensors(const at::Tensor&, const TensorLists&)> call_;
};

// A function of amp_C with all its arguments but flag and lists (of float32), and what the flag is to it.
struct Function {
  std::string name;
  size_t depth;
  std::vector<size_t> searched;  // lists in which a value that is not finite sets the flag
  bool stops;                    // a flag that is set leaves all lists as they are
  Call call;
};

inline std::ostream& operator<<(std::ostream& out, const Function& function) { return out << function.name; }

// Every function over lists, some with several choices of arguments.
const std::vector<Function>& functions();

}  // namespace amp_C_test
