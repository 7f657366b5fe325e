#include "progress.h"

#include <iostream>

#include <unistd.h>

namespace bench {
namespace {

constexpr std::chrono::milliseconds kRedraw(100);
constexpr const char* kClearLine = "\r\x1b[K";

}  // namespace

Progress::Progress() : live_(isatty(STDERR_FILENO) == 1) {}

void Progress::start(const std::string& benchmark) {
  benchmark_ = benchmark;
  if (!live_) std::cerr << "bench: " << benchmark << std::endl;
}

void Progress::round(int done, int rounds) {
  const auto now = std::chrono::steady_clock::now();
  if (!live_ || (drawn_ && now - drawn_at_ < kRedraw)) return;
  std::cerr << kClearLine << benchmark_ << "  round " << done << "/" << rounds << std::flush;
  drawn_ = true;
  drawn_at_ = now;
}

void Progress::clear() {
  if (drawn_) std::cerr << kClearLine << std::flush;
  drawn_ = false;
}

}  // namespace bench
