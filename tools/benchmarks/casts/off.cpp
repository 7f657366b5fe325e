// The engine's cost while it is off. Times the same calls in a process that never initialized amp, after `reset`, and while
// another thread has casts on; for comparison also with casts on.
#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <apex_cpp/amp/session.h>

#include <deque>
#include <thread>

#include "../snapshot.h"
#include "casts.h"

namespace bench::casts {
namespace {

constexpr const char* kOffGroup = "off";

struct Op {
  std::string name;
  std::function<void()> call;
  int calls = 0;
};

std::vector<Op> wanted_ops(const Runner& runner) {
  const auto x = random({4, 4}, at::kFloat), y = random({4, 4}, at::kFloat);
  const auto w = weight({4, 4});
  std::vector<Op> wanted;
  for (auto& op : std::vector<Op>{{"relu 4x4 (unlisted)", [=] { at::relu(x); }},
                                  {"mm 4x4", [=] { x.mm(y); }},
                                  {"linear 4x4, weight", [=] { at::linear(x, w); }},
                                  {"add 4x4", [=] { at::add(x, y); }},
                                  {"softmax 4x4", [=] { x.softmax(1); }}}) {
    if (runner.wants(kOffGroup, op.name)) wanted.push_back(op);
  }
  return wanted;
}

struct State {
  const char* name;
  void (*enter)();
};

constexpr State kStates[] = {
    {"never initialized", [] {}},
    {"after reset",
     [] {
       switch_on();
       apex::amp::reset();
     }},
    {"on elsewhere", [] { std::thread(switch_on).join(); }},
    {"on", switch_on},
};

/// Measures ops, by index, in a process in that state.
std::function<double(int)> measure_in(const State& state, const std::vector<Op>& ops) {
  return [&ops, enter = state.enter, entered = false](int number) mutable {
    if (!std::exchange(entered, true)) enter();
    const auto& op = ops[static_cast<size_t>(number)];
    return nanoseconds_when_warm(op.call, op.calls);
  };
}

Result measure(Runner& runner, const std::string& name, const std::deque<Snapshot>& processes, int number) {
  std::vector<Variant> variants;
  for (size_t i = 0; i < processes.size(); ++i) {
    variants.push_back({kStates[i].name, [&process = processes[i], number] { return process.measure(number); }});
  }
  const auto medians = runner.medians(std::string(kOffGroup) + "/" + name, 1, variants, kOpRepeats);
  Result result{kOffGroup, name, 1, {}};
  for (size_t i = 0; i < variants.size(); ++i) result.values.emplace_back(variants[i].name + " ns", medians[i]);
  result.values.emplace_back("reset/never", medians[1] / medians[0]);
  result.values.emplace_back("elsewhere/never", medians[2] / medians[0]);
  return result;
}

}  // namespace

void run_off(Runner& runner) {
  auto ops = wanted_ops(runner);
  if (ops.empty()) return;
  at::set_num_threads(1);  // forked processes must not inherit a pool whose threads do not exist there
  for (auto& op : ops) op.calls = calls_in(op.call, kOpSeconds);
  std::deque<Snapshot> processes;
  for (const auto& state : kStates) processes.emplace_back(measure_in(state, ops));
  for (size_t i = 0; i < ops.size(); ++i) runner.add(measure(runner, ops[i].name, processes, static_cast<int>(i)));
  runner.print_group();
}

}  // namespace bench::casts
