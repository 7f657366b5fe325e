// With amp, large CPU tensors use huge pages. /proc/self/smaps shows the requests to the kernel.
#include <apex_cpp/amp/tensors/huge_pages.h>
#include <c10/core/CPUAllocator.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "tests/amp/support.h"

namespace apex::test {
namespace {

constexpr const char* kVariable = "APEX_CPP_HUGE_PAGES";
constexpr int64_t kLarge = int64_t{32} << 20;

torch::Tensor tensor_of(int64_t bytes) { return torch::empty({bytes}, torch::kByte); }

bool holds(const std::string& range, uintptr_t address) {
  uintptr_t begin = 0, end = 0;
  char dash = 0;
  std::istringstream text(range);
  return text >> std::hex >> begin >> dash >> end && dash == '-' && begin <= address && address < end;
}

/// The flags that the kernel has for the memory in the middle of a tensor: "rd wr mr mw me ac hg …".
std::string kernel_flags(const torch::Tensor& tensor) {
  const auto middle = reinterpret_cast<uintptr_t>(tensor.data_ptr()) + static_cast<uintptr_t>(tensor.nbytes()) / 2;
  std::ifstream smaps("/proc/self/smaps");
  bool found = false;
  for (std::string line; std::getline(smaps, line);) {
    if (line.find(':') > line.find(' ')) found = holds(line.substr(0, line.find(' ')), middle);
    if (found && line.rfind("VmFlags:", 0) == 0) return line + ' ';
  }
  return {};
}

bool was_asked_for(const torch::Tensor& tensor) { return contains(kernel_flags(tensor), " hg "); }

bool can_ask() { return std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled").is_open(); }
constexpr const char* kCannotAsk = "this kernel has no huge pages to ask for";

struct HugePages : AmpTest {
  void SetUp() override {
    unsetenv(kVariable);
    amp::detail::set_huge_pages(false);
  }
  void TearDown() override {
    unsetenv(kVariable);
    amp::detail::set_huge_pages(false);
    AmpTest::TearDown();
  }
  static void initialize(const amp::InitializeOptions& options) {
    Mlp model;
    (void)amp::initialize(model, "O1", options);
  }
};

TEST_F(HugePages, InitializeRequestsThemForLargeTensors) {
  if (!can_ask()) GTEST_SKIP() << kCannotAsk;
  const auto before = tensor_of(kLarge);
  initialize(quiet());
  EXPECT_TRUE(was_asked_for(tensor_of(kLarge)));
  EXPECT_TRUE(was_asked_for(torch::mm(torch::ones({4096, 1}), torch::ones({1, 4096})))) << "LibTorch's own results too";
  EXPECT_FALSE(was_asked_for(tensor_of(kLarge - 1)));
  EXPECT_FALSE(was_asked_for(before));
}

TEST_F(HugePages, NotRequestedWithAmpDisabledOrTheVariableOff) {
  initialize(quiet().enabled(false));
  EXPECT_FALSE(was_asked_for(tensor_of(kLarge)));
  setenv(kVariable, "off", 1);
  initialize(quiet());
  EXPECT_FALSE(was_asked_for(tensor_of(kLarge)));
}

TEST_F(HugePages, AnInvalidValueOfTheVariableIsAnErrorAndChangesNothing) {
  setenv(kVariable, "yes", 1);
  Mlp model;
  const auto message = message_of([&] { (void)amp::initialize(model, "O2", quiet()); });
  EXPECT_TRUE(contains(message, "APEX_CPP_HUGE_PAGES=yes in the environment is not allowed. Set it to on or off.")) << message;
  EXPECT_EQ(model->fc1->weight.scalar_type(), torch::kFloat);
  EXPECT_EQ(c10::GetCPUAllocator(), c10::GetDefaultCPUAllocator());
}

/// Tensors outlive the switch, grow by the allocator with which they were made, and hold what was written.
TEST_F(HugePages, CanBeSwitchedWhileTensorsAreAlive) {
  auto plain = torch::arange(kLarge / 4, torch::kFloat);
  amp::detail::set_huge_pages(true);
  auto huge = plain.clone();
  amp::detail::set_huge_pages(false);
  plain.resize_({kLarge / 2});
  huge.resize_({kLarge / 2});
  EXPECT_TRUE(torch::equal(plain.slice(0, 0, kLarge / 4), huge.slice(0, 0, kLarge / 4)));
  EXPECT_EQ(was_asked_for(huge), can_ask());
  EXPECT_FALSE(was_asked_for(plain));
}

struct OwnAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override { return c10::GetDefaultCPUAllocator()->allocate(bytes); }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

TEST_F(HugePages, ACustomAllocatorIsNotReplaced) {
  static OwnAllocator own;
  c10::SetCPUAllocator(&own);
  initialize(quiet());
  EXPECT_EQ(c10::GetCPUAllocator(), &own);
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator());
}

}  // namespace
}  // namespace apex::test
