#include <apex_cpp/parallel/ddp/options.h>

#include <c10/util/Exception.h>

#include <cmath>
#include <numeric>

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
                    "shared_param is no longer an option. Parameters that modules share need none; where some get no gradient, "
                    "delay_allreduce(true) is what it did.");
  TORCH_CHECK_VALUE(options.message_size() > 0, kOf, "message_size must be positive, got ", options.message_size(), ".");
  TORCH_CHECK_VALUE(options.num_allreduce_streams() > 0, kOf, "num_allreduce_streams must be positive, got ",
                    options.num_allreduce_streams(), ".");
  const double factor = options.gradient_predivide_factor();
  TORCH_CHECK_VALUE(std::isfinite(factor) && factor > 0, kOf, "gradient_predivide_factor must be positive, got ", factor, ".");
  check_delayed(options);
  check_communicators(options);
}

std::vector<ProcessGroup> groups_for(const DistributedDataParallelOptions& options) {
  const ProcessGroup group = or_default(options.process_group());
  if (options.num_allreduce_streams() == 1) return {group};
  if (!options.allreduce_communicators().empty()) return options.allreduce_communicators();
  TORCH_CHECK_VALUE(group == default_process_group(), kOf,
                    "num_allreduce_streams makes groups of all processes, and process_group is not that of all. Make them with "
                    "new_group and give them as allreduce_communicators.");
  std::vector<int> ranks(group->getSize());
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<ProcessGroup> groups{group};
  while (static_cast<int64_t>(groups.size()) < options.num_allreduce_streams()) groups.push_back(new_group(ranks));
  return groups;
}

}  // namespace apex::parallel::detail
