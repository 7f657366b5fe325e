#include "grid.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>

#include <ATen/Context.h>

#include "cells.h"
#include "errors.h"
#include "own_program.h"
#include "shell.h"
#include "tests/errors.h"
#include "tests/examples/easy_digits.h"
#include "tests/examples/scratch.h"

namespace {

using apex::test::message_of;
using train::UserError;

constexpr const char* kConfig =
    "model: {type: convnet, widths: [4, 8]}\ndata: {set: digits, dir: DATA}\noptimizer: {type: SGD, lr: 0.1}\nepochs: 3\n"
    "batch_size: 20\namp: {opt_level: O3}\n";

class Grid : public testing::Test {
 protected:
  void SetUp() override {
    scratch_.write("data/digits.csv", easy_digits());
    write_config("c.yaml", "", "");
  }

  // The config above, with one text in place of another.
  void write_config(const std::string& name, const std::string& from, const std::string& to) const {
    std::string text = kConfig;
    text.replace(text.find("DATA"), 4, scratch_ / "data");
    if (!from.empty()) text.replace(text.find(from), from.size(), to);
    scratch_.write(name, text);
  }

  comparison::Grid read(const std::string& grid) const {
    scratch_.write("g.yaml", grid);
    return comparison::read_grid(scratch_ / "g.yaml");
  }

  std::string refusal(const std::string& grid) const {
    return message_of<UserError>([&] { read(grid); });
  }

  Scratch scratch_;
};

TEST_F(Grid, NamesLevelsByTheirSettings) {
  scratch_.write("repaired.yaml", "opt_level: O1\nloss_scale: 64\n");
  const auto grid = read("configs: [c.yaml]\nlevels: [O2, {opt_level: O2, loss_scale: 128}, repaired.yaml, O0]\n");
  std::vector<std::string> names;
  for (const auto& level : grid.levels) names.push_back(level.name);
  // O0 goes first, wherever it stands.
  EXPECT_EQ(names, (std::vector<std::string>{"O0", "O2", "O2 loss_scale 128.0", "repaired"}));
  EXPECT_EQ(grid.levels[3].level.name(), "O1");
  EXPECT_EQ(grid.seeds, (std::vector<int64_t>{0, 1, 2}));
  EXPECT_EQ(grid.processes, std::vector<int64_t>{1});
}

TEST_F(Grid, PathsAreRelativeToItsFolderAlsoInsideLevels) {
  scratch_.write("lists/mine.yaml", "casts: {float32: [aten::mm]}\n");
  scratch_.write("short.yml", "opt_level: O2\ncasts: lists/mine.yaml\n");
  const auto here = std::filesystem::current_path();
  const auto grid = read("configs: [c.yaml]\nlevels: [O0, {opt_level: O1, casts: lists/mine.yaml}, short.yml]\n");
  EXPECT_EQ(std::filesystem::current_path(), here);
  const auto lists = apex::opt_levels::CastLists::from_yaml_file(scratch_ / "lists/mine.yaml");
  EXPECT_EQ(grid.levels[1].level.overrides().casts(), lists);
  EXPECT_EQ(grid.levels[2].level.overrides().casts(), lists);
  EXPECT_EQ(grid.levels[2].name, "short");
  EXPECT_NE(refusal("configs: [c.yaml]\nlevels: [O0, {opt_level: O1, casts: none.yaml}]\n").find("none.yaml"),
            std::string::npos);
  EXPECT_EQ(std::filesystem::current_path(), here);
}

TEST_F(Grid, CellsThatShareAFolderAreAnError) {
  scratch_.write("my level.yaml", "opt_level: O2\n");
  scratch_.write("my_level.yaml", "opt_level: O5\n");
  EXPECT_EQ(refusal("configs: [c.yaml]\nlevels: [O0, my level.yaml, my_level.yaml]\n"),
            scratch_ / "g.yaml" +
                ": config 'c' at level 'my level' and config 'c' at level 'my_level' would both use the folder "
                "'c-my_level-seed0': rename one of the two files");
  write_config("c-O0.yaml", "", "");
  scratch_.write("O0-O2.yaml", "opt_level: O2\n");
  EXPECT_EQ(refusal("configs: [c.yaml, c-O0.yaml]\nlevels: [O0, O2, O0-O2.yaml]\n"),
            scratch_ / "g.yaml" +
                ": config 'c' at level 'O0-O2' and config 'c-O0' at level 'O2' would both use the folder 'c-O0-O2-seed0': "
                "rename one of the two files");
}

TEST_F(Grid, TheReferenceLevelIsO0) {
  scratch_.write("O0.yaml", "opt_level: O0\n");
  EXPECT_EQ(read("configs: [c.yaml]\nlevels: [O0.yaml, O2]\n").levels[0].level, apex::amp::OptLevel("O0"));
  for (const char* level : {"opt_level: O3\n", "opt_level: O0\nloss_scale: 8\n"}) {
    scratch_.write("O0.yaml", level);
    EXPECT_NE(refusal("configs: [c.yaml]\nlevels: [O0.yaml, O2]\n")
                  .find("g.yaml:2:9: key 'levels': the file named O0 holds a different level (O"),
              std::string::npos)
        << level;
  }
}

TEST_F(Grid, CellsAlternateBetweenLevelsAndKnowTheirReference) {
  write_config("d.yaml", "epochs: 3", "epochs: 4\non_divergence: climb\nclimb_to: O1");
  const auto cells = comparison::cells_of(read(
      "configs: [c.yaml, d.yaml]\nlevels: [O1, O0, {opt_level: O2, loss_scale: 1.5}]\nseeds: [3, 9]\nprocesses: [2, 1]\n"));
  ASSERT_EQ(cells.size(), 24U);
  EXPECT_EQ(cells[0].name, "c-O0-seed3-2processes");
  EXPECT_EQ(cells[1].name, "c-O1-seed3-2processes");
  EXPECT_EQ(cells[2].name, "c-O2_loss_scale_1.5-seed3-2processes");
  EXPECT_EQ(cells[5].reference, "c-O0-seed9-2processes");
  EXPECT_EQ(cells[23].name, "d-O2_loss_scale_1.5-seed9");
  EXPECT_EQ(cells[23].processes, 1);
  EXPECT_EQ(cells[23].config.seed, 9);
  EXPECT_EQ(cells[23].config.epochs, 4);
  EXPECT_EQ(cells[23].config.level.name(), "O2");     // not the config's own
  EXPECT_EQ(cells[23].config.on_divergence, "stop");  // nor another one later
}

TEST_F(Grid, LevelsAndFoldersAreNamedAfterFloat32Modules) {
  const auto grid = read(
      "configs: [c.yaml]\nlevels: [O0, {opt_level: O2, float32_modules: [layers.1]}, {opt_level: O2, float32_modules: "
      "[layers.1, layers.3]}, {opt_level: O2, float32_functions: ['aten::addmm']}]\nseeds: [0]\n");
  EXPECT_EQ(grid.levels[1].name, "O2 float32_modules layers.1");
  EXPECT_EQ(grid.levels[2].name, "O2 float32_modules layers.1+layers.3");
  EXPECT_EQ(grid.levels[3].name, "O2 float32_functions aten::addmm");
  const auto cells = comparison::cells_of(grid);
  ASSERT_EQ(cells.size(), 4U);
  EXPECT_EQ(cells[2].name, "c-O2_float32_modules_layers.1+layers.3-seed0");
  EXPECT_EQ(cells[3].name, "c-O2_float32_functions_aten__addmm-seed0");
}

TEST_F(Grid, AcceptsTorchAmpAsALevel) {
  const auto grid = read(
      "configs: [c.yaml]\nlevels:\n  - O0\n  - torch_amp: {autocast: none}\n  - {torch_amp: {autocast: bfloat16}}\n"
      "  - torch_amp:\n      autocast: float16\n      grad_scaler: true\n      init_scale: 1024\nseeds: [4]\n");
  ASSERT_EQ(grid.levels.size(), 4U);
  EXPECT_EQ(grid.levels[1].name, "no amp");
  EXPECT_EQ(grid.levels[2].name, "autocast BF16");
  EXPECT_EQ(grid.levels[3].name, "autocast FP16 + GradScaler init_scale 1024");
  const auto cells = comparison::cells_of(grid);
  EXPECT_FALSE(cells[0].config.torch_amp);
  EXPECT_EQ(cells[3].name, "c-autocast_FP16_+_GradScaler_init_scale_1024-seed4");
  EXPECT_EQ(cells[3].config.torch_amp->init_scale, 1024);
  EXPECT_EQ(cells[3].config.level.overrides().enabled(), false);
  // What a cell is started by is its config as text.
  EXPECT_EQ(train::parse_config(train::to_yaml(cells[3].config), "cell").torch_amp->init_scale, 1024);
}

TEST_F(Grid, EpochsApplyToAllConfigs) {
  EXPECT_EQ(read("configs: [c.yaml]\nlevels: [O0]\nepochs: 7\n").configs[0].config.epochs, 7);
}

TEST_F(Grid, ShippedGridsAreComplete) {
  scratch_.write("digits/digits.csv", easy_digits());
  const std::string thirty_images(30 * 3073, '\1');
  for (const char* file : {"data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"})
    scratch_.write(std::string("cifar10/") + file + ".bin", thirty_images);
  setenv("APEX_CPP_DATA", scratch_.path().c_str(), 1);
  EXPECT_EQ(comparison::read_grid(GRIDS "/digits.yaml").levels.size(), 6U);
  const auto raw = comparison::read_grid(GRIDS "/digits_raw.yaml"), char_lm = comparison::read_grid(GRIDS "/char_lm.yaml");
  const auto alexnet = comparison::read_grid(GRIDS "/alexnet.yaml"),
             cifar10 = comparison::read_grid(GRIDS "/alexnet_cifar10.yaml");
  unsetenv("APEX_CPP_DATA");
  EXPECT_EQ(alexnet.processes, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(raw.configs.size(), 2U);
  EXPECT_EQ(raw.levels.back().name, "O4 float32_modules layers.1");
  EXPECT_EQ(char_lm.levels.back().name, "O5 master_weights false");
  EXPECT_EQ(char_lm.program.build, "cmake --build ../../../build/release --target char_lm");
  EXPECT_EQ(char_lm.program.command.rfind("../../../build/release/" CHAR_LM " ", 0), 0U) << char_lm.program.command;
  EXPECT_EQ(alexnet.levels[3].name, "autocast BF16 + GradScaler");
  EXPECT_EQ(cifar10.levels[3].name, "autocast FP16 + GradScaler");
}

TEST_F(Grid, ThePagesExamplesAreValidGrids) {
  std::ifstream file(GRIDS "/../README.md");
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  write_config("net.yaml", "", "");
  scratch_.write("my_level.yaml", "opt_level: O1\n");
  std::vector<size_t> levels;
  for (auto begin = page.find("```yaml\n"); begin != std::string::npos; begin = page.find("```yaml\n", begin)) {
    begin += 8;
    levels.push_back(read(page.substr(begin, page.find("```", begin) - begin)).levels.size());
  }
  EXPECT_EQ(levels, (std::vector<size_t>{4, 5}));
}

TEST_F(Grid, AProgramIsStartedWithLevelSeedStepsAndFolder) {
  const auto grid = read(
      "program: ./my_train {level} {seed} --steps={steps} -o {folder}\nlevels: [O2, O0, {opt_level: O2, loss_scale: 8}]\n"
      "seeds: [4, 6]\nsteps: 70\n");
  const auto cells = comparison::cells_of(grid);
  ASSERT_EQ(cells.size(), 6U);
  EXPECT_EQ(cells[1].name, "program-O2-seed4");
  EXPECT_EQ(cells[1].reference, "program-O0-seed4");
  EXPECT_EQ(cells[5].name, "program-O2_loss_scale_8.0-seed6");
  const comparison::CellFolder folder{"/a b"};
  EXPECT_EQ(
      comparison::own_command(cells[1], folder, 70),
      "sh -c " + comparison::quoted("cd " + comparison::quoted(scratch_.path()) + " && ./my_train O2 4 --steps=70 -o '/a b'"));
  EXPECT_NE(comparison::own_command(cells[5], folder, 70).find("./my_train '\\''/a b/level.yaml'\\'' 6 "), std::string::npos)
      << comparison::own_command(cells[5], folder, 70);
  EXPECT_EQ(apex::amp::OptLevel::from_yaml_string(cells[5].level_text), grid.levels[2].level);
  EXPECT_NE(comparison::description_of(cells[1]), comparison::description_of(cells[4]));  // another seed
}

TEST_F(Grid, AProgramIsBuiltInTheGridsFolder) {
  const std::string rest = "program: ./my_train {level} {seed} {folder}\nlevels: [O0]\n";
  const auto log = scratch_ / "build.log";
  comparison::build(read("build: echo compiled; touch my_train\n" + rest).program, log);
  EXPECT_TRUE(std::filesystem::exists(scratch_ / "my_train"));
  EXPECT_EQ(comparison::content_of(log), "compiled\n");
  const auto failing = read("build: echo no compiler >&2; exit 3\n" + rest).program;
  const auto message = message_of<UserError>([&] { comparison::build(failing, log); });
  EXPECT_EQ(message, "the command of key 'build' failed with exit code 3; its output: " + log);
  EXPECT_EQ(comparison::content_of(log), "no compiler\n");
}

TEST_F(Grid, AProgramIsAnotherOneIfAFileOfItsCommandChanges) {
  auto grid = read("program: ./my_train data.csv --steps 9 {level} {seed} {folder} > log.txt\nlevels: [O0]\n");
  const auto description = [&] {
    grid.program.files = comparison::files_of(grid.program);
    return comparison::description_of(comparison::cells_of(grid).at(0));
  };
  const auto without_files = description();
  scratch_.write("log.txt", "what a run printed");
  EXPECT_EQ(description(), without_files);
  EXPECT_EQ(grid.program.files, "");
  scratch_.write("data.csv", "1,2");
  const auto with_data = description();
  EXPECT_EQ(grid.program.files.rfind("# data.csv: 3 bytes, crc32 ", 0), 0U) << grid.program.files;
  EXPECT_NE(with_data, without_files);
  scratch_.write("data.csv", "1,3");
  EXPECT_NE(description(), with_data);
  scratch_.write("data.csv", "1,2");
  EXPECT_EQ(description(), with_data);
}

TEST_F(Grid, AProgramsTablesAreRead) {
  const comparison::CellFolder folder{scratch_.path()};
  EXPECT_NE(comparison::what_is_missing(folder).find("not written a steps.csv with a column 'step'"), std::string::npos);
  scratch_.write("steps.csv", "step,loss\n1,2\n");
  EXPECT_NE(comparison::what_is_missing(folder).find("a column 'step_ms'"), std::string::npos);
  EXPECT_THROW(comparison::median_step(folder), UserError);
  scratch_.write("steps.csv",
                 "step_ms,step,loss\n900,1,1\n900,2,1\n900,3,1\n900,4,1\n900,5,1\n4,6,1\n2,7,1\n3,8,1\n9,9,1\n1,10,1\n");
  EXPECT_EQ(comparison::what_is_missing(folder), "");
  EXPECT_EQ(comparison::median_step(folder), 3);  // of the last five
  scratch_.write("steps.csv", "\"step\",\"loss\",\"step_ms\"\r\n1,2,3\r\n");
  EXPECT_EQ(comparison::what_is_missing(folder), "");
  EXPECT_EQ(comparison::median_step(folder), 3);
  scratch_.write("steps.csv", "step,loss,step_ms\n1,2,0\n2,2,0\n");
  EXPECT_THROW(comparison::median_step(folder), UserError);
}

struct Mistake {
  std::string grid;
  std::vector<std::string> message_parts;
};

TEST_F(Grid, MistakesAreReportedWithPlaceKeyAndValueBeforeAnythingRuns) {
  const std::string levels = "levels: [O0, O1]\n", configs = "configs: [c.yaml]\n";
  std::vector<Mistake> mistakes = {
      {levels, {"g.yaml:1:1: key 'configs': missing; expected a list"}},
      {configs, {"g.yaml:1:1: key 'levels': missing; expected a list"}},
      {configs + "levels: O1\n", {"g.yaml:2:9: key 'levels': expected a list such as [O0, O2]"}},
      {"configs: []\n" + levels, {"g.yaml:1:10: key 'configs': the list is empty; expected a list such as [net.yaml]"}},
      {configs + "levels: [O0, {opt_level: O2, float32_modules: [nosuch]}]\n",
       {"config 'c': level 'O2 float32_modules nosuch': ", "found no module 'nosuch'"}},
      {configs + "levels: [O0, {opt_level: O1, float32_functions: ['aten::nosuch']}]\n", {"config 'c'", "aten::nosuch"}},
      {configs + "levels: [O1, O2]\n", {"key 'levels': O0 is missing: all levels are compared with it"}},
      {configs + "levels: [O0, O1, O1]\n", {"key 'levels': a level is listed twice"}},
      {configs + "levels: [O0, O9]\n", {"g.yaml:2:14: key 'levels': unknown opt_level 'O9'", "O1, O2, O3"}},
      {configs + "levels:\n  - O0\n\t- O1\n", {"g.yaml:4:1: not YAML: a tab indents the line"}},
      {configs + "level: [O0, O1]\n", {"g.yaml:2:1: key 'level': unknown key. Did you mean 'levels'?"}},
      {configs + "levels: [O0, '  ']\n", {"'  '", "O1, O2, O3"}},
      {"configs: ['  ']\n" + levels, {"cannot read config '"}},
      {configs + "levels: [O0, none.yml]\n", {"g.yaml:2:14: key 'levels': cannot read", "none.yml"}},
      {configs + "levels:\n  - O0\n  - opt_level: O2\n    loss_scale: fast\n", {"g.yaml:", "loss_scale", "fast"}},
      {configs + "levels: [O0, none.yaml]\n", {"none.yaml"}},
      {configs + "levels:\n  - O0\n  - torch_amp: {autocast: fp8}\n", {"g.yaml:4:", "key 'torch_amp.autocast': 'fp8' is not"}},
      {configs + levels + "seeds: [1, 1]\n", {"g.yaml:3:8: key 'seeds': a seed is listed twice"}},
      {configs + levels + "seeds: []\n", {"g.yaml:3:8: key 'seeds': the list is empty; expected a list such as "}},
      {configs + levels + "seeds: [-1]\n", {"key 'seeds': -1 is out of range (0 to 9223372036854775807)"}},
      {configs + levels + "processes: [0]\n", {"key 'processes': 0 is out of range (1 to 256)"}},
      {configs + levels + "processes: [21]\n", {"config 'c'", "key 'batch_size': 20 images are too few for 21 processes"}},
      {configs + levels + "epoch: 3\n", {"g.yaml:3:1: key 'epoch': unknown key; known here: ", "epochs"}},
      {"configs: [c.yaml, ./c.yaml]\n" + levels, {"key 'configs': two files have the same name: rename one"}},
      {"configs: [{a: b}]\n" + levels, {"key 'configs': expected paths of training configs"}},
      {"configs: [no.yaml]\n" + levels, {"g.yaml:1:11: key 'configs': cannot read config '", "no.yaml"}},
      {"configs: [deep.yaml]\n" + levels, {"config 'deep': key 'model.widths': 5 stages are too many for images of 8x8"}},
      {"configs: [wide.yaml]\n" + levels, {"wide.yaml:1:32: key 'model.widths': 0 is out of range (1 to 65536)"}},
      {"configs: [sharded.yaml]\n" + levels, {"config 'sharded': key 'optimizer.type': DistributedFusedAdam", "use FusedAdam"}},
      {"configs: [nodata.yaml]\n" + levels, {"config 'nodata'", "digits.csv"}},
      {configs + levels + "rounds: 0\n", {"key 'rounds': 0"}},
      {"program: ./a {level} {folder}\n" + levels,
       {"g.yaml:1:10: key 'program': the command lacks {seed}; expected a command such as"}},
      {"program: ./a {level} {seed} {folder} {steps}\n" + levels, {"key 'steps': missing; it replaces {steps}"}},
      {"program: ./a {level} {seed} {folder}\nsteps: 3\n" + levels,
       {"key 'steps': the command of key 'program' has no {steps}"}},
      {"program: ./a {level} {seed} {folder}\nprocesses: [2]\n" + levels,
       {"key 'processes': a program starts its processes itself"}},
      {"program: ./a {level} {seed} {folder}\nlevels: [O0, {torch_amp: {autocast: none}}]\n",
       {"key 'levels': a program takes levels of amp only"}},
      {"program: ./a {level} {seed} {folder}\n" + configs + levels, {"key 'configs': unknown key"}},
      {"build: make\n" + configs + levels, {"g.yaml:1:1: key 'build': unknown key"}},
  };
  if (!at::hasCUDA()) mistakes.push_back({"configs: [gpu.yaml]\n" + levels, {"config 'gpu': key 'device': cuda needs a GPU"}});
  write_config("gpu.yaml", "epochs: 3", "device: cuda");
  write_config("deep.yaml", "[4, 8]", "[4, 4, 4, 4, 4]");
  write_config("wide.yaml", "[4, 8]", "[0]");
  write_config("sharded.yaml", "SGD", "DistributedFusedAdam");
  write_config("nodata.yaml", scratch_ / "data", scratch_ / "nothing");
  for (const auto& mistake : mistakes) {
    const auto message = refusal(mistake.grid);
    for (const auto& part : mistake.message_parts)
      EXPECT_NE(message.find(part), std::string::npos) << part << "\nis not in\n" << message;
    EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  }
}

TEST_F(Grid, AllMistakesAreReportedAtTheirPlaces) {
  write_config("wide.yaml", "[4, 8]", "[0]");
  const auto message = refusal("configs: [wide.yaml, no.yaml]\nlevels: [O0, O9, {opt_level: O2, loss_scal: 2}]\nepoch: 3\n");
  std::vector<std::string> lines;
  std::istringstream text(message);
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  ASSERT_EQ(lines.size(), 5U) << message;
  EXPECT_NE(lines[0].find("wide.yaml:1:32: key 'model.widths': 0 is out of range"), std::string::npos) << message;
  EXPECT_NE(lines[1].find("g.yaml:1:22: key 'configs': cannot read config"), std::string::npos) << message;
  EXPECT_NE(lines[2].find("g.yaml:2:14: key 'levels': unknown opt_level 'O9'"), std::string::npos) << message;
  EXPECT_NE(lines[3].find("unknown key 'loss_scal'. Did you mean 'loss_scale'?"), std::string::npos) << message;
  EXPECT_NE(lines[4].find("g.yaml:3:1: key 'epoch': unknown key"), std::string::npos) << message;
}

}  // namespace
