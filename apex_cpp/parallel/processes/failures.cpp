#include <apex_cpp/parallel/processes/failures.h>

#include <c10/util/Exception.h>

#include <algorithm>
#include <exception>
#include <sstream>

namespace apex::parallel::detail {
namespace {

using std::chrono::milliseconds;
constexpr const char* kAnyFailure = "failed";
constexpr milliseconds kHearing{10'000};

std::string report_of(int rank) { return "failed/" + std::to_string(rank); }

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

// Ranks that wait in another group hear of a failure by the default group's store.
template <class Action>
void for_each_store(const ProcessGroup& group, const Action& action) {
  action(*group->getStore());
  if (is_initialized() && default_process_group() != group) action(*default_process_group()->getStore());
}

void send_report(const ProcessGroup& group, const std::string& text) {
  group->getStore()->set(report_of(group->getRank()), text);
  for_each_store(group, [](c10d::Store& store) { store.set(kAnyFailure, std::string("yes")); });
}

// As long as others may still be busy, but no longer than they wait for each other.
milliseconds hearing_time(const ProcessGroup& group) {
  const auto timeout = group->getDefaultBackend()->getBackendOptions()->timeout;
  return std::min(kHearing, timeout);
}

struct Reports {
  std::string heard;
  std::string silent;
};

void hear(c10d::Store& store, int rank, milliseconds patience, Reports& reports) {
  try {
    store.wait({report_of(rank)}, patience);
  } catch (const std::exception&) {
    if (!store.check({report_of(rank)})) {
      reports.silent += (reports.silent.empty() ? "" : ", ") + std::to_string(rank);
      return;
    }
  }
  const auto text = store.get(report_of(rank));
  reports.heard += "\n  rank " + std::to_string(rank) + ": " + std::string(text.begin(), text.end());
}

Reports hear_all(const ProcessGroup& group) {
  Reports reports;
  const auto until = std::chrono::steady_clock::now() + hearing_time(group);
  for (int rank = 0; rank < group->getSize(); ++rank) {
    const auto left = std::chrono::duration_cast<milliseconds>(until - std::chrono::steady_clock::now());
    if (rank != group->getRank()) hear(*group->getStore(), rank, std::max(left, milliseconds(1)), reports);
  }
  return reports;
}

// Nobody sets the key: the time-out, an exception, is the pause.
void wait_a_little(c10d::Store& store) {
  try {
    store.wait({"all have heard"}, milliseconds(50));
  } catch (const std::exception&) {
  }
}

// The process that serves the store goes last: the others' questions would fail without it.
void part(const ProcessGroup& group, const Reports& reports) {
  auto& store = *group->getStore();
  const auto silent = std::count(reports.silent.begin(), reports.silent.end(), ',') + !reports.silent.empty();
  store.add("heard", 1);
  const auto until = std::chrono::steady_clock::now() + hearing_time(group);
  if (group->getRank() != 0) return;
  while (store.add("heard", 0) < group->getSize() - silent && std::chrono::steady_clock::now() < until) wait_a_little(store);
}

std::string who_failed(const ProcessGroup& group) {
  std::ostringstream text;
  try {
    const auto reports = hear_all(group);
    if (!reports.silent.empty())
      text << "\nNo word from rank " << reports.silent << " within " << hearing_time(group).count()
           << " ms: the process has ended, hangs, or is busy elsewhere; its own output says why.";
    if (!reports.heard.empty()) text << "\nThe others report:" << reports.heard;
    part(group, reports);
  } catch (const std::exception& error) {
    text << "\nThe store through which the ranks report is gone, and with it the process that served it (rank 0, or torchrun's "
            "agent): "
         << first_line(error.what());
  }
  return text.str();
}

// Its destructor would wait for operations that can no longer end.
void never_destroy(const ProcessGroup& group) { new ProcessGroup(group); }

}  // namespace

bool any_failure(const ProcessGroup& group) {
  bool found = false;
  for_each_store(group, [&](c10d::Store& store) { found = found || store.check({kAnyFailure}); });
  return found;
}

void fail(const ProcessGroup& group, const std::string& what, const std::string& cause) {
  never_destroy(group);
  try {
    send_report(group, what + " failed: " + first_line(cause));
  } catch (const std::exception&) {  // who_failed says that the store is gone
  }
  TORCH_CHECK_WITH(DistBackendError, false, "rank ", group->getRank(), " of ", group->getSize(), ": ", what,
                   " failed: ", first_line(cause), who_failed(group));
}

}  // namespace apex::parallel::detail
