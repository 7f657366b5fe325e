#pragma once

#include <apex_cpp/amp/doctor/step_observer.h>
#include "opt_levels/opt_level.h"

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace apex::amp::detail {

/// The items of `all` without the `part`-th of `parts` pieces of about one size; or that piece alone.
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

/// Delta debugging (Zeller's ddmin): from items of which `works` holds, a subset of which it holds, and of which it does not
/// once any one item is taken away. Asks in pieces that get smaller: about 2 log2(n) questions where one item is enough.
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
    // Of two pieces, each is what is left without the other.
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

/// Something that a level can keep in FP32: a module with parameters by its path, or an operator.
struct Fp32Rule {
  bool is_module = false;
  std::string name;

  friend bool operator==(const Fp32Rule& a, const Fp32Rule& b) { return a.is_module == b.is_module && a.name == b.name; }
};
using Fp32Rules = std::vector<Fp32Rule>;

/// Adds those that are not there yet; whether there were any.
bool add_new(const Fp32Rules& more, Fp32Rules& list);
/// What keeps a call in FP32: the module whose parameter it used; else the operator, or, of an autograd function, those that it
/// is made of. Nothing for views and for operators that write in place.
Fp32Rules kept_for(const ObservedCall& call);
/// That of all calls with a 16-bit tensor, in order.
Fp32Rules all_kept_for(const ObservedStep& step);

/// The level with these in `float32_modules` and `float32_functions`, beside what it has there, by the alphabet.
opt_levels::OptLevel keeping(const opt_levels::OptLevel& level, const Fp32Rules& kept);

}  // namespace apex::amp::detail
