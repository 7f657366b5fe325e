#include "compare.h"

#include <torch/cuda.h>

#include <algorithm>

namespace bench::kernels {
namespace {

constexpr double kSeconds = 0.004;  // per measurement, unless one call takes longer

/// Calls on a device are asynchronous, so a measurement ends with a synchronization.
Variant timed(const Contender& contender, bool on_device) {
  const auto measured = [call = contender.call, on_device](int calls) {
    const double issued = nanoseconds_per_call(call, calls) * calls;
    return (issued + (on_device ? nanoseconds_per_call([] { torch::cuda::synchronize(); }, 1) : 0)) / calls;
  };
  if (on_device) measured(1);
  const int calls = calls_in([&] { measured(1); }, kSeconds);
  return {contender.name, [measured, calls] { return measured(calls); }};
}

/// The access methods that make a difference for these passes.
std::vector<Way> ways_of(const std::vector<PassTraffic>& passes, bool on_device) {
  if (on_device) return {{}};
  const auto is_written = [](const Traffic& list) { return list.access == Access::write; };
  const bool writes_only = std::any_of(
      passes.begin(), passes.end(), [&](const PassTraffic& pass) { return std::any_of(pass.begin(), pass.end(), is_written); });
  std::vector<Way> ways{{/*fetches=*/true, /*past_caches=*/false}, {false, false}};
  if (writes_only) ways.insert(ways.end(), {{true, true}, {false, true}});
  return ways;
}

}  // namespace

void compare(Runner& runner, const std::string& group, const std::string& name, const Comparison& comparison) {
  const int threads = runner.thread_counts().back();
  const bool on_device = !runner.device().is_cpu();
  std::vector<Variant> variants;
  for (const auto& contender : comparison.contenders) variants.push_back(timed(contender, on_device));
  const size_t ways = variants.size();
  for (const Way& way : ways_of(comparison.passes, on_device)) {
    variants.push_back(timed({"bound", stream(comparison.passes, way)}, on_device));
  }
  auto medians = runner.medians(group + "/" + name, threads, variants);
  const double bound = *std::min_element(medians.begin() + static_cast<std::ptrdiff_t>(ways), medians.end());

  Result result{group, name, threads, {}};
  for (size_t i = 0; i < ways; ++i) result.values.emplace_back(variants[i].name + " us", medians[i] / 1000);
  result.values.emplace_back("bound us", bound / 1000);
  result.values.emplace_back("apex_cpp GB/s", bytes_of(comparison.passes) / medians[0]);
  for (size_t i = 1; i < ways; ++i) result.values.emplace_back(variants[i].name + "/apex_cpp", medians[i] / medians[0]);
  result.values.emplace_back("bound/apex_cpp", bound / medians[0]);
  runner.add(std::move(result));
}

}  // namespace bench::kernels
