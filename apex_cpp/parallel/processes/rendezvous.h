#pragma once

#include <apex_cpp/parallel/processes/process_group.h>

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>
#include <vector>

namespace apex::parallel::detail {

/// A store of `world_size` ranks in a file, which the last rank to leave removes. Errors: those of c10d::FileStore.
c10::intrusive_ptr<c10d::Store> make_file_store(const std::string& path, int world_size);

/// What a process knows once it has found the others' store.
struct Rendezvous {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int world_size = 1;
  /// The host that serves the store; empty for a file.
  std::string host;
  int port = 0;
};

/// Reads options and environment and opens the store. Every error names the rank and what to change.
Rendezvous open_store(const ProcessGroupOptions& options);

/// Waits until all ranks are there, and returns what each has brought for the others. Errors: a rank that is there twice, a
/// world size that differs from rank 0's, ranks that did not come within the time-out, and, for a rank that comes later, that
/// others gave up.
std::vector<std::string> meet(const Rendezvous& place, const std::string& brought, std::chrono::milliseconds timeout);

}  // namespace apex::parallel::detail
