#include "compiler.h"

#include <stdexcept>

#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>

extern char** environ;

namespace bench::compile {
namespace {

double nanoseconds(const timeval& time) {
  return 1e9 * static_cast<double>(time.tv_sec) + 1e3 * static_cast<double>(time.tv_usec);
}

}  // namespace

double processor_nanoseconds(const std::vector<std::string>& command) {
  std::vector<char*> words;
  std::string line;
  for (const auto& word : command) {
    words.push_back(const_cast<char*>(word.c_str()));
    line += (line.empty() ? "" : " ") + word;
  }
  words.push_back(nullptr);
  pid_t process = 0;
  int status = 0;
  rusage used{};
  if (posix_spawnp(&process, words[0], nullptr, nullptr, words.data(), environ) != 0 ||
      wait4(process, &status, 0, &used) != process || status != 0) {
    throw std::runtime_error("this command failed: " + line);
  }
  return nanoseconds(used.ru_utime) + nanoseconds(used.ru_stime);
}

std::vector<std::string> compiler() { return {BENCH_COMPILER, "@" BENCH_COMPILER_FLAGS, "-o", "/dev/null", "-c"}; }

}  // namespace bench::compile
