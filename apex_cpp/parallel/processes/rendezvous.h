#pragma once

#include <apex_cpp/parallel/processes/process_group.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>
#include <vector>

namespace apex::parallel::detail {

/// An environment variable. Error: it is not set; the text has `rank` (of this process, or "?") and a remedy.
std::string environment_text(const char* name, const std::string& rank);
/// An environment variable as a number in [low, high]. Error: it is not set, or not such a number.
int environment_number(const char* name, const std::string& rank, int low, int high);

/// Whether torchrun's agent serves the store, so that every process is a client, rank 0 too.
bool agent_serves_the_store();

/// The environment variable LOCAL_RANK, or `otherwise` if it is not set.
int local_rank(int otherwise);

/// A store of `world_size` ranks in a file that the last rank to leave removes. Errors: those of c10d::FileStore.
c10::intrusive_ptr<c10d::Store> make_file_store(const std::string& path, int world_size);

/// What a process knows after it has opened the store.
struct Rendezvous {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int world_size = 1;
  /// The host that serves the store; empty for a file.
  std::string host;
  int port = 0;
};

/// Reads options and environment, and opens the store. Every error names the rank and the remedy.
Rendezvous open_store(const ProcessGroupOptions& options);

/// Waits for all ranks, and returns the text `brought` of each. Errors: two processes with one rank, a world size that differs
/// from rank 0's, ranks that did not arrive within the timeout, and, on a rank that arrives late, that other ranks gave up.
std::vector<std::string> meet(const Rendezvous& place, const std::string& brought, std::chrono::milliseconds timeout);

}  // namespace apex::parallel::detail
