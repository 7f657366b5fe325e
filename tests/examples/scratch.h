#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include <gtest/gtest.h>
#include <unistd.h>

// A folder of the test's own, empty at the start and removed at the end.
class Scratch {
 public:
  Scratch() {
    const auto* test = testing::UnitTest::GetInstance()->current_test_info();
    auto name = std::string("apex_cpp-") + test->test_suite_name() + "." + test->name() + "-" + std::to_string(getpid());
    for (auto& letter : name) {
      letter = letter == '/' ? '_' : letter;
    }
    path_ = std::filesystem::temp_directory_path() / name;
    remove();
    std::filesystem::create_directories(path_);
  }
  ~Scratch() { remove(); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  std::string path() const { return path_.string(); }
  std::string operator/(const std::string& name) const { return (path_ / name).string(); }

  void write(const std::string& name, const std::string& content) const {
    std::filesystem::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name, std::ios::binary) << content;
  }
  std::string read(const std::string& name) const {
    std::ifstream file(path_ / name, std::ios::binary);
    std::ostringstream content;
    content << file.rdbuf();
    return content.str();
  }

 private:
  // Not std::filesystem::remove_all: libtorch.so exports a copy of it that lacks its directory iterators and crashes.
  void remove() const { EXPECT_EQ(std::system(("rm -rf '" + path() + "'").c_str()), 0); }

  std::filesystem::path path_;
};
