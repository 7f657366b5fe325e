// The replayer itself: it passes a case of another name, and it notices every kind of expectation that does not hold.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/oracle/json.h"
#include "tests/oracle/replay.h"

namespace oracle {
namespace {

namespace fs = std::filesystem;

std::string read(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

void write(const fs::path& path, const std::string& text) {
  fs::remove(path);
  std::ofstream(path, std::ios::binary) << text;
}

// A copy of a recorded case under a name of its own.
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

  Report replay() const {
    Report report;
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

void expect_outcome(const Report& report, int passed, int failed, int skipped) {
  EXPECT_EQ(report.passed(), passed);
  EXPECT_EQ(report.failed(), failed);
  EXPECT_EQ(report.skipped(), skipped);
}

TEST(Replayer, PassesACaseUnderAnyNameAndSeed) {
  CaseCopy copy("mlp_sgd_O2");
  copy.alter("\"mlp_sgd_O2\"", "\"renamed\"");
  copy.alter("\"seed\": ", "\"seed\": 7");
  expect_outcome(copy.replay(), 1, 0, 0);
}

class RecordedArithmetic : public testing::Environment {
 public:
  void SetUp() override { use_recorded_arithmetic(); }
};
const auto* const kRecordedArithmetic = testing::AddGlobalTestEnvironment(new RecordedArithmetic);

struct Alteration {
  const char* what;
  const char* from;
  const char* to;
};

class AlteredExpectation : public testing::TestWithParam<Alteration> {};

TEST_P(AlteredExpectation, IsNoticed) {
  CaseCopy copy("overflow_inject_O2");
  copy.alter(GetParam().from, GetParam().to);
  expect_outcome(copy.replay(), 0, 1, 0);
}

INSTANTIATE_TEST_SUITE_P(
    Expectations, AlteredExpectation,
    testing::Values(Alteration{"scale", "\"scale_after\": 32768.0", "\"scale_after\": 65536.0"},
                    Alteration{"unskipped", "\"unskipped_after\": 1", "\"unskipped_after\": 2"},
                    Alteration{"skipped", "\"skipped\": true", "\"skipped\": false"},
                    Alteration{"will_skip", "{\"opt0\": true}", "{\"opt0\": false}"},
                    Alteration{"params_changed", "\"params_changed\": true", "\"params_changed\": false"},
                    Alteration{"output_dtype", "\"output_dtype\": \"float32\"", "\"output_dtype\": \"float16\""},
                    Alteration{"output_shape", "\"output_shape\": [4, 6]", "\"output_shape\": [6, 4]"},
                    Alteration{"is_model_param", "\"is_model_param\": false", "\"is_model_param\": true"},
                    Alteration{"state", "\"momentum_buffer\": \"float32\"", "\"momentum_buffer\": \"float16\""},
                    Alteration{"state_exists", "\"momentum_buffer\"", "\"other_buffer\""},
                    Alteration{"property", "\"master_weights\": true", "\"master_weights\": false"},
                    Alteration{"parameter_dtype", "\"m0/0.weight\": \"float16\"", "\"m0/0.weight\": \"float32\""}),
    [](const auto& test) { return std::string(test.param.what); });

class AlteredTensor : public testing::TestWithParam<const char*> {};

TEST_P(AlteredTensor, IsNoticed) {
  CaseCopy copy("convbn_sgd_O2");
  copy.alter_tensor(GetParam());
  expect_outcome(copy.replay(), 0, 1, 0);
}

INSTANTIATE_TEST_SUITE_P(Tensors, AlteredTensor,
                         testing::Values("out.", "rec.s0.m0/", "rec.s0.opt0.g0.p0", "rec.s0.grads.grad.",
                                         "rec.s0.grads.opt0."));

TEST(Replayer, SkipsWhatItLacksByFeature) {
  CaseCopy optimizer("mlp_sgd_O2");
  optimizer.alter("\"type\": \"SGD\"", "\"type\": \"Imagined\"");
  expect_outcome(optimizer.replay(), 0, 0, 1);
  CaseCopy layer("mlp_sgd_O2");
  layer.alter("\"type\": \"ReLU\"", "\"type\": \"Imagined\"");
  expect_outcome(layer.replay(), 0, 0, 1);
  CaseCopy event("mlp_sgd_O2");
  event.alter("\"op\": \"step\"", "\"op\": \"imagined\"");
  expect_outcome(event.replay(), 0, 0, 1);
  CaseCopy kind("mlp_sgd_O2");
  kind.alter("\"kind\": \"train\"", "\"kind\": \"imagined\"");
  expect_outcome(kind.replay(), 0, 0, 1);
}

TEST(Replayer, FailsAnUnreadableCase) {
  CaseCopy json("mlp_sgd_O2");
  write(json.folder() / "case.json", "{\"format_version\": 1, \"kind\"");
  expect_outcome(json.replay(), 0, 1, 0);
  CaseCopy tensors("mlp_sgd_O2");
  fs::resize_file(tensors.folder() / "tensors.safetensors", 5);
  expect_outcome(tensors.replay(), 0, 1, 0);
  CaseCopy missing("mlp_sgd_O2");
  missing.alter("\"input\": \"x0\"", "\"input\": \"x99\"");
  expect_outcome(missing.replay(), 0, 1, 0);
}

TEST(Replayer, RefusesAPatternThatMatchesNothing) {
  Report report;
  EXPECT_THROW(replay_cases(fs::path(ORACLE_DATA) / "cases", "no_such_case_*", report), std::runtime_error);
}

TEST(Replayer, MatchesCommaSeparatedPatterns) {
  EXPECT_TRUE(matches("mlp_sgd_O2", "gan_*,mlp_*"));
  EXPECT_TRUE(matches("disabled", "disabled,disabled_*"));
  EXPECT_FALSE(matches("mlp_sgd_O2", "mlp"));
}

}  // namespace
}  // namespace oracle
