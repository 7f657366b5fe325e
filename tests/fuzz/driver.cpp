// Runs a fuzz target without libFuzzer: the corpus, then inputs mutated from it; --help lists the options.
// Fails if anything but c10::Error escapes the target, after a crash, and if an input needs memory out of proportion to its
// size.
#include <c10/util/Logging.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <limits>
#include <sstream>

#include "common/command_line.h"
#include "tests/fuzz/counted_memory.h"
#include "tests/fuzz/target.h"

namespace apex::fuzz {
namespace {

// The total memory that all inputs may leave allocated.
constexpr size_t kMostLeft = 1 << 20;

std::sig_atomic_t volatile current = -1;  // the input's number; -1: the corpus

void report_crash(int signal) {
  char text[] = "input #########: crashed\n";
  long number = current < 0 ? 0 : current;
  for (char* digit = text + 14; digit >= text + 6; --digit, number /= 10) *digit = static_cast<char>('0' + number % 10);
  [[maybe_unused]] const auto written = ::write(STDERR_FILENO, text, sizeof text - 1);
  std::signal(signal, SIG_DFL);
  ::raise(signal);
}

/// Runs on its own stack: the crash may be a stack overflow.
void watch_for_crashes() {
  static char stack[64 << 10];
  stack_t place{};
  place.ss_sp = stack;
  place.ss_size = sizeof stack;
  ::sigaltstack(&place, nullptr);
  struct sigaction action {};
  action.sa_handler = report_crash;
  action.sa_flags = SA_ONSTACK;
  for (const int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT}) ::sigaction(signal, &action, nullptr);
}

std::vector<std::string> read_corpus(const std::vector<std::string>& folders) {
  std::vector<std::filesystem::path> paths;
  for (const auto& folder : folders) {
    for (const auto& entry : std::filesystem::directory_iterator(folder)) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  std::vector<std::string> corpus;
  for (const auto& path : paths) {
    std::ostringstream content;
    content << std::ifstream(path, std::ios::binary).rdbuf();
    corpus.push_back(content.str());
  }
  return corpus;
}

void run(const std::string& input) { LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(input.data()), input.size()); }

/// Runs the target on the input and returns the failure, or an empty string.
std::string failure_of(const std::string& input) {
  const size_t before = live_bytes();
  set_memory_limit(before + most_memory(input.size()));
  std::string failure;
  try {
    run(input);
  } catch (const std::exception& error) {
    failure = std::string("an exception escaped: ") + error.what();
  }
  const size_t refusals = refused_bytes();
  set_memory_limit(std::numeric_limits<size_t>::max());
  if (refusals == 0) return failure;
  return std::to_string(input.size()) + " bytes of input took " + std::to_string(refusals - before) + " bytes of memory";
}

struct Arguments {
  std::vector<std::string> folders;
  long inputs = 10'000;
  long first = 0;
  long print = -1;
  std::string help;  // text to print instead of running; empty: not requested
};

Arguments parse(const std::vector<std::string>& words) {
  Arguments arguments;
  common::CommandLine line(
      "fuzz_TARGET",
      "Runs the target on the files of the folders and on inputs made from them. The same arguments always "
      "run the same inputs.");
  line.arguments("FOLDER", "folders of the corpus", common::texts(arguments.folders));
  line.option("--inputs N", "how many inputs to make (default: " + std::to_string(arguments.inputs) + ")",
              common::whole_number(arguments.inputs, 0));
  line.option("--first I", "the number of the first one (default: 0)", common::whole_number(arguments.first, 0));
  line.option("--print I", "write input I to standard output instead of running anything",
              common::whole_number(arguments.print, 0));
  arguments.help = line.read(words);
  if (arguments.help.empty() && arguments.folders.empty()) throw common::UserError("no corpus: name its folders; see --help");
  return arguments;
}

std::string input_at(long i, const std::vector<std::string>& corpus) {
  Random random(static_cast<uint64_t>(i));
  return mutate(corpus[pick(random, corpus.size())], corpus, random);
}

int fuzz(const Arguments& arguments) {
  const auto corpus = read_corpus(arguments.folders);
  if (corpus.empty()) {
    std::cerr << "the folders hold no corpus\n";
    return 2;
  }
  if (arguments.print >= 0) {
    std::cout << input_at(arguments.print, corpus);
    return 0;
  }
  // Warms up allocations that libtorch and the project make only once.
  for (const auto& entry : corpus) run(entry);
  for (const auto& entry : corpus) {
    const auto failure = failure_of(entry);
    if (failure.empty()) continue;
    std::cerr << "an entry of the corpus: " << failure << "\n";
    return 1;
  }
  inputs_read = 0;
  const size_t before = live_bytes();
  for (long i = arguments.first; i < arguments.first + arguments.inputs; ++i) {
    current = static_cast<std::sig_atomic_t>(i);
    const auto failure = failure_of(input_at(i, corpus));
    if (failure.empty()) continue;
    std::cerr << "input " << i << ": " << failure << "\n";
    return 1;
  }
  const size_t after = live_bytes();
  if (after > before + kMostLeft) {
    std::cerr << arguments.inputs << " inputs left " << after - before << " bytes of memory behind\n";
    return 1;
  }
  std::cout << corpus.size() << " entries of the corpus; of " << arguments.inputs << " inputs made from them " << inputs_read
            << " were read, the others refused\n";
  if (inputs_read == 0 && arguments.inputs >= 1000) {
    std::cerr << "no input was read: nothing behind the first check is tested\n";
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace apex::fuzz

int main(int count, char** words) {
  apex::fuzz::watch_for_crashes();
  apex::fuzz::count_tensor_memory();
  // Most inputs end in an error; computing its stack trace would dominate the run time.
  c10::SetStackTraceFetcher([] { return std::string(); });
  try {
    const auto arguments = apex::fuzz::parse({words + 1, words + count});
    if (arguments.help.empty()) return apex::fuzz::fuzz(arguments);
    std::cout << arguments.help;
    return 0;
  } catch (const common::UserError& error) {
    std::cerr << "fuzz: " << error.what() << "\n";
    return 2;
  }
}
