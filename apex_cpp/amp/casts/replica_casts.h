#pragma once

#include <memory>

// Part of every model handle: what a user's file reads of it is this and no more.
namespace apex::amp::detail {

/// The calling thread's casts, put on the threads that share its parallel loops (`at::parallel_for`) for as long as what it
/// answers lives; null where no casts are on. `torch::nn::parallel::data_parallel` runs replicas in such a loop, whose threads
/// have the state of no other, and calls a `forward` that is not virtual, of a module class that need not be amp's. Host only;
/// to be called, and given back, outside of parallel loops.
std::shared_ptr<void> casts_for_replicas();

}  // namespace apex::amp::detail
