#include <apex_cpp/amp/doctor/alignment.h>

namespace apex::amp::detail {
namespace {

// Moves on to the nearest equal names; false where there are none.
bool resume(const std::vector<std::string>& a, const std::vector<std::string>& b, size_t& i, size_t& j) {
  const size_t longest = (a.size() - i) + (b.size() - j);
  for (size_t left_out = 0; left_out < longest; ++left_out) {
    for (size_t of_a = 0; of_a <= left_out; ++of_a) {
      const size_t of_b = left_out - of_a;
      if (i + of_a >= a.size() || j + of_b >= b.size() || a[i + of_a] != b[j + of_b]) continue;
      i += of_a;
      j += of_b;
      return true;
    }
  }
  return false;
}

}  // namespace

std::vector<std::pair<size_t, size_t>> align(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::vector<std::pair<size_t, size_t>> pairs;
  size_t i = 0, j = 0;
  while (i < a.size() && j < b.size() && resume(a, b, i, j)) pairs.emplace_back(i++, j++);
  return pairs;
}

}  // namespace apex::amp::detail
