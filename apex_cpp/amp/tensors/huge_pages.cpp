#include <apex_cpp/amp/tensors/huge_pages.h>

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <string>

namespace apex::amp::detail {
namespace {

constexpr const char* kVariable = "APEX_CPP_HUGE_PAGES";
// From here on glibc's malloc takes each block from the kernel, and gives it back when it is freed (its
// DEFAULT_MMAP_THRESHOLD_MAX). Smaller ones are mostly used again, and huge pages would only break up where they lie.
constexpr size_t kLargeBytes = size_t{32} << 20;

void ask_for_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#ifdef MADV_HUGEPAGE
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // a kernel without them refuses, and may
#endif
}

/// LibTorch's allocator, whose memory this is in all respects.
class HugePageAllocator final : public c10::Allocator {
 public:
  explicit HugePageAllocator(c10::Allocator& torch) : torch_(torch) {}
  c10::DataPtr allocate(size_t bytes) override {
    auto data = torch_.allocate(bytes);
    if (bytes >= kLargeBytes) ask_for_huge_pages(data.get(), bytes);
    return data;
  }
  bool is_simple_data_ptr(const c10::DataPtr& data) const override { return torch_.is_simple_data_ptr(data); }
  c10::DeleterFnPtr raw_deleter() const override { return torch_.raw_deleter(); }
  void copy_data(void* to, const void* from, size_t bytes) const override { torch_.copy_data(to, from, bytes); }

 private:
  c10::Allocator& torch_;
};

}  // namespace

bool wants_huge_pages() {
  const char* value = std::getenv(kVariable);
  const std::string text = value ? value : "on";
  TORCH_CHECK_VALUE(text == "on" || text == "off", kVariable, "=", text,
                    " in the environment is not allowed. Set it to on or off.");
  return text == "on";
}

void set_huge_pages(bool on) {
  c10::Allocator* const torch = c10::GetDefaultCPUAllocator();
  static c10::Allocator* const huge = new HugePageAllocator(*torch);  // for tensors made when the process ends, too
  if (c10::GetCPUAllocator() == (on ? torch : huge)) c10::SetCPUAllocator(on ? huge : torch);
}

}  // namespace apex::amp::detail
