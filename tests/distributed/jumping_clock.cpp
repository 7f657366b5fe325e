// Preloaded into a program, it lets the wall clock jump two days back or forth between any two readings. Steady clocks go on.
#include <dlfcn.h>
#include <sys/time.h>

#include <atomic>
#include <ctime>

namespace {

time_t jump() {
  static std::atomic<unsigned> readings{0};
  constexpr time_t kDay = 24 * 60 * 60;
  return readings++ % 2 == 0 ? -kDay : kDay;
}

int read_clock(clockid_t clock, timespec* now) {
  using Read = int (*)(clockid_t, timespec*);
  static const auto read = reinterpret_cast<Read>(dlsym(RTLD_NEXT, "clock_gettime"));
  const int result = read(clock, now);
  if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += jump();
  return result;
}

}  // namespace

extern "C" {

int clock_gettime(clockid_t clock, timespec* now) noexcept { return read_clock(clock, now); }

time_t time(time_t* seconds) noexcept {
  timespec now{};
  read_clock(CLOCK_REALTIME, &now);
  if (seconds != nullptr) *seconds = now.tv_sec;
  return now.tv_sec;
}

int gettimeofday(timeval* of_day, void*) noexcept {
  timespec now{};
  read_clock(CLOCK_REALTIME, &now);
  *of_day = {now.tv_sec, static_cast<suseconds_t>(now.tv_nsec / 1000)};
  return 0;
}
}
