#pragma once

#include <string>
#include <vector>

#include <yaml-cpp/yaml.h>

// Where things are in the text of a config.
namespace train {

/// "file:line:column: ", counted from 1.
std::string place(const std::string& source, const YAML::Mark& mark);

/// One mistake of a text, and where it is.
struct Mistake {
  YAML::Mark mark;
  std::string text;
};

/// Throws UserError where there are mistakes: all of them in the order of the text, a line each.
void report(std::vector<Mistake> mistakes);

/// Whether a message names its place already.
bool begins_with_place(const std::string& message);

/// The lines of `text` from `begin` up to line `end` (or the file's end), with everything before `begin` turned into blanks.
std::string blanked_before(const std::string& text, const YAML::Mark& begin, int end);

/// A mapping in braces, at the line and column where it begins.
std::string in_braces(const YAML::Node& map);

}  // namespace train
