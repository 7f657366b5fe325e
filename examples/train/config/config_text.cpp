#include "config/config_text.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include <opt_levels/detail/values.h>

#include "errors.h"

namespace train {

std::string place(const std::string& source, const YAML::Mark& mark) {
  const bool known = mark.line >= 0 && mark.column >= 0;
  return source + ":" + std::to_string(known ? mark.line + 1 : 1) + ":" + std::to_string(known ? mark.column + 1 : 1) + ": ";
}

void report(std::vector<Mistake> mistakes) {
  const auto is_before = [](const Mistake& a, const Mistake& b) {
    return std::make_pair(a.mark.line, a.mark.column) < std::make_pair(b.mark.line, b.mark.column);
  };
  std::stable_sort(mistakes.begin(), mistakes.end(), is_before);
  std::vector<std::string> lines;
  for (const auto& mistake : mistakes) lines.push_back(mistake.text);
  if (!lines.empty()) throw UserError(apex::opt_levels::detail::join(lines, "\n"));
}

bool begins_with_place(const std::string& message) {
  const auto head = message.substr(0, message.find(": "));
  const auto column = head.rfind(':');
  const auto line = column == std::string::npos ? column : head.rfind(':', column - 1);
  return line != std::string::npos && head.find_first_not_of("0123456789:", line) == std::string::npos;
}

std::string blanked_before(const std::string& text, const YAML::Mark& begin, int end) {
  std::istringstream lines(text);
  std::string kept, line;
  for (int number = 0; (end < 0 || number < end) && std::getline(lines, line); ++number) {
    if (number < begin.line) {
      line.clear();
    } else if (number == begin.line) {
      line.replace(0, static_cast<size_t>(begin.column), static_cast<size_t>(begin.column), ' ');
    }
    kept += line + "\n";
  }
  return kept;
}

std::string in_braces(const YAML::Node& map) {
  auto flow = YAML::Clone(map);
  flow.SetStyle(YAML::EmitterStyle::Flow);
  const auto begin = map.Mark();
  return std::string(static_cast<size_t>(begin.line), '\n') + std::string(static_cast<size_t>(begin.column), ' ') +
         YAML::Dump(flow) + "\n";
}

}  // namespace train
