#include "progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <iostream>

#include <sys/ioctl.h>
#include <unistd.h>

namespace train {
namespace {

constexpr double kRedrawSeconds = 0.1;
constexpr double kPlainSeconds = 30;
constexpr int kLongestBar = 30;
constexpr int kShortestBar = 5;
constexpr const char* kClearLine = "\r\x1b[K";

template <class... Values>
std::string formatted(const char* format, Values... values) {
  char text[256];
  std::snprintf(text, sizeof(text), format, values...);
  return text;
}

std::string bar(double done, int length) {
  const auto filled = static_cast<int>(std::lround(done * length));
  return " [" + std::string(static_cast<size_t>(filled), '#') + std::string(static_cast<size_t>(length - filled), '.') + "]";
}

}  // namespace

std::string clock_time(double seconds) {
  const auto whole = static_cast<long long>(std::lround(std::max(0.0, seconds)));
  if (whole < 3600) {
    return formatted("%lld:%02lld", whole / 60, whole % 60);
  }
  return formatted("%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
}

std::string progress_line(const StepReport& report, int width) {
  const auto head = formatted("epoch %lld/%lld", static_cast<long long>(report.epoch), static_cast<long long>(report.epochs));
  const auto tail = formatted(" %lld/%lld  loss %.4f  scale %g  skipped %lld  %.0f images/s  ETA ",
                              static_cast<long long>(report.step), static_cast<long long>(report.steps), report.loss,
                              report.loss_scale, static_cast<long long>(report.skipped), report.images_per_second) +
                    clock_time(report.seconds_left);
  const auto room = width - static_cast<int>(head.size() + tail.size()) - 3;
  const auto done = static_cast<double>(report.step) / static_cast<double>(report.steps);
  const auto line = head + (room < kShortestBar ? "" : bar(done, std::min(room, kLongestBar))) + tail;
  return line.substr(0, static_cast<size_t>(std::max(width, 0)));
}

void Progress::step(const StepReport& report) {
  const auto now = Clock::now();
  const std::chrono::duration<double> since = now - last_;
  if (since.count() < (live_ ? kRedrawSeconds : kPlainSeconds) && !(live_ && !drawn_)) {
    return;
  }
  last_ = now;
  // The cursor waits at the line's start, so that a message printed by someone else lies over the bar, not behind it.
  out_ << (live_ ? kClearLine : "") << progress_line(report, live_ ? width_ : 200) << (live_ ? "\r" : "\n") << std::flush;
  drawn_ = live_;
}

void Progress::line(const std::string& text) {
  out_ << (drawn_ ? kClearLine : "") << text << std::endl;
  drawn_ = false;
}

Progress terminal_progress() {
  const char* kind = std::getenv("TERM");
  const bool live = isatty(STDOUT_FILENO) && kind && std::string(kind) != "dumb";
  winsize size{};
  const bool known = live && ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return Progress(std::cout, live, known ? size.ws_col - 1 : 79);
}

}  // namespace train
