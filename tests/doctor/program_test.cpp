// The program behind `tools/compare doctor`, on generated images.
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include "opt_levels/opt_level.h"
#include "tests/examples/easy_digits.h"
#include "tests/examples/scratch.h"

namespace apex::test {
namespace {

struct DoctorEnded {
  int code;
  std::string out, error;
};

struct DoctorTool : testing::Test {
  DoctorTool() {
    scratch.write("data/digits.csv", easy_digits());
    scratch.write("c.yaml",
                  "model: {type: mlp, widths: [8]}\ndata: {set: digits, dir: data}\noptimizer: {type: SGD, lr: 0.05}\n"
                  "epochs: 2\nbatch_size: 20\ndevice: cpu\nthreads: 1\namp: {opt_level: O2, max_loss_scale: 1024}\n");
  }
  DoctorEnded run(const std::string& arguments) const {
    const auto line = "cd '" + scratch.path() + "' && '" DOCTOR_PROGRAM "' " + arguments + " >out 2>error";
    const int status = std::system(line.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, scratch.read("out"), scratch.read("error")};
  }
  Scratch scratch;
};

std::string nothing_found_at(const std::string& level) {
  return level +
         " trained like O0 over 12 steps: no operator of the first step diverges, and the loss ends within the spread of 3 "
         "seeds of "
         "O0\nfirst divergence: none\nkept in float32: none\n";
}

TEST_F(DoctorTool, FindsNothingInHealthyTrainingAndWritesTheLevelUnchanged) {
  for (const std::string level : {"O1", "O2", "O5"}) {
    const auto ended = run("c.yaml --level " + level + " --steps 12 --yaml level.yaml");
    EXPECT_EQ(ended.code, 0) << ended.error;
    EXPECT_EQ(ended.out, nothing_found_at(level));
    const auto wanted = level == "O2" ? opt_levels::OptLevel("O2").with(opt_levels::InitializeOptions().max_loss_scale(1024))
                                      : opt_levels::OptLevel(level);
    EXPECT_EQ(opt_levels::OptLevel::from_yaml_string(scratch.read("level.yaml")), wanted);
  }
}

// Pixels of 8 and a bit more: E4M3 has 8, 9 and 10 there, bfloat16 has 16 numbers from 8 to 9.
TEST_F(DoctorTool, NamesTheLayerThatFp8Breaks) {
  scratch.write("fp8.yaml",
                "model: {type: mlp, widths: [64, 64], batch_norm: true}\ndata: {set: digits, dir: data, offset: 8}\n"
                "optimizer: {type: SGD, lr: 0.05, momentum: 0.9}\nepochs: 4\nbatch_size: 20\ndevice: cpu\nthreads: 1\n"
                "amp: {opt_level: O6, bfloat16_modules: []}\n");
  const auto ended = run("fp8.yaml --steps 12 --yaml level.yaml");
  EXPECT_EQ(ended.code, 0) << ended.error;
  EXPECT_NE(ended.out.find("\nkept in bfloat16: layers.1\nfirst divergence: "), std::string::npos) << ended.out;
  EXPECT_NE(ended.out.find("\nkept in float32: none\n"), std::string::npos) << ended.out;
  const auto options = opt_levels::InitializeOptions().bfloat16_modules(std::vector<std::string>{"layers.1"});
  EXPECT_EQ(opt_levels::OptLevel::from_yaml_string(scratch.read("level.yaml")), opt_levels::OptLevel("O6").with(options));
}

// The page's example, on the test's own images; the number of values depends on these.
TEST_F(DoctorTool, FindsTheFaultShownOnThePage) {
  std::filesystem::create_directory(scratch / "sets");
  std::filesystem::rename(scratch / "data", scratch / "sets/digits");
  setenv("APEX_CPP_DATA", (scratch / "sets").c_str(), 1);
  const auto ended = run("'" SOURCES "/tools/doctor/scale_too_large.yaml' --steps 12");
  unsetenv("APEX_CPP_DATA");
  EXPECT_EQ(ended.code, 0) << ended.error;
  std::ifstream file(SOURCES "/apex_cpp/README.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  std::istringstream lines(ended.out);
  int count = 0;
  for (std::string line; std::getline(lines, line); ++count) {
    const auto values = line.find(" values are ");  // behind their number
    const auto shown = values == std::string::npos ? line : line.substr(0, line.rfind(' ', values - 1));
    EXPECT_NE(page.find("\n    " + shown), std::string::npos) << line;
    EXPECT_NE(page.find((values == std::string::npos ? line : line.substr(values)) + "\n"), std::string::npos) << line;
  }
  EXPECT_EQ(count, 4);
}

TEST_F(DoctorTool, NamesTheConfigsLevel) {
  EXPECT_EQ(run("c.yaml --steps 12").out, "level: O2, the level of the config\n" + nothing_found_at("O2"));
}

// All gradients underflow in FP16: nothing of the network can stay in it.
TEST_F(DoctorTool, NamesWhereGradientsUnderflowAndWritesALevelThatTrains) {
  auto config = scratch.read("c.yaml");
  config.replace(config.find("max_loss_scale: 1024"), 20, "loss_scale: 1.0e-7");
  scratch.write("small.yaml", config);
  const auto ended = run("small.yaml --level O2 --steps 12 --yaml level.yaml");
  EXPECT_EQ(ended.code, 0) << ended.error;
  EXPECT_NE(ended.out.find("first divergence: backward layers.3 aten::addmm\nkept in float32: layers.1 layers.3\n"),
            std::string::npos)
      << ended.out;
  const auto found = opt_levels::OptLevel::from_yaml_string(scratch.read("level.yaml"));
  EXPECT_EQ(found.overrides().float32_modules(), (std::vector<std::string>{"layers.1", "layers.3"}));
  EXPECT_EQ(found.overrides().loss_scale(), opt_levels::LossScale(1e-7));
}

// Adam's state in FP16 makes the weights NaN in the first step. The loss that the doctor notes is no operator of the training.
TEST_F(DoctorTool, NamesTheWeightDestroyedByTheOptimizer) {
  auto config = scratch.read("c.yaml");
  config.replace(config.find("type: SGD, lr: 0.05"), 19, "type: Adam, lr: 0.001");
  scratch.write("adam.yaml", config);
  const auto ended = run("adam.yaml --level O3 --steps 12");
  EXPECT_EQ(ended.code, 0) << ended.error;
  EXPECT_EQ(ended.out.find("optimizer layers.1 bias (before step 1): it has Inf or NaN"), 0U) << ended.out;
  EXPECT_NE(ended.out.find("\nfirst divergence: optimizer layers.1 bias\nkept in float32: "), std::string::npos) << ended.out;
}

// Weight decay alone takes the weights to infinity in a dozen steps, at every level.
TEST_F(DoctorTool, BlamesNoLevelIfO0DivergesToo) {
  auto config = scratch.read("c.yaml");
  config.replace(config.find("lr: 0.05"), 8, "lr: 1000, weight_decay: 1");
  scratch.write("wild.yaml", config);
  const auto ended = run("wild.yaml --level O2 --yaml level.yaml");
  EXPECT_EQ(ended.code, 1);
  EXPECT_EQ(ended.out, "");
  EXPECT_EQ(ended.error.find("Doctor: the program does not train at O0 itself (seed 0, step "), 0U) << ended.error;
  EXPECT_EQ(ended.error.find('\n') + 1, ended.error.size()) << ended.error;
  EXPECT_FALSE(std::filesystem::exists(scratch / "level.yaml"));
}

TEST_F(DoctorTool, ReportsMistakesInOneLine) {
  auto config = scratch.read("c.yaml");
  scratch.write("typo.yaml", config.replace(config.find("max_loss_scale: 1024"), 20, "float32_modules: [nosuch]"));
  for (const char* arguments :
       {"--steps 2", "none.yaml", "c.yaml --level O9", "c.yaml --level o3.yaml", "c.yaml --steps 0", "typo.yaml"}) {
    const auto ended = run(arguments);
    EXPECT_EQ(ended.code, 2) << arguments;
    EXPECT_EQ(ended.out, "") << arguments;
    EXPECT_EQ(ended.error.find('\n') + 1, ended.error.size()) << arguments << ": " << ended.error;
  }
}

TEST_F(DoctorTool, RejectsAnUnwritableFileBeforeItStarts) {
  std::filesystem::create_directory(scratch / "folder");
  ASSERT_EQ(mkfifo((scratch / "pipe").c_str(), 0600), 0);
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"nowhere/x.yaml", "folder 'nowhere': No such file or directory\n"},
      {"c.yaml/x.yaml", "folder 'c.yaml': Not a directory\n"},
      {"folder", "it is not a regular file; name another\n"},
      {"pipe", "it is not a regular file; name another\n"},
  };
  for (const auto& [path, why] : cases) {
    const auto ended = run("c.yaml --level O2 --steps 1000000 --yaml " + path);
    EXPECT_EQ(ended.code, 2) << path;
    EXPECT_EQ(ended.error, "cannot write '" + path + "': " + why);
    EXPECT_EQ(ended.out, "") << path;
  }
  EXPECT_TRUE(std::filesystem::is_fifo(scratch / "pipe"));
}

TEST_F(DoctorTool, RejectsABatchLargerThanTheTrainingSet) {
  auto config = scratch.read("c.yaml");
  config.replace(config.find("batch_size: 20"), 14, "batch_size: 100000");
  scratch.write("large.yaml", config);
  const auto ended = run("large.yaml --level O2 --steps 2");
  EXPECT_EQ(ended.code, 2);
  EXPECT_NE(ended.error.find("key 'batch_size': 100000 is more than the "), std::string::npos) << ended.error;
  EXPECT_EQ(ended.error.find('\n') + 1, ended.error.size()) << ended.error;
}

}  // namespace
}  // namespace apex::test
