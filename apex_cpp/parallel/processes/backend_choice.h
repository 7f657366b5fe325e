#pragma once

#include <string>
#include <vector>

namespace apex::parallel::detail {

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
