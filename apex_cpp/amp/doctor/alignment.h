#pragma once

#include <string>
#include <utility>
#include <vector>

namespace apex::amp::detail {

/// Pairs the equal names of two sequences in order, (place in `a`, place in `b`). Where they part it goes on at the nearest
/// pair of equal names, counted in names left out.
std::vector<std::pair<size_t, size_t>> align(const std::vector<std::string>& a, const std::vector<std::string>& b);

}  // namespace apex::amp::detail
