// A process with two copies of the library: one in the program, one in a plugin.
#include <dlfcn.h>

#include <filesystem>
#include <string>

#include "tests/amp/support.h"

namespace apex::test {
namespace {

TEST_F(AmpTest, ASecondCopyOfTheLibraryIsAnErrorAndDoesNotDisturbTheFirst) {
  Mlp model;
  auto net = amp::initialize(model, "O1", quiet());
  const auto folder = std::filesystem::read_symlink("/proc/self/exe").parent_path();
  void* const plugin = ::dlopen((folder / "libsecond_copy.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(plugin, nullptr) << ::dlerror();
  const auto initialize_in_plugin = reinterpret_cast<const char* (*)()>(::dlsym(plugin, "initialize_in_plugin"));
  ASSERT_NE(initialize_in_plugin, nullptr);
  const std::string error_text = initialize_in_plugin();
  EXPECT_TRUE(contains(error_text, "Two copies of apex_cpp are loaded in this process")) << error_text;
  EXPECT_TRUE(contains(error_text, "COMPONENTS shared")) << error_text;
  const auto x = torch::ones({2, 2});
  EXPECT_EQ(x.mm(x).scalar_type(), torch::kHalf);
  ::dlclose(plugin);
  EXPECT_EQ(x.mm(x).scalar_type(), torch::kHalf);
}

}  // namespace
}  // namespace apex::test
