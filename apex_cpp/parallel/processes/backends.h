#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <string>
#include <vector>

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

/// Whether an operation is Gloo's, which the host waits for; for one of NCCL's a stream waits. A group may have both.
bool is_of_gloo(const c10d::Work& work);

/// The identifier, the same in every process, of the GPU of this one: the only one that it sees, or that of its LOCAL_RANK or
/// else `rank`. Empty: there is none, or this build has no NCCL.
std::string name_of_gpu(int rank);
/// Makes the GPU of this process the current device. Error: LOCAL_RANK is beyond the GPUs, of which there are several.
void take_gpu(int rank);
/// NCCL. Error: this build has none, or the machine no GPU.
c10::intrusive_ptr<c10d::Backend> make_nccl(const BackendPlace& place);

/// The address from which this machine speaks to `host`: its own name may resolve to nothing, or to an address that other
/// machines do not reach. Empty if there is no way to `host`.
std::string address_towards(const std::string& host);

/// What one rank brings to the choice of a backend for all.
struct BackendWish {
  std::string backend;  ///< that it was told to use; empty: none
  std::string gpu;      ///< a name, the same on all ranks, for the GPU that it would take; empty: it has none
};

/// One line for the others, and back.
std::string text_of(const BackendWish& wish);
BackendWish wish_of(const std::string& text);

/// Why ranks with these wishes cannot all use NCCL: "rank 1 has no GPU"; empty if they can.
std::string why_without_nccl(const std::vector<BackendWish>& wishes);

/// The backend of all: the one that some were told to use; else Gloo with NCCL where each rank has a GPU to itself, and Gloo
/// where not. Error: two ranks were told to use different ones.
std::string choose_backend(const std::vector<BackendWish>& wishes);

}  // namespace apex::parallel::detail
