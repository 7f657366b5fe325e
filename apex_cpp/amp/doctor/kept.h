#pragma once

#include <string>
#include <vector>

#include <apex_cpp/amp/doctor/observed_step.h>

#include "opt_levels/opt_level.h"

namespace apex::amp::detail {

/// Something that a level can keep in FP32: a module with parameters by its path, or an operator.
struct Kept {
  bool is_module = false;
  std::string name;

  friend bool operator==(const Kept& a, const Kept& b) { return a.is_module == b.is_module && a.name == b.name; }
};
using KeptList = std::vector<Kept>;

/// Adds those that are not there yet; whether there were any.
bool add_new(const KeptList& more, KeptList& list);
/// What keeps a call in FP32: the module whose parameter it used; else the operator, or, of an autograd function, those that it
/// is made of. Nothing for views and for operators that write in place.
KeptList kept_for(const ObservedCall& call);
/// That of all calls with a 16-bit tensor, in order.
KeptList all_kept_for(const ObservedStep& step);

/// The level with these in `float32_modules` and `float32_functions`, beside what it has there, by the alphabet.
opt_levels::OptLevel keeping(const opt_levels::OptLevel& level, const KeptList& kept);

}  // namespace apex::amp::detail
