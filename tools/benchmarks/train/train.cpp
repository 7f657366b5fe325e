// Time and memory of a whole training step: plain LibTorch in FP32, torch's autocast and amp's levels, each with LibTorch's
// AdamW and with FusedAdam.
#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "../suites.h"
#include "contender.h"
#include "processor.h"

namespace bench {
namespace train {
namespace {

// Limits the run time if 16 bits are slow. For all its rounds, a contender gets this multiple of the plain steps' time, or this
// time per round, whichever is more; if its rounds do not fit, it takes fewer. The first step of a small network allocates
// LibTorch's caches and takes many times longer than later steps, but always less than this time. A first step on a GPU also
// loads kernels, for seconds, and is not judged.
constexpr double kMostPlainSteps = 3, kNanosecondsARound = 0.25e9;
constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
constexpr double kMillisecond = 1e6, kMegabyte = 1e6;

/// One way of training the network, and its results.
struct Entry {
  Way way;
  std::unique_ptr<Contender> contender = nullptr;  // null after a failure
  std::string remark = "";
  double time = kNone;    // per step
  double loss_scale = 1;  // after warmup
  int rounds = 0;
};

std::string first_sentence(const std::exception& error) {
  const auto* torch = dynamic_cast<const c10::Error*>(&error);
  const std::string text = torch ? torch->what_without_backtrace() : error.what();
  return text.substr(0, std::min(text.find('\n'), text.find(". ")));
}

/// Ways that others are compared with always take part.
bool takes_part(const Runner& runner, const Task& task, const Way& way) {
  return way.kind == "plain" || way.kind == "O0" || runner.wants(task.name, way.name());
}

/// Creates the contender and takes its first steps, as warmup and to record the footprint. If the first step on a CPU takes
/// longer than `patience`, the nanoseconds for all rounds together, it takes no other step.
void warm_up(Runner& runner, const Task& task, Entry& entry, double patience) {
  try {
    entry.contender = std::make_unique<Contender>(task, entry.way, runner.device(), runner.quick());
    entry.time = entry.contender->counted_step();
    if (entry.time < patience || runner.device().is_cuda()) {
      entry.time = entry.contender->counted_step();
      entry.rounds = static_cast<int>(std::clamp<double>(patience / entry.time, 1, runner.rounds()));
    }
    entry.loss_scale = entry.contender->loss_scale();
  } catch (const std::exception& error) {
    entry.contender = nullptr;
    entry.remark = "failed: " + first_sentence(error);
  }
}

std::vector<Entry> warm_entries(Runner& runner, const Task& task) {
  std::vector<Entry> entries;
  for (const Way& way : ways()) {
    if (takes_part(runner, task, way)) entries.push_back({way});
  }
  double patience = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < entries.size(); ++i) {
    runner.show(std::string(task.name) + ", first steps", static_cast<int>(i), static_cast<int>(entries.size()));
    warm_up(runner, task, entries[i], patience);
    if (i == 0) patience = runner.rounds() * std::max(kMostPlainSteps * entries[i].time, kNanosecondsARound);
  }
  return entries;
}

void race(Runner& runner, const Task& task, std::vector<Entry>& entries) {
  std::vector<Variant> variants;
  std::vector<Entry*> racing;
  for (Entry& entry : entries) {
    if (entry.rounds == 0) continue;
    variants.push_back({entry.way.name(), [contender = entry.contender.get()] { return contender->step(); }, entry.rounds});
    racing.push_back(&entry);
  }
  const auto medians = runner.medians(task.name, at::get_num_threads(), variants);
  for (size_t i = 0; i < racing.size(); ++i) racing[i]->time = medians[i];
}

/// Facts that a reader needs to interpret the row.
std::string remark_on(const Runner& runner, const Entry& entry) {
  if (!entry.contender) return entry.remark;
  if (entry.rounds == 0) return "slow: only the first step was measured";
  std::string remark = entry.rounds < runner.rounds() ? "slow: " + std::to_string(entry.rounds) + " rounds" : "";
  if (entry.contender->loss_scale() < entry.loss_scale) remark += " some steps were skipped: the loss scale fell";
  return remark;
}

const Entry* find(const std::vector<Entry>& entries, const std::string& name) {
  const auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry& entry) { return entry.way.name() == name; });
  return found == entries.end() ? nullptr : &*found;
}

double time_of(const std::vector<Entry>& entries, const std::string& name) {
  const auto* entry = find(entries, name);
  return entry ? entry->time : kNone;
}

void add_times(Runner& runner, const Task& task, const std::vector<Entry>& entries) {
  for (const Entry& entry : entries) {
    const double plain = time_of(entries, kPlain), o0 = time_of(entries, entry.way.o0());
    Result result{task.name, entry.way.name(), at::get_num_threads(), {}};
    result.values = {{"ms", entry.time / kMillisecond},
                     {"step/plain", entry.time / plain},
                     {"step/O0", entry.time / o0},
                     {"step/autocast", entry.time / time_of(entries, entry.way.rival())}};
    result.remark = remark_on(runner, entry);
    runner.add(std::move(result));
  }
  runner.print_group();
}

double megabytes(int64_t bytes) { return bytes > 0 ? static_cast<double>(bytes) / kMegabyte : kNone; }

void add_memory(Runner& runner, const Task& task, const std::vector<Entry>& entries) {
  const auto of_model = [](const Entry& entry) {
    return entry.contender ? static_cast<double>(entry.contender->footprint().of_model()) : kNone;
  };
  for (const Entry& entry : entries) {
    if (!entry.contender) continue;
    const Footprint& footprint = entry.contender->footprint();
    Result result{std::string(task.name) + " memory", entry.way.name(), at::get_num_threads(), {}};
    result.values = {{"weights MB", megabytes(footprint.weights)},
                     {"gradients MB", megabytes(footprint.gradients)},
                     {"activations MB", megabytes(footprint.activations)},
                     {"sum/O0's sum", of_model(entry) / of_model(*find(entries, entry.way.o0()))},
                     {"held MB", megabytes(footprint.held)},
                     {"peak MB", megabytes(footprint.peak)}};
    runner.add(std::move(result));
  }
  runner.print_group();
}

/// The cost of a loss scale in a step. It lies almost entirely after the backward pass; before it there is only one product
/// with the loss. Whole step times vary more between runs than this cost.
Result loss_scale_cost(const Task& task, const Entry& scaled, const Entry& o0) {
  const double update = median(scaled.contender->updates()), of_o0 = median(o0.contender->updates());
  Result result{std::string(task.name) + " loss scale", scaled.way.name(), at::get_num_threads(), {}};
  result.values = {{"after backward ms", update / kMillisecond},
                   {"O0's ms", of_o0 / kMillisecond},
                   {"added ms", (update - of_o0) / kMillisecond},
                   {"added/O0's step", (update - of_o0) / o0.time}};
  return result;
}

void add_loss_scale_costs(Runner& runner, const Task& task, const std::vector<Entry>& entries) {
  if (!runner.device().is_cpu()) return;  // on a GPU this would need a synchronization after the backward pass
  for (const Entry& entry : entries) {
    const Entry* o0 = find(entries, entry.way.o0());
    if (entry.way.only_scales() && entry.rounds > 0 && o0->rounds > 0) runner.add(loss_scale_cost(task, entry, *o0));
  }
  runner.print_group();
}

bool wanted(const Runner& runner, const Task& task) {
  const auto all = ways();
  return std::any_of(all.begin(), all.end(), [&](const Way& way) { return runner.wants(task.name, way.name()); });
}

}  // namespace
}  // namespace train

void run_train(Runner& runner) {
  at::set_num_threads(runner.thread_counts().back());
  for (const train::Task& task : train::tasks()) {
    if (!train::wanted(runner, task)) continue;
    if (runner.results().empty()) runner.add(train::processor(at::get_num_threads()));
    runner.print_group();
    auto entries = train::warm_entries(runner, task);
    train::race(runner, task, entries);
    train::add_times(runner, task, entries);
    train::add_memory(runner, task, entries);
    train::add_loss_scale_costs(runner, task, entries);
  }
}

}  // namespace bench
