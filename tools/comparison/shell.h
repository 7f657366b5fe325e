#pragma once

#include <functional>
#include <string>

namespace comparison {

/// One word of a shell's command line, whatever is in it.
std::string quoted(const std::string& word);

/// Runs a command line by the shell, and hands each line of its output, of both streams, to `on_line` as it comes. Returns its
/// exit code; 128 and the signal's number for one that a signal ended.
int run_lines(const std::string& command, const std::function<void(const std::string&)>& on_line);

/// Removes a folder with all that is in it, if it is there. By the shell: libtorch.so exports a copy of
/// std::filesystem::remove_all that crashes. Throws UserError where it cannot be removed.
void remove_folder(const std::string& path);

}  // namespace comparison
