#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <torch/csrc/distributed/c10d/Work.hpp>

#include <chrono>
#include <string>
#include <vector>

namespace apex::parallel::detail {

/// What either backend is created from.
struct BackendPlace {
  c10::intrusive_ptr<c10d::Store> store;
  int rank = 0;
  int size = 1;
  std::chrono::milliseconds timeout;
  /// This machine's address for the other ranks; empty: the address of its host name.
  std::string address;
};

/// Creates a Gloo backend, over TCP. Error: this LibTorch has no Gloo.
c10::intrusive_ptr<c10d::Backend> make_gloo(const BackendPlace& place);

/// Whether an operation is Gloo's: the host waits for it, while a stream waits for NCCL's. A group may have both.
bool is_of_gloo(const c10d::Work& work);

/// The identifier of this process's GPU, the same in every process. The GPU is the only one that the process sees, or that of
/// its LOCAL_RANK or else `rank`. Empty: there is no GPU, or this build has no NCCL.
std::string name_of_gpu(int rank);
/// Makes this process's GPU the current device. Error: there are several GPUs, and LOCAL_RANK is beyond them.
void take_gpu(int rank);
/// Creates an NCCL backend. Error: this build has no NCCL, or the machine no GPU.
c10::intrusive_ptr<c10d::Backend> make_nccl(const BackendPlace& place);

/// The address from which this machine reaches `host`. The machine's own name may resolve to nothing, or to an address that
/// other machines do not reach. Empty if `host` cannot be reached.
std::string address_towards(const std::string& host);

/// One rank's part in the choice of the common backend.
struct BackendWish {
  std::string backend;  ///< from the options; empty: none
  std::string gpu;      ///< identifier of the GPU that the rank would use; empty: none
};

/// A wish as one line of text, and the reverse.
std::string text_of(const BackendWish& wish);
BackendWish wish_of(const std::string& text);

/// The reason why these ranks cannot all use NCCL, such as "rank 1 has no GPU"; empty if they can.
std::string why_without_nccl(const std::vector<BackendWish>& wishes);

/// The common backend: the one that some ranks name; else Gloo with NCCL if each rank has its own GPU, and Gloo otherwise.
/// Error: two ranks name different backends.
std::string choose_backend(const std::vector<BackendWish>& wishes);

}  // namespace apex::parallel::detail
