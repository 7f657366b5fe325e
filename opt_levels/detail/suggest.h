#pragma once

#include <string>
#include <vector>

namespace apex::opt_levels::detail {

/// "a, b, c".
std::string join(const std::vector<std::string>& words, const std::string& between = ", ");

/// The word nearest to `word`, counted in edited characters, where capitals count as small letters; empty when none is near.
/// For a 16-bit type it is 'half' where that is known, however few letters make "float16" another type.
std::string nearest(const std::string& word, const std::vector<std::string>& known);

/// " Did you mean 'x'?" with the nearest word; empty when none is near.
std::string did_you_mean(const std::string& word, const std::vector<std::string>& known);

}  // namespace apex::opt_levels::detail
