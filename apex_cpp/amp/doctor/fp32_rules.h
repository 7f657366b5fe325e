#pragma once

#include <apex_cpp/amp/doctor/step_observer.h>
#include "opt_levels/opt_level.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace apex::amp::detail {

/// Both functions cut `all` into `parts` pieces of about the same size. `piece` returns the piece with index `part`,
/// `without_piece` returns all other pieces.
template <class T>
std::vector<T> without_piece(const std::vector<T>& all, size_t part, size_t parts) {
  const auto begin = all.begin() + static_cast<std::ptrdiff_t>(all.size() * part / parts);
  const auto end = all.begin() + static_cast<std::ptrdiff_t>(all.size() * (part + 1) / parts);
  std::vector<T> rest(all.begin(), begin);
  rest.insert(rest.end(), end, all.end());
  return rest;
}
template <class T>
std::vector<T> piece(const std::vector<T>& all, size_t part, size_t parts) {
  return {all.begin() + static_cast<std::ptrdiff_t>(all.size() * part / parts),
          all.begin() + static_cast<std::ptrdiff_t>(all.size() * (part + 1) / parts)};
}

/// Delta debugging (Zeller's ddmin): takes items for which `works` is true, and returns a subset for which `works` is true and
/// which fails without any one of its items. Tests pieces that get smaller: about 2 log2(n) calls of `works` if one item is
/// enough.
template <class T, class Works>
std::vector<T> minimal(std::vector<T> items, const Works& works) {
  size_t parts = 2;
  while (items.size() > 1) {
    bool shrunk = false;
    for (size_t i = 0; i < parts && !shrunk; ++i) {
      auto alone = piece(items, i, parts);
      if (works(alone)) {
        items = std::move(alone);
        parts = 2;
        shrunk = true;
      }
    }
    // With two pieces, the rest without one piece is the other piece.
    for (size_t i = 0; parts > 2 && i < parts && !shrunk; ++i) {
      auto rest = without_piece(items, i, parts);
      if (works(rest)) {
        items = std::move(rest);
        parts = std::max<size_t>(parts - 1, 2);
        shrunk = true;
      }
    }
    if (shrunk) continue;
    if (parts == items.size()) break;
    parts = std::min(2 * parts, items.size());
  }
  return items;
}

/// A module with parameters, by its path, or an operator, which a level can keep in FP32.
struct Fp32Rule {
  bool is_module = false;
  std::string name;

  friend bool operator==(const Fp32Rule& a, const Fp32Rule& b) { return a.is_module == b.is_module && a.name == b.name; }
};
using Fp32Rules = std::vector<Fp32Rule>;

/// Appends the rules that `list` does not have. Returns true if there were any.
bool append_new(const Fp32Rules& more, Fp32Rules& list);
/// The rules that keep a call in FP32: the module whose parameter the call used, otherwise the operator. For an autograd
/// function without parameters: the operators that its forward calls. Views and in-place operators have no rule.
Fp32Rules rules_for(const ObservedCall& call);
/// The rules for all calls with a 16-bit tensor, in the order of the calls.
Fp32Rules rules_for_step(const ObservedStep& step);

/// The paths of the modules whose products a level with FP8 rounds, in the order of the calls; of the model's own parameters,
/// their names.
std::vector<std::string> modules_in_float8(const ObservedStep& step);

/// The level with these rules added to its `float32_modules` and `float32_functions`, sorted by name.
opt_levels::OptLevel with_rules(const opt_levels::OptLevel& level, const Fp32Rules& rules);

}  // namespace apex::amp::detail
