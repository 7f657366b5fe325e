#pragma once

#include <string>

namespace common {

/// The folder of the file; "." for a bare name.
std::string folder_of(const std::string& path);

/// Throws UserError if `write_whole` cannot write `path`: its folder is missing or not writable, or `path` is not a regular
/// file (a folder, a device), which a rename would replace.
void check_writable(const std::string& path);

/// Writes a file atomically, through a temporary file and a rename: a reader sees the old or the new content, never a part.
/// Throws UserError on failure.
void write_whole(const std::string& path, const std::string& content);

}  // namespace common
