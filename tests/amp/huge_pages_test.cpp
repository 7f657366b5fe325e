// Huge pages under large CPU tensors: off until a program asks for them. /proc/self/smaps has the flags of each block.
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

bool is_advised(const torch::Tensor& tensor) { return contains(kernel_flags(tensor), " hg "); }

bool has_huge_page_control() { return std::ifstream("/sys/kernel/mm/transparent_hugepage/enabled").is_open(); }
constexpr const char* kNoControl = "this kernel has no huge pages to ask for";

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

bool has_torch_allocator() { return c10::GetCPUAllocator() == c10::GetDefaultCPUAllocator(); }

TEST_F(HugePages, AreOffByDefault) {
  initialize(quiet());
  EXPECT_TRUE(has_torch_allocator());
  EXPECT_FALSE(is_advised(tensor_of(kLarge)));
}

TEST_F(HugePages, LieUnderLargeTensorsMadeAfterInitialize) {
  if (!has_huge_page_control()) GTEST_SKIP() << kNoControl;
  const auto before = tensor_of(kLarge);
  initialize(quiet().huge_pages(true));
  EXPECT_TRUE(is_advised(tensor_of(kLarge)));
  EXPECT_TRUE(is_advised(torch::mm(torch::ones({4096, 1}), torch::ones({1, 4096})))) << "LibTorch's own results too";
  EXPECT_FALSE(is_advised(tensor_of(kLarge - 1)));
  EXPECT_FALSE(is_advised(before));
}

TEST_F(HugePages, TheYamlKeySwitchesThemOn) {
  Mlp model;
  (void)amp::initialize(model, amp::OptLevel::from_yaml_string("{opt_level: O1, verbosity: 0, huge_pages: true}"));
  EXPECT_FALSE(has_torch_allocator());
}

TEST_F(HugePages, TheEnvironmentSwitchesThemOn) {
  setenv(kVariable, "on", 1);
  initialize(quiet());
  EXPECT_FALSE(has_torch_allocator());
}

TEST_F(HugePages, TheOptionWinsOverTheEnvironment) {
  setenv(kVariable, "on", 1);
  initialize(quiet().huge_pages(false));
  EXPECT_TRUE(has_torch_allocator());
  setenv(kVariable, "off", 1);
  initialize(quiet().huge_pages(true));
  EXPECT_FALSE(has_torch_allocator());
}

TEST_F(HugePages, StayAsTheyAreWhereNobodySaysOtherwise) {
  initialize(quiet().huge_pages(true));
  initialize(quiet());
  EXPECT_FALSE(has_torch_allocator());
  initialize(quiet().huge_pages(false));
  EXPECT_TRUE(has_torch_allocator());
}

TEST_F(HugePages, AreOffWhereAmpIsNotEnabled) {
  initialize(quiet().huge_pages(true).enabled(false));
  EXPECT_TRUE(has_torch_allocator());
}

TEST_F(HugePages, AnInvalidValueOfTheVariableIsAnErrorAndChangesNothing) {
  setenv(kVariable, "yes", 1);
  Mlp model;
  const auto message = message_of([&] { (void)amp::initialize(model, "O2", quiet()); });
  EXPECT_TRUE(contains(message, "APEX_CPP_HUGE_PAGES=yes in the environment is not allowed. Set it to on or off.")) << message;
  EXPECT_EQ(model->fc1->weight.scalar_type(), torch::kFloat);
  EXPECT_TRUE(has_torch_allocator());
}

/// A tensor made before the switch can grow after it, and keeps its values.
TEST_F(HugePages, MayBeSwitchedWhileTensorsLive) {
  auto plain = torch::arange(kLarge / 4, torch::kFloat);
  amp::detail::set_huge_pages(true);
  auto huge = plain.clone();
  amp::detail::set_huge_pages(false);
  plain.resize_({kLarge / 2});
  huge.resize_({kLarge / 2});
  EXPECT_TRUE(torch::equal(plain.slice(0, 0, kLarge / 4), huge.slice(0, 0, kLarge / 4)));
  EXPECT_EQ(is_advised(huge), has_huge_page_control());
  EXPECT_FALSE(is_advised(plain));
}

struct OwnAllocator final : c10::Allocator {
  c10::DataPtr allocate(size_t bytes) override { return c10::GetDefaultCPUAllocator()->allocate(bytes); }
  void copy_data(void* to, const void* from, size_t bytes) const override { default_copy_data(to, from, bytes); }
};

TEST_F(HugePages, ACustomAllocatorIsNotReplaced) {
  static OwnAllocator own;
  c10::SetCPUAllocator(&own);
  initialize(quiet().huge_pages(true));
  EXPECT_EQ(c10::GetCPUAllocator(), &own);
  c10::SetCPUAllocator(c10::GetDefaultCPUAllocator());
}

// The device counts where the kernel gives huge pages on request.
TEST_F(HugePages, TensorsOfAnotherLayoutOrDeviceGainNothing) {
  const auto elsewhere = torch::TensorOptions().dtype(torch::kByte).device(torch::kMeta);
  for (const torch::Tensor& buffer : {torch::eye(3).to_sparse(), torch::empty({kLarge}, elsewhere)}) {
    const auto model = std::make_shared<torch::nn::Module>();
    model->register_buffer("buffer", buffer);
    EXPECT_FALSE(amp::detail::would_gain_from_huge_pages(model.get())) << buffer.is_sparse();
  }
}

// The hint. It comes once a process, so that each test has a process of its own.

std::string printed(torch::nn::Linear& model, const amp::InitializeOptions& options) {
  ::testing::internal::CaptureStdout();
  (void)amp::initialize(model, "O0", options);
  return ::testing::internal::GetCapturedStdout();
}

bool is_hint(const std::string& text) {
  return contains(text, "amp: the model has CPU tensors of 32 MB or more: huge pages may shorten a step. Set huge_pages: true");
}

// Ends the process: 0 if none of the calls before the last prints the hint, and the last two together print it once.
void print_hints() {
  torch::nn::Linear large(4096, 2048), small(4, 2);
  const amp::InitializeOptions verbose;
  bool is_right = !is_hint(printed(small, verbose));
  is_right &= !is_hint(printed(large, quiet()));
  is_right &= !is_hint(printed(large, amp::InitializeOptions().huge_pages(true)));
  is_right &= !is_hint(printed(large, amp::InitializeOptions().huge_pages(false)));
  setenv(kVariable, "off", 1);
  is_right &= !is_hint(printed(large, verbose));
  unsetenv(kVariable);
  is_right &= is_hint(printed(large, verbose)) && !is_hint(printed(large, verbose));
  std::exit(is_right ? 0 : 1);
}

bool kernel_leaves_huge_pages_to_programs() {
  std::ifstream modes("/sys/kernel/mm/transparent_hugepage/enabled");
  std::string line;
  return std::getline(modes, line) && contains(line, "[madvise]");
}

TEST_F(HugePages, AHintOnceAProcessTellsWhereTheyWouldHelp) {
  if (!kernel_leaves_huge_pages_to_programs()) GTEST_SKIP() << "this kernel does not leave huge pages to programs";
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(print_hints(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace apex::test
