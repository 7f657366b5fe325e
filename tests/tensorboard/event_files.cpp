// Writes the event files that event_files_test.py reads. usage: event_files FOLDER FOLDER FOLDER
#include <apex_cpp/tensorboard/summary_writer.h>

#include <sys/utsname.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace {

bool host_has_a_name = true;

}  // namespace

// Replaces libc's function: the linker prefers this program's.
extern "C" int gethostname(char* name, size_t size) noexcept {
  utsname host{};
  uname(&host);
  std::strncpy(name, host_has_a_name ? host.nodename : "", size);
  return 0;
}

namespace {

// More than 32 bits.
constexpr int64_t kLateStep = int64_t{1} << 40;

void write_first_session(const std::string& folder) {
  apex::SummaryWriter writer(folder);
  for (int64_t step = 0; step < 10; ++step) writer.add_scalar("curve", 1.0 / static_cast<double>(step + 1), step);
  writer.add_scalar("not finite", std::numeric_limits<double>::infinity(), 1);
  writer.add_scalar("not finite", std::nan(""), 2);
  writer.add_scalar("late", 3, kLateStep);
  writer.add_text("\u20ac/text", "**two**\nlines", 0);
  writer.add_text("long", std::string(100'000, 'x'), 0);
  writer.add_histogram("spread", {-3, 2.5, 10, 3, 9.25, {-1, 0, 2.5}, {1, 2, 7}}, 4);
  writer.flush();
}

// Steps from 7 on are other ones than before.
void write_second_session(const std::string& folder) {
  apex::SummaryWriter writer(folder, 7);
  writer.add_scalar("curve", 70, 7);
  writer.flush();
}

// Goes back to the first step.
void write_new_beginning(const std::string& folder) {
  apex::SummaryWriter(folder).add_scalar("curve", 1, 0);
  apex::SummaryWriter(folder, 0).add_scalar("curve", 2, 0);
}

// A container may have a host without a name.
void write_without_host(const std::string& folder) {
  host_has_a_name = false;
  const apex::SummaryWriter writer(folder);
}

bool refuses_counts_without_limits(const std::string& folder) {
  apex::SummaryWriter writer(folder);
  try {
    writer.add_histogram("spread", {0, 1, 1, 1, 1, {1}, {1, 2}}, 0);
  } catch (const std::invalid_argument&) {
    return true;
  }
  return false;
}

}  // namespace

int main(int, char** argv) {
  write_first_session(argv[1]);
  write_second_session(argv[1]);
  write_new_beginning(argv[2]);
  const bool refuses = refuses_counts_without_limits(argv[1]);
  write_without_host(argv[3]);
  return refuses ? 0 : 1;
}
