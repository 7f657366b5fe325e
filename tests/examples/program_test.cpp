// The program as a whole: the output of a run, resuming, and errors.
#include "program.h"

#include <algorithm>
#include <iterator>
#include <map>

#include <signal.h>
#include <unistd.h>

#include "common/folder_lock.h"

namespace {

class ProgramAtLevel : public Program, public testing::WithParamInterface<std::string> {};

TEST_P(ProgramAtLevel, ResumedRunHasBitwiseTheLossesOfTheUninterruptedOne) {
  scratch_.write("c.yaml", config(GetParam()));
  const auto whole = run("c.yaml --run-dir whole");
  ASSERT_EQ(whole.code, 0) << whole.error;
  ASSERT_EQ(run("c.yaml --run-dir parts --stop-after 2").code, 0);
  // What a run killed in its third epoch leaves behind the checkpoint.
  const auto steps = scratch_.read("parts/steps.csv");
  EXPECT_LT(steps.size(), scratch_.read("whole/steps.csv").size());
  scratch_.write("parts/steps.csv", steps + "3,25,0.5,1,0,0.1\n3,2");
  const auto rest = run("--resume parts");
  ASSERT_EQ(rest.code, 0) << rest.error;
  EXPECT_EQ(scratch_.read("parts/steps.csv"), scratch_.read("whole/steps.csv"));
  EXPECT_EQ(scratch_.read("parts/loss_scale.csv"), scratch_.read("whole/loss_scale.csv"));
  EXPECT_EQ(accuracy("parts"), accuracy("whole"));
  EXPECT_GT(accuracy("whole"), 0.9);
}

INSTANTIATE_TEST_SUITE_P(Levels, ProgramAtLevel, testing::Values("O0", "O1", "O2", "O3", "O4", "O5", "O6"),
                         [](const auto& test) { return test.param; });

// The same config without amp.
std::string torch_config(const std::string& torch_amp) {
  auto text = config("O0");
  const auto begin = text.find("amp: ");
  return text.substr(0, begin) + "torch_amp: {" + torch_amp + "}\n";
}

TEST_F(Program, WithoutAmpHasBitwiseTheLossesOfO0) {
  scratch_.write("plain.yaml", torch_config("autocast: none"));
  scratch_.write("o0.yaml", config("O0"));
  ASSERT_EQ(run("plain.yaml --run-dir plain --epochs 1").code, 0);
  ASSERT_EQ(run("o0.yaml --run-dir o0 --epochs 1").code, 0);
  EXPECT_EQ(scratch_.read("plain/steps.csv"), scratch_.read("o0/steps.csv"));
  EXPECT_EQ(accuracy("plain"), accuracy("o0"));
}

// From a scale at which gradients overflow float16 down to one at which training continues, and up again every 5 steps.
TEST_F(Program, ResumesTorchAmpBitwiseWithItsScale) {
  scratch_.write("c.yaml", torch_config("autocast: float16, grad_scaler: true, init_scale: 67108864, growth_interval: 5"));
  const auto whole = run("c.yaml --run-dir whole");
  ASSERT_EQ(whole.code, 0) << whole.error;
  ASSERT_EQ(run("c.yaml --run-dir parts --stop-after 2").code, 0);
  ASSERT_EQ(run("--resume parts").code, 0);
  for (const std::string file : {"steps.csv", "loss_scale.csv"})
    EXPECT_EQ(scratch_.read("parts/" + file), scratch_.read("whole/" + file)) << file;
  const auto scales = scratch_.read("whole/loss_scale.csv");
  EXPECT_NE(scales.find(",1,overflow,layers.0."), std::string::npos) << scales;
  EXPECT_NE(scales.find(",0,growth,,0,0,"), std::string::npos) << scales;
  EXPECT_GT(accuracy("whole"), 0.9);
}

// A state of torch's class, of a fused class, one that is in the groups' options, and one with a mode, in which the network is
// tested with averages; tests/checkpoint/resume has every optimizer.
TEST_F(Program, ResumesOptimizersBitwiseAtO2) {
  const std::string fused = ", lr: 0.01, clip_grad_norm: 1, materialize_master_grads: false";
  for (const std::string type : {"AdamW", "FusedLAMB", "FusedMixedPrecisionLamb", "FusedScheduleFreeAdamW"}) {
    const std::string options = type.rfind("Fused", 0) == 0 ? fused : ", lr: 0.01";
    scratch_.write("c.yaml", config("O2", "{type: " + type + options + "}"));
    ASSERT_EQ(run("c.yaml --run-dir whole" + type).code, 0) << type;
    ASSERT_EQ(run("c.yaml --stop-after 1 --run-dir parts" + type).code, 0) << type;
    ASSERT_EQ(run("--resume parts" + type + "/checkpoint.safetensors").code, 0) << type;
    EXPECT_EQ(scratch_.read("parts" + type + "/steps.csv"), scratch_.read("whole" + type + "/steps.csv")) << type;
    EXPECT_EQ(accuracy("parts" + type), accuracy("whole" + type)) << type;
  }
}

TEST_F(Program, TrainsMatricesWithMuonAndResumesBothOptimizersBitwise) {
  auto text = config("O5", "{type: Muon, lr: 0.03}");
  scratch_.write("convnet.yaml", text);
  EXPECT_NE(refusal("convnet.yaml --run-dir r").find("'optimizer.type': Muon is for matrices of hidden layers"),
            std::string::npos);
  const std::string convnet = "{type: convnet, widths: [4, 8], dropout: 0.1}";
  scratch_.write("c.yaml", text.replace(text.find(convnet), convnet.size(), "{type: mlp, widths: [16, 16]}"));
  const auto whole = run("c.yaml --run-dir whole");
  ASSERT_EQ(whole.code, 0) << whole.error;
  ASSERT_EQ(run("c.yaml --stop-after 1 --run-dir parts").code, 0);
  ASSERT_EQ(run("--resume parts").code, 0);
  EXPECT_EQ(scratch_.read("parts/steps.csv"), scratch_.read("whole/steps.csv"));
  EXPECT_EQ(accuracy("parts"), accuracy("whole"));
  EXPECT_GT(accuracy("whole"), 0.9);
}

// At O2, with another schedule and further lines.
std::string scheduled_config(const std::string& schedule) {
  auto text = config("O2");
  const std::string old = "{type: cosine, warmup_epochs: 1}\n";
  return text.replace(text.find(old), old.size(), schedule);
}

// Rates and momentum follow from the step, averages are in the checkpoint: the files have the same bytes.
TEST_F(Program, ResumesSchedulesAndAveragesBitwise) {
  const std::string with_warmup = ", warmup_epochs: 1.5}\nema: {decay: 0.9, use_num_updates: true}\n";
  const std::map<std::string, std::string> schedules{{"linear", "{type: linear, final_lr: 0.001" + with_warmup},
                                                     {"polynomial", "{type: polynomial, power: 2" + with_warmup},
                                                     {"one_cycle", "{type: one_cycle}\nema: {decay: 0.8}\n"}};
  for (const auto& [name, schedule] : schedules) {
    scratch_.write("c.yaml", scheduled_config(schedule));
    const auto whole = run("c.yaml --run-dir whole_" + name);
    ASSERT_EQ(whole.code, 0) << whole.error;
    ASSERT_EQ(run("c.yaml --stop-after 2 --run-dir parts_" + name).code, 0) << name;
    ASSERT_EQ(run("--resume parts_" + name).code, 0) << name;
    for (const std::string file : {"/steps.csv", "/checkpoint.safetensors"}) {
      EXPECT_TRUE(scratch_.read("parts_" + name + file) == scratch_.read("whole_" + name + file)) << name << file;
    }
    EXPECT_GT(accuracy("whole_" + name), 0.5) << name;
  }
}

// An average that keeps the weights of the first step: the network is tested with it, and trained as without.
TEST_F(Program, TestsWithAveragesAndTrainsWithout) {
  const std::string cosine = "{type: cosine, warmup_epochs: 1}\n";
  scratch_.write("plain.yaml", scheduled_config(cosine));
  scratch_.write("kept.yaml", scheduled_config(cosine + "ema: {decay: 1}\n"));
  ASSERT_EQ(run("plain.yaml --run-dir plain").code, 0);
  ASSERT_EQ(run("kept.yaml --run-dir kept").code, 0);
  EXPECT_EQ(scratch_.read("kept/steps.csv"), scratch_.read("plain/steps.csv"));
  EXPECT_GT(accuracy("plain"), 0.9);
  EXPECT_LT(accuracy("kept"), 0.9);
}

TEST_F(Program, WritesConfigTablesAndCheckpointAndPrintsTheAccuracy) {
  const auto ended = run("c.yaml --run-dir r --seed 7 --epochs 2");
  ASSERT_EQ(ended.code, 0) << ended.error;
  const auto resolved = scratch_.read("r/config.yaml");
  for (const auto* line :
       {"seed: 7\n", "epochs: 2\n", "run_dir: r\n", "opt_level: O2", "# keep_batchnorm_fp32: true", "# loss_scale: dynamic"}) {
    EXPECT_NE(resolved.find(line), std::string::npos) << line << " is not in\n" << resolved;
  }
  std::istringstream steps(scratch_.read("r/steps.csv")), metrics(scratch_.read("r/metrics.csv"));
  std::string header;
  std::getline(steps, header);
  EXPECT_EQ(header, "epoch,step,loss,loss_scale,skipped,lr");
  std::getline(metrics, header);
  EXPECT_EQ(header, "epoch,train_loss,test_accuracy,loss_scale,skipped_steps,lr,seconds,images_per_second,status");
  const auto rows = [](std::istream& in) { return std::count(std::istreambuf_iterator<char>(in), {}, '\n'); };
  EXPECT_EQ(rows(steps), 24);  // 240 training images, 12 batches of 20, 2 epochs
  EXPECT_EQ(rows(metrics), 2);
  EXPECT_TRUE(std::filesystem::exists(scratch_ / "r/checkpoint.safetensors"));
  for (const auto& entry : std::filesystem::directory_iterator(scratch_ / "r")) EXPECT_NE(entry.path().extension(), ".tmp");
  EXPECT_NE(ended.out.find("after 2 epochs"), std::string::npos) << ended.out;
  EXPECT_EQ(ended.out.find('\r'), std::string::npos);  // no progress bar in a log
}

// A step's statistics use the loss scale of that step, and a resumed run appends to the table.
TEST_F(Program, WritesStatisticsOfWeightsAndGradients) {
  scratch_.write("c.yaml", config("O1") + "statistics_every: 5\n");
  ASSERT_EQ(run("c.yaml --run-dir whole").code, 0);
  const auto table = scratch_.read("whole/statistics.csv");
  EXPECT_EQ(table.rfind("epoch,step,loss_scale,tensor,name,numel,abs_max,mean,norm,zeros,inf,nan,lowest_exponent,", 0), 0u)
      << table;
  const auto rows = [&](const std::string& text) {
    std::istringstream lines(table);
    std::string line;
    int count = 0;
    while (std::getline(lines, line)) count += line.find(text) != std::string::npos;
    return count;
  };
  const int parameters = rows("1,5,65536,weight,");
  EXPECT_GT(parameters, 4);
  EXPECT_EQ(rows("1,5,65536,gradient,"), parameters);
  EXPECT_EQ(rows(",weight,"), 9 * parameters);  // 48 steps
  EXPECT_EQ(table.find("\n1,4,"), std::string::npos) << table;
  EXPECT_EQ(run("c.yaml --run-dir parts --stop-after 2").code, 0);
  EXPECT_EQ(run("--resume parts").code, 0);
  EXPECT_EQ(scratch_.read("parts/statistics.csv"), table);
  EXPECT_EQ(scratch_.read("parts/steps.csv"), scratch_.read("whole/steps.csv"));
}

TEST_F(Program, StatisticsChangeNoBitOfTheTraining) {
  ASSERT_EQ(run("c.yaml --run-dir without --epochs 1").code, 0);
  EXPECT_FALSE(std::filesystem::exists(scratch_ / "without/statistics.csv"));
  scratch_.write("c.yaml", config("O2") + "statistics_every: 1\n");
  ASSERT_EQ(run("c.yaml --run-dir with --epochs 1").code, 0);
  EXPECT_EQ(scratch_.read("with/steps.csv"), scratch_.read("without/steps.csv"));
}

TEST_F(Program, TheRunFoldersConfigRepeatsTheRun) {
  ASSERT_EQ(run("c.yaml --run-dir first --seed 7 --epochs 2").code, 0);
  ASSERT_EQ(run("first/config.yaml --run-dir second").code, 0);
  EXPECT_EQ(scratch_.read("second/steps.csv"), scratch_.read("first/steps.csv"));
}

TEST_F(Program, SeedChangesTheLosses) {
  ASSERT_EQ(run("c.yaml --run-dir a --epochs 1").code, 0);
  ASSERT_EQ(run("c.yaml --run-dir b --epochs 1 --seed 1").code, 0);
  EXPECT_NE(scratch_.read("a/steps.csv"), scratch_.read("b/steps.csv"));
}

TEST_F(Program, WritesOverflowsToTheLossScaleTable) {
  scratch_.write("c.yaml", config("O2", "{type: SGD, lr: 900, momentum: 1}"));
  run("c.yaml --run-dir r");
  const auto table = scratch_.read("r/loss_scale.csv");
  EXPECT_EQ(table.rfind("epoch,step,scale_before,scale_after,skipped,reason,parameter,inf,nan,loss\n", 0), 0u) << table;
  EXPECT_NE(table.find(",65536,32768,1,overflow,"), std::string::npos) << table;
}

TEST_F(Program, MistakesAreReportedInOneLineWithExitCodeTwo) {
  EXPECT_EQ(refusal("no.yaml"), "cannot read config 'no.yaml': No such file or directory\n");
  scratch_.write("typo.yaml", config("O2") + "epoch: 3\n");
  EXPECT_EQ(refusal("typo.yaml").rfind("typo.yaml:10:1: key 'epoch': unknown key", 0), 0u);
  scratch_.write("level.yaml", config("O7"));
  EXPECT_EQ(refusal("level.yaml").rfind("level.yaml:9:", 0), 0u);
  EXPECT_EQ(refusal("c.yaml --sed 3").rfind("unknown option '--sed'", 0), 0u);
  EXPECT_EQ(refusal("c.yaml --resume ''"), "--resume takes a name or a path, not ''; see --help\n");
  EXPECT_EQ(refusal("c.yaml --run-dir ''"), "--run-dir takes a name or a path, not ''; see --help\n");
  EXPECT_EQ(refusal("--resume nowhere"), "cannot resume 'nowhere': no such file or folder\n");
  std::filesystem::remove(scratch_ / "data/digits.csv");
  const auto missing =
      "cannot open '" + (scratch_ / "data/digits.csv") + "' or '" + (scratch_ / "data/digits.csv.gz") + "': No such file. ";
  EXPECT_EQ(refusal("c.yaml").rfind(missing + "tools/setup downloads the digits", 0), 0u);
  EXPECT_FALSE(std::filesystem::exists(scratch_ / "runs"));  // nothing was begun
}

TEST_F(Program, MistakesOfAConfigHaveALineEach) {
  scratch_.write("typos.yaml", config("O2") + "epoch: 3\nstatistics_every: -1\n");
  const auto ended = run("typos.yaml");
  EXPECT_EQ(ended.code, 2);
  EXPECT_EQ(std::count(ended.error.begin(), ended.error.end(), '\n'), 2) << ended.error;
  EXPECT_EQ(ended.error.rfind("typos.yaml:10:1: key 'epoch': unknown key; ", 0), 0u) << ended.error;
  EXPECT_NE(ended.error.find("\ntypos.yaml:11:19: key 'statistics_every': -1 is out of range (0 to 1000000000)\n"),
            std::string::npos)
      << ended.error;
}

// A wrong path must not resume another run by mistake.
TEST_F(Program, ResumesFromARunFolderOrOnlyItsCheckpoint) {
  ASSERT_EQ(run("c.yaml --run-dir r --stop-after 1").code, 0);
  const auto before = scratch_.read("r/steps.csv");
  EXPECT_EQ(refusal("--resume r/epoch_7.safetensors"), "cannot resume 'r/epoch_7.safetensors': no such file or folder\n");
  EXPECT_EQ(refusal("--resume r/metrics.csv"),
            "cannot resume 'r/metrics.csv': it is not a checkpoint; give a run folder, or the checkpoint.safetensors in it\n");
  EXPECT_EQ(refusal("--resume data"), "cannot resume 'data': there is no 'data/config.yaml': give the folder of a run\n");
  EXPECT_EQ(scratch_.read("r/steps.csv"), before);
  const auto inside = run("--resume checkpoint.safetensors", "r");  // its data's folder is found from there, too
  EXPECT_EQ(inside.code, 0) << inside.error;
}

TEST_F(Program, ARunThatFailedToStartReleasesItsFolder) {
  scratch_.write("large.yaml", config("O2").replace(config("O2").find("batch_size: 20"), 14, "batch_size: 100000"));
  scratch_.write("typo.yaml", config("O2, float32_modules: [nosuch]"));
  refusal("large.yaml --run-dir r");
  EXPECT_FALSE(std::filesystem::exists(scratch_ / "r"));
  refusal("typo.yaml --run-dir r");
  const auto begun = run("c.yaml --run-dir r --epochs 1");
  EXPECT_EQ(begun.code, 0) << begun.error;
}

TEST_F(Program, SuggestsResumeOnlyIfThereIsACheckpoint) {
  ASSERT_EQ(run("c.yaml --run-dir runs/r --epochs 1").code, 0);
  std::filesystem::remove(scratch_ / "runs/r/checkpoint.safetensors");  // as a run leaves it that ends in its first epoch
  EXPECT_EQ(refusal("--resume runs/r"),
            "cannot resume 'runs/r': there is no 'runs/r/checkpoint.safetensors': the run ended before its first checkpoint; "
            "start again with runs/r/config.yaml and another --run-dir\n");
  const std::string remedy = ", and holds no run to resume: choose a new or an empty folder with --run-dir\n";
  for (const std::string folder : {"runs/r", "runs"})
    EXPECT_EQ(refusal("c.yaml --run-dir " + folder), "run folder '" + folder + "' is not empty" + remedy);
  EXPECT_EQ(refusal("c.yaml --run-dir c.yaml"), "run folder 'c.yaml' is a file" + remedy);
}

TEST_F(Program, UnknownModuleAndOperatorNamesAreConfigErrors) {
  for (const std::string key :
       {"float32_modules: [nosuch]", "float32_functions: ['aten::nosuch']", "casts: {casts: {float32: ['aten::nosuch']}}"}) {
    scratch_.write("c.yaml", config("O1, " + key));
    EXPECT_NE(refusal("c.yaml").find("nosuch"), std::string::npos) << key;
  }
}

TEST_F(Program, CountsOneEpochAndOneThread) {
  const auto ended = run("c.yaml --run-dir r --epochs 1");
  EXPECT_NE(ended.out.find(", 1 thread\n"), std::string::npos) << ended.out;
  EXPECT_NE(ended.out.find(" after 1 epoch, 0 steps skipped; "), std::string::npos) << ended.out;
}

TEST_F(Program, ADamagedCheckpointIsAnError) {
  ASSERT_EQ(run("c.yaml --run-dir r --stop-after 1").code, 0);
  scratch_.write("r/checkpoint.safetensors", "damaged");
  EXPECT_EQ(refusal("--resume r").rfind("cannot resume from 'r/checkpoint.safetensors': ", 0), 0u);
}

TEST_F(Program, ARunFolderInUseIsAnError) {
  ASSERT_EQ(run("c.yaml --run-dir r --epochs 1").code, 0);
  const auto before = scratch_.read("r/steps.csv");
  EXPECT_EQ(refusal("c.yaml --run-dir r"),
            "run folder 'r' holds a run: choose another folder with --run-dir, or resume the run with --resume r\n");
  EXPECT_EQ(scratch_.read("r/steps.csv"), before);
}

// The lock is held by the test, in place of a run that is still training.
TEST_F(Program, ARunFolderThatAnotherProcessWritesToIsAnError) {
  ASSERT_EQ(run("c.yaml --run-dir r --epochs 1").code, 0);
  std::filesystem::create_directories(scratch_ / "begun");
  const auto before = scratch_.read("r/steps.csv");
  {
    const common::FolderLock of_r(scratch_ / "r", ""), of_begun(scratch_ / "begun", "");
    EXPECT_EQ(refusal("--resume r"), "cannot resume 'r': another run is writing to 'r': wait until it has ended\n");
    for (const std::string folder : {"r", "begun"}) {
      EXPECT_EQ(refusal("c.yaml --run-dir " + folder),
                "run folder '" + folder + "': another run is writing to it: choose another folder with --run-dir\n");
    }
  }
  EXPECT_EQ(scratch_.read("r/steps.csv"), before);
  EXPECT_EQ(run("--resume r --epochs 2").code, 0);
  EXPECT_EQ(run("c.yaml --run-dir begun --epochs 1").code, 0);
}

TEST_F(Program, ARunLocksItsFolderUntilItIsKilled) {
  const auto start =
      "cd '" + scratch_.path() + "' && exec '" TRAIN_PROGRAM "' c.yaml --run-dir r --epochs 1000000 >long.out 2>&1";
  const pid_t child = fork();
  if (child == 0) {
    execl("/bin/sh", "sh", "-c", start.c_str(), nullptr);
    _exit(127);
  }
  while (!std::filesystem::exists(scratch_ / "r/checkpoint.safetensors")) {
    ASSERT_EQ(waitpid(child, nullptr, WNOHANG), 0) << scratch_.read("long.out");
    usleep(10000);
  }
  EXPECT_NE(refusal("--resume r").find("another run is writing to 'r'"), std::string::npos);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  const auto rest = run("--resume r --stop-after 1");
  EXPECT_EQ(rest.code, 0) << rest.error;
}

}  // namespace
