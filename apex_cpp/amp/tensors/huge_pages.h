#pragma once

#include <optional>

namespace torch::nn {
class Module;
}

namespace apex::amp::detail {

/// The environment variable APEX_CPP_HUGE_PAGES, `on` or `off`; none if it is not set. Errors: ValueError for another value.
std::optional<bool> huge_pages_in_environment();

/// Whether training `model` would use huge pages, if they were on: it has a CPU tensor of 32 MB or more, the process has
/// LibTorch's CPU allocator, and the kernel gives huge pages to programs that ask for them.
bool would_gain_from_huge_pages(const torch::nn::Module* model);

/// True: replaces the process's CPU allocator by one that asks the kernel for huge pages under each tensor of 32 MB or more;
/// memory still comes from LibTorch's allocator. False: brings LibTorch's allocator back. Tensors that exist keep their memory.
/// A CPU allocator of the program's own stays. Call it before other threads allocate tensors, as c10::SetCPUAllocator requires.
///
/// Without huge pages the kernel gives and clears such a block in pages of 4 KB, each time the block is allocated. Asking has
/// no effect where the kernel gives huge pages to all programs, or to none.
void set_huge_pages(bool on);

}  // namespace apex::amp::detail
