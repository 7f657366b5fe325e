#pragma once

#include <functional>
#include <tuple>
#include <type_traits>

#include "support.h"

namespace amp_C_test {

// A call of an amp_C function with a flag and lists; returns the tensors that the function returns.
class Call {
 public:
  template <class F>
  Call(F function)  // NOLINT(google-explicit-constructor): implicit for the rows of a table
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

// An amp_C function with all arguments bound except flag and lists (of float32), and its use of the flag.
struct Function {
  std::string name;
  size_t depth;
  std::vector<size_t> searched;  // lists in which a non-finite value sets the flag
  bool stops;                    // a set flag leaves all lists unchanged
  Call call;
};

inline std::ostream& operator<<(std::ostream& out, const Function& function) { return out << function.name; }

// Every function over lists, some with several sets of arguments.
const std::vector<Function>& functions();

}  // namespace amp_C_test
