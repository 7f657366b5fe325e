#pragma once
// Copies of recorded cases under other names, to be altered.
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/oracle/reading/json.h"
#include "tests/oracle/replay.h"

namespace oracle {

namespace fs = std::filesystem;

inline std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

inline void write(const fs::path& path, const std::string& text) {
  fs::remove(path);
  std::ofstream(path, std::ios::binary) << text;
}

// A copy of a recorded case under a unique name.
class CaseCopy {
 public:
  explicit CaseCopy(const std::string& original) : folder_(fs::temp_directory_path() / unique_name()) {
    fs::create_directory(folder_);
    const fs::path from = fs::path(ORACLE_DATA) / "cases" / original;
    write(folder_ / "case.json", read(from / "case.json"));
    write(folder_ / "tensors.safetensors", read(from / "tensors.safetensors"));
  }
  ~CaseCopy() {
    // File by file: libtorch.so exports a copy of std::filesystem::remove_all that lacks its directory iterators and crashes.
    for (const fs::path& path : {folder_ / "case.json", folder_ / "tensors.safetensors", folder_}) fs::remove(path);
  }

  // Replaces the last occurrence of `from` in case.json, which must be there.
  void alter(const std::string& from, const std::string& to) {
    std::string text = read(folder_ / "case.json");
    const size_t place = text.rfind(from);
    ASSERT_NE(place, std::string::npos) << "the case does not contain " << from;
    write(folder_ / "case.json", text.replace(place, from.size(), to));
  }

  // Gives a stored tensor another name, of the same length.
  void rename_tensor(const std::string& from, const std::string& to) {
    std::string bytes = read(folder_ / "tensors.safetensors");
    const size_t place = bytes.find("\"" + from + "\"");
    ASSERT_NE(place, std::string::npos) << "no tensor " << from;
    ASSERT_EQ(from.size(), to.size());
    write(folder_ / "tensors.safetensors", bytes.replace(place + 1, from.size(), to));
  }

  // Makes the first element huge (or tiny, or 2) in the first float32 tensor whose name begins with `prefix`.
  void alter_tensor(const std::string& prefix) {
    std::string bytes = read(folder_ / "tensors.safetensors");
    uint64_t header = 0;
    for (int i = 7; i >= 0; --i) header = header << 8 | static_cast<unsigned char>(bytes[static_cast<size_t>(i)]);
    const Json names = Json::parse(bytes.substr(8, header), "header");
    for (const auto& [name, entry] : names.members()) {
      if (name.rfind(prefix, 0) != 0 || entry.at("dtype").as_string() != "F32") continue;
      bytes[8 + header + static_cast<size_t>(entry.at("data_offsets").items()[0].as_int()) + 3] ^= 0x40;
      write(folder_ / "tensors.safetensors", bytes);
      return;
    }
    FAIL() << "no tensor " << prefix;
  }

  Report replay(const Repairs& repairs = Repairs::standard()) const {
    Report report(repairs);
    replay_case(folder_, report);
    return report;
  }
  const fs::path& folder() const { return folder_; }

 private:
  static std::string unique_name() {
    static int counter = 0;
    return "unheard_of_" + std::to_string(::getpid()) + "_" + std::to_string(counter++);
  }
  fs::path folder_;
};

// What the replay of a case prints, its summary included.
inline std::string printed_by(const CaseCopy& copy) {
  testing::internal::CaptureStdout();
  (void)copy.replay().summary();
  return testing::internal::GetCapturedStdout();
}

inline void expect_printed(const CaseCopy& copy, const std::string& part) {
  const std::string text = printed_by(copy);
  EXPECT_NE(text.find(part), std::string::npos) << "printed: " << text << "\nlacks: " << part;
}

inline void expect_outcome(const Report& report, int passed, int failed, int skipped) {
  EXPECT_EQ(report.passed(), passed);
  EXPECT_EQ(report.failed(), failed);
  EXPECT_EQ(report.skipped(), skipped);
}

}  // namespace oracle
