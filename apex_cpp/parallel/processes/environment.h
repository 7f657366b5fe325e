#pragma once

#include <string>

namespace apex::parallel::detail {

/// A variable of the environment. Error: it is not set; `rank` (of this process, or "?") and a remedy are in the text.
std::string environment_text(const char* name, const std::string& rank);
/// The same as a number in [low, high]. Error: it is none.
int environment_number(const char* name, const std::string& rank, int low, int high);

/// Whether torchrun's agent serves the store, so that every process, rank 0 included, is a client.
bool agent_serves_the_store();

/// LOCAL_RANK, or `otherwise` where it is not set.
int local_rank(int otherwise);

}  // namespace apex::parallel::detail
