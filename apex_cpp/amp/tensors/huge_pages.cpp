#include <apex_cpp/amp/tensors/huge_pages.h>

#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string>

#include <apex_cpp/amp/tensors/parameters.h>

namespace apex::amp::detail {
namespace {

constexpr const char* kHugePagesVariable = "APEX_CPP_HUGE_PAGES";
// glibc's malloc maps each block of at least this size (its DEFAULT_MMAP_THRESHOLD_MAX) from the kernel and unmaps it when it
// is freed. Smaller blocks are mostly reused, and gain nothing from huge pages.
constexpr size_t kLargeBytes = size_t{32} << 20;

void ask_for_huge_pages([[maybe_unused]] void* data, [[maybe_unused]] size_t bytes) {
#ifdef MADV_HUGEPAGE
  static const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const auto begin = (reinterpret_cast<uintptr_t>(data) + page - 1) / page * page;
  const auto end = (reinterpret_cast<uintptr_t>(data) + bytes) / page * page;
  ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_HUGEPAGE);  // fails on a kernel without huge pages, which is fine
#endif
}

/// Forwards to LibTorch's CPU allocator, and asks for huge pages under large blocks.
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

/// The kernel's modes are "always [madvise] never", the one in force in brackets.
bool kernel_gives_huge_pages_on_request() {
  std::ifstream modes("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string line;
  return std::getline(modes, line) && line.find("[madvise]") != std::string::npos;
}

}  // namespace

std::optional<bool> huge_pages_in_environment() {
  const char* value = std::getenv(kHugePagesVariable);
  if (!value) return std::nullopt;
  const std::string text = value;
  TORCH_CHECK_VALUE(text == "on" || text == "off", kHugePagesVariable, "=", text,
                    " in the environment is not allowed. Set it to on or off.");
  return text == "on";
}

bool would_gain_from_huge_pages(const torch::nn::Module* model) {
  const auto tensors = tensors_of(*model);
  const bool has_large = std::any_of(tensors.begin(), tensors.end(), [](const auto& item) {
    const at::Tensor& tensor = item.second;
    return tensor.is_cpu() && tensor.layout() == at::kStrided && tensor.nbytes() >= kLargeBytes;
  });
  return has_large && c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator() && kernel_gives_huge_pages_on_request();
}

void set_huge_pages(bool on) {
  c10::Allocator* const torch = c10::GetDefaultCPUAllocator();
  static c10::Allocator* const huge = new HugePageAllocator(*torch);  // never freed: tensors may be made at exit
  if (c10::GetCPUAllocator() == (on ? torch : huge)) c10::SetCPUAllocator(on ? huge : torch);
}

}  // namespace apex::amp::detail
