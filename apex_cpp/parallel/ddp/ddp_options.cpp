#include <apex_cpp/parallel/ddp/ddp_options.h>

#include <apex_cpp/parallel/processes/collectives.h>
#include <c10/util/Exception.h>

#include <cmath>
#include <limits>
#include <numeric>
#include <sstream>

namespace apex::parallel::detail {
namespace {

constexpr const char* kOf = "DistributedDataParallel: ";

void check_delayed(const DistributedDataParallelOptions& options) {
  if (!options.delay_allreduce()) return;
  TORCH_CHECK_VALUE(options.num_allreduce_streams() == 1, kOf, "num_allreduce_streams is ", options.num_allreduce_streams(),
                    ", but with delay_allreduce there is nothing to overlap. Leave one of them out.");
  TORCH_CHECK_VALUE(options.allreduce_trigger_params().empty(), kOf,
                    "allreduce_trigger_params have no effect with delay_allreduce. Leave one of them out.");
}

void check_communicators(const DistributedDataParallelOptions& options) {
  const auto& groups = options.allreduce_communicators();
  if (groups.empty()) return;
  TORCH_CHECK_VALUE(groups.size() > 1 && static_cast<int64_t>(groups.size()) == options.num_allreduce_streams(), kOf,
                    "there are ", groups.size(), " allreduce_communicators and num_allreduce_streams is ",
                    options.num_allreduce_streams(), "; both must be the same number, above 1.");
  for (const auto& group : groups) TORCH_CHECK_VALUE(group, kOf, "one of the allreduce_communicators is null.");
}

}  // namespace

void check(const DistributedDataParallelOptions& options) {
  TORCH_CHECK_VALUE(!options.shared_param().has_value(), kOf,
                    "shared_param is no longer an option. Shared parameters need no option; if some parameters get no "
                    "gradient, use delay_allreduce(true), which does what shared_param did.");
  TORCH_CHECK_VALUE(options.message_size() > 0, kOf, "message_size must be positive, got ", options.message_size(), ".");
  TORCH_CHECK_VALUE(options.num_allreduce_streams() > 0, kOf, "num_allreduce_streams must be positive, got ",
                    options.num_allreduce_streams(), ".");
  const double factor = options.gradient_predivide_factor();
  TORCH_CHECK_VALUE(std::isfinite(factor) && factor > 0, kOf, "gradient_predivide_factor must be positive, got ", factor, ".");
  check_delayed(options);
  check_communicators(options);
}

ProcessGroup first_group_for(const DistributedDataParallelOptions& options) {
  const auto& groups = options.allreduce_communicators();
  return groups.empty() ? or_default(options.process_group()) : groups.front();
}

void check_same_on_all_ranks(const DistributedDataParallelOptions& options) {
  std::ostringstream text;
  text.precision(std::numeric_limits<double>::max_digits10);
  text << "message_size " << options.message_size() << "\ndelay_allreduce " << options.delay_allreduce()
       << "\nallreduce_always_fp32 " << options.allreduce_always_fp32() << "\nnum_allreduce_streams "
       << options.num_allreduce_streams() << "\ngradient_average " << options.gradient_average()
       << "\ngradient_predivide_factor " << options.gradient_predivide_factor() << "\nbroadcast_buffers "
       << options.broadcast_buffers();
  expect_same(first_group_for(options), text.str(), "The options given to DistributedDataParallel");
}

std::vector<ProcessGroup> groups_for(const DistributedDataParallelOptions& options) {
  const ProcessGroup group = first_group_for(options);
  if (options.num_allreduce_streams() == 1) return {group};
  if (!options.allreduce_communicators().empty()) return options.allreduce_communicators();
  TORCH_CHECK_VALUE(group == default_process_group(), kOf,
                    "num_allreduce_streams makes groups of all processes, but process_group does not hold all processes. Make "
                    "the groups with new_group and pass them as allreduce_communicators.");
  std::vector<int> ranks(group->getSize());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<ProcessGroup> groups{group};
  while (static_cast<int64_t>(groups.size()) < options.num_allreduce_streams()) groups.push_back(new_group(ranks));
  return groups;
}

}  // namespace apex::parallel::detail
