#include "shell.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <sys/wait.h>

#include "common/user_error.h"

namespace comparison {
namespace {

int exit_code(int status) {
  if (WIFSIGNALED(status)) return 128 + WTERMSIG(status);
  return WIFEXITED(status) ? WEXITSTATUS(status) : EXIT_FAILURE;
}

}  // namespace

std::string quoted(const std::string& word) {
  std::string text = "'";
  for (const auto letter : word) text += letter == '\'' ? std::string("'\\''") : std::string(1, letter);
  return text + "'";
}

int run_lines(const std::string& command, const std::function<void(const std::string&)>& on_line) {
  // With `exec` the shell is gone: a signal that ends the program is its own.
  FILE* pipe = popen(("exec " + command + " 2>&1").c_str(), "r");
  if (!pipe) throw common::UserError("cannot run " + command + ": " + std::strerror(errno));
  std::string line;
  std::array<char, 4096> part{};
  while (std::fgets(part.data(), part.size(), pipe)) {
    line += part.data();
    if (line.back() != '\n') continue;
    line.pop_back();
    on_line(line);
    line.clear();
  }
  if (!line.empty()) on_line(line);
  return exit_code(pclose(pipe));
}

void remove_folder(const std::string& path) {
  if (std::system(("rm -rf -- " + quoted(path)).c_str()) != 0) throw common::UserError("cannot remove '" + path + "'");
}

}  // namespace comparison
