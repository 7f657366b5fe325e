#pragma once

#include <string>

namespace common {

/// The folder that the file is in, "." for a name alone.
std::string folder_of(const std::string& path);

/// Throws UserError where `write_whole` could not write: its folder is missing or closed to this user, or what has the name is
/// no regular file (a folder, a device), which a rename would replace.
void check_writable(const std::string& path);

/// Writes a file so that a reader sees the old or the new content, never a part: through a temporary name and a rename. Throws
/// UserError where it cannot.
void write_whole(const std::string& path, const std::string& content);

}  // namespace common
