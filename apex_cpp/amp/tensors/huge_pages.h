#pragma once

namespace apex::amp::detail {

/// Whether this process is to use huge pages: the environment variable APEX_CPP_HUGE_PAGES, `on` or `off`; `on` where it is not
/// set. Errors: ValueError for another value.
bool wants_huge_pages();

/// With `on`, the kernel is asked for huge pages under each tensor of 32 MB or more that LibTorch makes on the CPU from now on;
/// elsewhere it gives and clears them 4 KB at a time, at each use anew. Asking does nothing where the kernel gives them to
/// everybody, or to nobody. A program that has set a CPU allocator of its own keeps it. Where this changes anything, it is
/// c10::SetCPUAllocator, which is for the time before threads make tensors.
void set_huge_pages(bool on);

}  // namespace apex::amp::detail
