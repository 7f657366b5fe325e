#include "common/progress.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include <sys/ioctl.h>
#include <unistd.h>

namespace common {
namespace {

constexpr std::chrono::milliseconds kRedraw(100);
constexpr std::chrono::seconds kLogLine(30);
constexpr int kLogWidth = 200;
constexpr int kLongestBar = 30;
constexpr int kShortestBar = 5;
constexpr const char* kClearLine = "\r\x1b[K";

std::string bar(double share, int length) {
  const auto filled = static_cast<size_t>(std::lround(share * length));
  return " [" + std::string(filled, '#') + std::string(static_cast<size_t>(length) - filled, '.') + "]";
}

}  // namespace

std::string clock_time(double seconds) {
  const auto whole = std::lround(std::max(0.0, seconds));
  char text[32];
  if (whole < 3600) {
    std::snprintf(text, sizeof(text), "%ld:%02ld", whole / 60, whole % 60);
  } else {
    std::snprintf(text, sizeof(text), "%ld:%02ld:%02ld", whole / 3600, whole / 60 % 60, whole % 60);
  }
  return text;
}

std::string progress_line(const Standing& standing, int width) {
  const auto details = standing.details.empty() ? "" : "  " + standing.details;
  const auto tail = " " + std::to_string(standing.done) + "/" + std::to_string(standing.total) + details + "  ETA " +
                    clock_time(standing.seconds_left);
  const auto room = width - static_cast<int>(standing.task.size() + tail.size()) - 3;
  const auto share = static_cast<double>(standing.done) / static_cast<double>(standing.total);
  const auto line = standing.task + (room < kShortestBar ? "" : bar(share, std::min(room, kLongestBar))) + tail;
  return line.substr(0, static_cast<size_t>(std::max(width, 0)));
}

Terminal terminal_of(int descriptor) {
  Terminal terminal;
  const char* kind = std::getenv("TERM");
  terminal.live = isatty(descriptor) && kind && std::string(kind) != "dumb";
  winsize size{};
  if (terminal.live && ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0) {
    terminal.width = size.ws_col - 1;
  }
  return terminal;
}

void Progress::begin(const std::string& task) {
  if (!terminal_.live) {
    line(task);
  }
}

void Progress::show(const Standing& standing) {
  const auto now = Clock::now();
  const bool first_on_terminal = terminal_.live && !drawn_;
  if (!first_on_terminal && now - last_ < (terminal_.live ? Clock::duration(kRedraw) : Clock::duration(kLogLine))) {
    return;
  }
  last_ = now;
  if (!terminal_.live) {
    line(progress_line(standing, kLogWidth));
    return;
  }
  // Leaves the cursor at the line's start, so that a message from elsewhere overwrites the bar instead of following it.
  out_ << kClearLine << progress_line(standing, terminal_.width) << "\r" << std::flush;
  drawn_ = true;
}

void Progress::line(const std::string& text) {
  clear();
  out_ << text << std::endl;
}

void Progress::clear() {
  if (drawn_) {
    out_ << kClearLine << std::flush;
  }
  drawn_ = false;
}

}  // namespace common
