#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace apex::parallel::detail {

/// What a backend of either kind is made from.
struct BackendPlace {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout;
  /// The address of this machine that the others reach; empty: that of its host name.
  std::string address;
};

/// Gloo, on TCP. Error: this LibTorch has none.
c10::intrusive_ptr<c10d::Backend> make_gloo(const BackendPlace& place);

/// Whether this build has NCCL and the machine a GPU.
bool has_nccl();
/// NCCL. Error: this build has none, or the machine no GPU.
c10::intrusive_ptr<c10d::Backend> make_nccl(const BackendPlace& place);

/// The address from which this machine speaks to `host`: its own name may resolve to nothing, or to an address that other
/// machines do not reach. Empty if there is no way to `host`.
std::string address_towards(const std::string& host);

}  // namespace apex::parallel::detail
