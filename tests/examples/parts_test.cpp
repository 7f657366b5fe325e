#include <cmath>
#include <csignal>
#include <filesystem>
#include <future>
#include <optional>
#include <set>
#include <sstream>

#include <sys/resource.h>
#include <sys/stat.h>

#include <ATen/ATen.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/linear.h>

#include "common/write_whole.h"
#include "config/config.h"
#include "data/load.h"
#include "easy_digits.h"
#include "errors.h"
#include "network/models.h"
#include "options.h"
#include "records/csv_file.h"
#include "records/metrics.h"
#include "records/run_folder.h"
#include "scratch.h"
#include "step/optimizer.h"
#include "step/schedule.h"
#include "step/torch_amp.h"
#include "tests/errors.h"
#include "trainer.h"

namespace {

using apex::test::message_of;
using train::UserError;

train::Config scheduled(const std::string& type) {
  train::Config config;
  config.optimizer.lr = 0.4;
  config.epochs = 10;
  config.schedule.type = type;
  return config;
}

TEST(Schedule, NoneIsConstant) {
  EXPECT_EQ(train::learning_rate(scheduled("none"), 0, 5), 0.4);
  EXPECT_EQ(train::learning_rate(scheduled("none"), 49, 5), 0.4);
}

TEST(Schedule, StepFallsByGammaAtEachStage) {
  auto config = scheduled("step");
  config.schedule.step_epochs = 3;
  config.schedule.gamma = 0.5;
  EXPECT_EQ(train::learning_rate(config, 14, 5), 0.4);
  EXPECT_EQ(train::learning_rate(config, 15, 5), 0.2);
  EXPECT_EQ(train::learning_rate(config, 30, 5), 0.1);
}

TEST(Schedule, CosineGoesFromFullToFinal) {
  auto config = scheduled("cosine");
  config.schedule.final_lr = 0.1;
  EXPECT_DOUBLE_EQ(train::learning_rate(config, 0, 5), 0.4);
  EXPECT_DOUBLE_EQ(train::learning_rate(config, 25, 5), 0.25);
  EXPECT_DOUBLE_EQ(train::learning_rate(config, 50, 5), 0.1);
}

TEST(Schedule, WarmupRisesStepByStepToTheFullRate) {
  auto config = scheduled("none");
  config.schedule.warmup_epochs = 2;
  EXPECT_DOUBLE_EQ(train::learning_rate(config, 0, 5), 0.04);
  EXPECT_DOUBLE_EQ(train::learning_rate(config, 4, 5), 0.2);
  EXPECT_DOUBLE_EQ(train::learning_rate(config, 9, 5), 0.4);
  EXPECT_DOUBLE_EQ(train::learning_rate(config, 10, 5), 0.4);
}

TEST(Options, AllAreRead) {
  const auto options = train::parse_options({"c.yaml", "--seed", "3", "--epochs=5", "--run-dir", "here", "--stop-after", "2"});
  EXPECT_EQ(options.config, "c.yaml");
  EXPECT_EQ(options.seed, 3);
  EXPECT_EQ(options.epochs, 5);
  EXPECT_EQ(options.run_dir, "here");
  EXPECT_EQ(options.stop_after, 2);
  EXPECT_EQ(options.help, "");
}

TEST(Options, HelpNamesThemAllAndNothingElseIsAskedFor) {
  const auto help = train::parse_options({"--help"}).help;
  for (const auto* name :
       {"CONFIG", "--run-dir DIR", "--seed N", "--epochs N", "--stop-after N", "--resume PATH", "Exit code"}) {
    EXPECT_NE(help.find(name), std::string::npos) << name << " is not in\n" << help;
  }
}

TEST(Options, MistakesAreNamed) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "no config given"},
      {{"a.yaml", "b.yaml"}, "unexpected argument 'b.yaml'; see --help"},
      {{"a.yaml", "--sed", "3"}, "unknown option '--sed'"},
      {{"a.yaml", "--seed"}, "--seed: 1 required N missing; see --help"},
      {{"a.yaml", "--seed", "-1"}, "--seed takes a whole number of at least 0, not '-1'"},
      {{"a.yaml", "--epochs", "2x"}, "--epochs takes a whole number of at least 1, not '2x'"},
      {{"a.yaml", "--resume", ""}, "--resume takes a name or a path, not ''; see --help"},
      {{"--resume", "r", "--seed", "1"}, "--resume goes on in the run's own folder"},
  };
  for (const auto& [arguments, says] : cases) {
    const auto message = message_of<UserError>([&, &arguments = arguments] { train::parse_options(arguments); });
    EXPECT_EQ(message.rfind(says, 0), 0u) << message;
  }
}

TEST(CsvFile, KeepsTheRowsBehindTheCheckpointAndDropsLaterOnes) {
  const Scratch scratch;
  scratch.write("t.csv", "a,b\n1,2\n3,4\n5,");  // the last row was cut off when the run was killed
  {
    train::CsvFile file(scratch / "t.csv", "a,b", 1);
    file.append(7, "8,9");
  }
  EXPECT_EQ(scratch.read("t.csv"), "a,b\n1,2\n7,\"8,9\"\n");
}

// While it lives, files of this process have room for so many bytes.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_{};
  void (*handler_)(int) = std::signal(SIGXFSZ, SIG_IGN);
};

TEST(CsvFile, TellsWhyItCannotWrite) {
  const Scratch scratch;
  train::CsvFile file(scratch / "t.csv", "a,b", 0);
  const FileSizeLimit limit(8);
  const auto cannot = "cannot write '" + (scratch / "t.csv") + "': ";
  EXPECT_EQ(message_of<UserError>([&] { file.append(1000, 2000), file.flush(); }), cannot + "File too large");
  EXPECT_EQ(message_of<UserError>([&] { train::CsvFile(scratch / "no/t.csv", "a,b", 0); }),
            "cannot write '" + (scratch / "no/t.csv") + "': No such file or directory");
}

// What fails is a row in the middle of an epoch; a reason asked for at its end might be of something else.
TEST(CsvFile, FailsWithTheRowThatThereIsNoRoomFor) {
  const Scratch scratch;
  train::CsvFile file(scratch / "t.csv", "a", 0);
  const FileSizeLimit limit(8);
  EXPECT_NE(message_of<UserError>([&] { file.append(std::string(1 << 20, 'x')); }).find("File too large"), std::string::npos);
}

// A step of a run, at the scale 1024.
train::StepLog step_log(int64_t step) {
  train::StepLog log;
  log.step = step;
  log.loss = 0.5;
  log.loss_scale = 1024;
  return log;
}

train::StepLog skipped_step(int64_t step) {
  auto log = step_log(step);
  log.skipped = true;
  log.scale_event = {1, 1024.0, 512.0, apex::amp::ScaleChange::overflow};
  log.result.first_nonfinite = "fc.weight";
  log.result.inf_count = 3;
  log.result.nan_count = 1;
  return log;
}

TEST(Metrics, LossScaleTableHasTheStepsThatMovedTheScaleAndGoesOnAtTheCheckpoint) {
  const Scratch scratch;
  const auto folder = train::RunFolder::create(scratch / "r", "");
  const std::string header = "epoch,step,scale_before,scale_after,skipped,reason,parameter,inf,nan,loss\n";
  const std::string overflow = "1,2,1024,512,1,overflow,fc.weight,3,1,0.5\n";
  {
    train::Metrics metrics(folder, 0, 0);
    metrics.add(1, step_log(0));
    metrics.add(1, skipped_step(1));
    auto grown = step_log(2);
    grown.scale_event = {2, 512.0, 1024.0, apex::amp::ScaleChange::growth};
    metrics.add(1, grown);
    metrics.add(train::EpochLog());
  }
  EXPECT_EQ(scratch.read("r/loss_scale.csv"), header + overflow + "1,3,512,1024,0,growth,,0,0,0.5\n");
  // The checkpoint is at step 2; what was killed behind it had begun another row.
  scratch.write("r/loss_scale.csv", scratch.read("r/loss_scale.csv") + "2,1");
  { train::Metrics metrics(folder, 2, 1); }
  EXPECT_EQ(scratch.read("r/loss_scale.csv"), header + overflow);
}

TEST(CsvFile, RefusesATableThatDoesNotFitTheCheckpoint) {
  const Scratch scratch;
  scratch.write("t.csv", "a,b\n1,2\n");
  EXPECT_NE(
      message_of<UserError>([&] { train::CsvFile(scratch / "t.csv", "a,b", 2); }).find("holds 1 row, the checkpoint is at 2"),
      std::string::npos);
  EXPECT_NE(message_of<UserError>([&] { train::CsvFile(scratch / "t.csv", "a,c", 1); }).find("header"), std::string::npos);
  EXPECT_EQ(scratch.read("t.csv"), "a,b\n1,2\n");
}

TEST(RunFolder, NeverWritesOverAnotherRun) {
  const Scratch scratch;
  scratch.write("run/config.yaml", "kept");
  const auto refused = [&](const std::string& why) {
    const auto message = message_of<UserError>([&] { train::RunFolder::create(scratch / "run", "c.yaml"); });
    EXPECT_NE(message.find(why), std::string::npos) << message;
    EXPECT_EQ(scratch.read("run/config.yaml"), "kept");
  };
  refused("is not empty, and there is no run in it to go on with");
  scratch.write("run/checkpoint.safetensors", "kept");
  refused("is in use: ");
  std::filesystem::create_directories(scratch / "empty");
  EXPECT_EQ(train::RunFolder::create(scratch / "empty", "c.yaml").path(), scratch / "empty");
  EXPECT_EQ(train::RunFolder::create(scratch / "new/deep", "c.yaml").path(), scratch / "new/deep");
}

TEST(RunFolder, KeepsOthersOutWhileItLives) {
  const Scratch scratch;
  std::optional<train::RunFolder> first = train::RunFolder::create(scratch / "run", "c.yaml");
  const auto create = [&] { train::RunFolder::create(scratch / "run", "c.yaml"); };
  const auto held = "run folder '" + (scratch / "run") + "': another run is writing to it: choose another with --run-dir";
  EXPECT_EQ(message_of<UserError>(create), held);
  scratch.write("run/config.yaml", "");
  scratch.write("run/checkpoint.safetensors", "");
  EXPECT_EQ(message_of<UserError>(create), held);
  EXPECT_NE(message_of<UserError>([&] { train::RunFolder::open(scratch / "run"); }).find("another run is writing to "),
            std::string::npos);
  EXPECT_EQ(train::RunFolder::find(scratch / "run").path(), scratch / "run");
  first.reset();
  EXPECT_EQ(train::RunFolder::open(scratch / "run").path(), scratch / "run");
}

// In one second, or in two: no two have one name.
TEST(RunFolder, RunsThatBeginTogetherHaveDatedFoldersOfTheirOwn) {
  const Scratch scratch;
  const auto here = std::filesystem::current_path();
  std::filesystem::current_path(scratch.path());
  std::vector<std::future<std::string>> begun;
  for (int i = 0; i < 8; ++i)
    begun.push_back(std::async(std::launch::async, [] { return train::RunFolder::create("", "c.yaml").path(); }));
  std::set<std::string> names;
  for (auto& run : begun) names.insert(run.get());
  std::filesystem::current_path(here);
  EXPECT_EQ(names.size(), 8u);
}

TEST(WriteWhole, ReplacesAFileAndNothingElse) {
  const Scratch scratch;
  scratch.write("file", "old");
  common::write_whole(scratch / "file", "new");
  EXPECT_EQ(scratch.read("file"), "new");
  ASSERT_EQ(mkfifo((scratch / "pipe").c_str(), 0600), 0);
  const auto message = message_of<UserError>([&] { common::write_whole(scratch / "pipe", "new"); });
  EXPECT_EQ(message, "cannot write '" + (scratch / "pipe") + "': it is no regular file; name another");
  EXPECT_TRUE(std::filesystem::is_fifo(scratch / "pipe"));
  EXPECT_FALSE(std::filesystem::exists(scratch / "pipe.part"));
}

TEST(WriteWhole, TellsWhyItCannot) {
  const Scratch scratch;
  scratch.write("file", "old");
  std::filesystem::create_symlink("/dev/full", scratch / "file.part");
  EXPECT_EQ(message_of<UserError>([&] { common::write_whole(scratch / "file", "new"); }),
            "cannot write '" + (scratch / "file") + "': No space left on device");
  EXPECT_EQ(scratch.read("file"), "old");
}

TEST(RunFolder, OpensByFolderOrCheckpoint) {
  const Scratch scratch;
  EXPECT_NE(message_of<UserError>([&] { train::RunFolder::open(scratch.path()); }).find("config.yaml"), std::string::npos);
  scratch.write("config.yaml", "");
  EXPECT_NE(message_of<UserError>([&] { train::RunFolder::open(scratch.path()); }).find("checkpoint.safetensors"),
            std::string::npos);
  scratch.write("checkpoint.safetensors", "");
  EXPECT_EQ(train::RunFolder::open(scratch.path()).path(), scratch.path());
  EXPECT_EQ(train::RunFolder::open(scratch / "checkpoint.safetensors").path(), scratch.path());
}

class EveryModel : public testing::TestWithParam<train::ModelConfig> {};

TEST_P(EveryModel, GiveOneScoreForEachClassAndAGradientToEveryParameter) {
  at::manual_seed(1);
  for (const int64_t side : {8, 28, 32}) {
    for (const int64_t channels : {1, 3}) {
      auto model = train::make_classifier(GetParam(), {channels, side, side}, 10);
      const auto scores = model->forward(at::randn({4, channels, side, side}));
      EXPECT_EQ(scores.sizes(), (std::vector<int64_t>{4, 10}));
      scores.square().sum().backward();
      for (const auto& item : model->named_parameters()) {
        EXPECT_TRUE(item.value().grad().defined()) << item.key();
      }
    }
  }
}

TEST_P(EveryModel, AreTheSameForTheSameSeed) {
  const auto weights = [] {
    at::manual_seed(3);
    std::vector<at::Tensor> flat;
    for (const auto& parameter : train::make_classifier(GetParam(), {1, 8, 8}, 10)->parameters()) {
      flat.push_back(parameter.detach().flatten());
    }
    return at::cat(flat);
  };
  const auto first = weights();
  EXPECT_TRUE(first.equal(weights()));
}

INSTANTIATE_TEST_SUITE_P(All, EveryModel,
                         testing::Values(train::ModelConfig{"mlp", {16, 12}, {}, 0.5},
                                         train::ModelConfig{"convnet", {4, 6, 8}, {}, 0},
                                         train::ModelConfig{"resnet", {4, 8}, {1, 2}, 0}),
                         [](const auto& test) { return test.param.type; });

TEST(Models, TooManyStagesForTheImageAreRefused) {
  const auto message = message_of<UserError>([] {
    train::make_classifier({"convnet", {4, 4, 4, 4, 4}, {}, 0}, {1, 8, 8}, 10);
  });
  EXPECT_EQ(message, "key 'model.widths': 5 stages are too many for images of 8x8");
}

// The layers as torchvision's AlexNet has them, convolutions and pooling but made for 32x32 images: 16x16 behind the first
// convolution, 8x8, 4x4 and 2x2 behind the poolings.
TEST(Models, AlexNetHasTheLayersOfAlexNet) {
  at::manual_seed(1);
  auto model = train::make_classifier({"alexnet", {}, {}, 0.5}, {3, 32, 32}, 10);
  const std::vector<std::vector<int64_t>> weights = {{64, 3, 3, 3},    {192, 64, 3, 3},     {384, 192, 3, 3}, {256, 384, 3, 3},
                                                     {256, 256, 3, 3}, {4096, 256 * 2 * 2}, {4096, 4096},     {10, 4096}};
  std::vector<std::vector<int64_t>> found;
  int64_t parameters = 0;
  for (const auto& each : model->parameters()) {
    if (each.dim() > 1) found.push_back(each.sizes().vec());
    parameters += each.numel();
  }
  EXPECT_EQ(found, weights);
  // 1792 + 110784 + 663936 + 884992 + 590080 of the convolutions, 4198400 + 16781312 + 40970 of the linear layers.
  EXPECT_EQ(parameters, 23272266);
  EXPECT_EQ(model->layers->size(), 5 * 2 + 3 + 1 + 2 * 3 + 1);  // with ReLU, poolings, flattening and dropout
  EXPECT_EQ(model->layers->ptr(14)->as<torch::nn::Dropout>()->options.p(), 0.5);
  EXPECT_EQ(model->forward(at::randn({2, 3, 32, 32})).sizes(), (std::vector<int64_t>{2, 10}));
}

TEST(Models, AlexNetRefusesImagesOfWhichNothingIsLeft) {
  const train::ModelConfig config{"alexnet", {}, {}, 0};
  EXPECT_EQ(message_of<UserError>([&] {
              train::make_classifier(config, {1, 14, 32}, 10);
            }),
            "key 'model.type': nothing is left of images of 14x32 where alexnet has halved them four times; give "
            "'data.image_size: 32'");
  EXPECT_EQ(train::make_classifier(config, {1, 15, 31}, 10)->forward(at::zeros({1, 1, 15, 31})).size(1), 10);
}

TEST(Optimizer, EveryTypeTakesAStepAtTheRateThatWasSet) {
  for (const std::string type : {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "FusedSGD", "FusedAdam", "FusedLAMB",
                                 "FusedNovoGrad", "FusedAdagrad", "FusedMixedPrecisionLamb"}) {
    train::OptimizerConfig config;
    config.type = type;
    config.lr = 0.5;
    auto parameter = at::ones({3}).requires_grad_();
    const auto optimizer = train::make_optimizer(config, {parameter});
    parameter.mutable_grad() = at::ones({3});
    train::set_learning_rate(*optimizer, 0);
    optimizer->step();
    EXPECT_TRUE(parameter.equal(at::ones({3}))) << type;
    train::set_learning_rate(*optimizer, 0.25);
    optimizer->step();
    EXPECT_TRUE(parameter.lt(1).all().item<bool>()) << type;
  }
}

TEST(TorchAmp, AStepThatHalvedTheScaleWasSkippedAndTellsWhy) {
  torch::nn::Linear net(2, 1);
  net->weight.mutable_grad() = at::tensor({1.0f, INFINITY}).view({1, 2});
  net->bias.mutable_grad() = at::ones({1});
  const auto skipped = train::result_of_step(*net, 0.5, 1024, 512);
  EXPECT_TRUE(skipped.skipped);
  EXPECT_EQ(skipped.first_nonfinite, "weight");
  EXPECT_EQ(skipped.inf_count, 1);
  EXPECT_FALSE(skipped.nonfinite_loss);
  EXPECT_EQ(train::scale_event(1024, 512)->change, apex::amp::ScaleChange::overflow);
  EXPECT_EQ(train::scale_event(512, 1024)->change, apex::amp::ScaleChange::growth);
  EXPECT_FALSE(train::scale_event(512, 512));
  EXPECT_FALSE(train::result_of_step(*net, 0.5, 512, 1024).skipped);
}

// Before the first step the network's first weight is not a number.
struct SpoilingTeam : train::Team {
  Forward join(train::Network& net, const train::Config& config) override {
    const at::NoGradGuard no_grad;
    net->parameters().front().fill_(std::nan(""));
    return Team::join(net, config);
  }
};

TEST(Trainer, RefusesToClimbFromWhatIsNoNumber) {
  const Scratch scratch;
  scratch.write("data/digits.csv", easy_digits());
  const auto config = train::parse_config("model: {type: mlp, widths: [8]}\ndata: {set: digits, dir: '" + (scratch / "data") +
                                              "'}\noptimizer: {type: SGD, lr: 0.1}\ndevice: cpu\non_divergence: climb\n"
                                              "amp: {opt_level: O2}\n",
                                          "c.yaml");
  const auto folder = train::RunFolder::create(scratch / "run", "c.yaml");
  std::ostringstream out;
  common::Progress progress(out, common::Terminal{});
  SpoilingTeam team;
  train::Observer nobody;
  const auto message = message_of<UserError>([&] {
    train::train(config, train::load_data(config.data), folder, /*resume=*/false, /*stop_after=*/0, team, nobody, progress);
  });
  EXPECT_EQ(message.rfind("key 'on_divergence': the run has nothing to come back to: parameter '", 0), 0u) << message;
  EXPECT_FALSE(std::filesystem::exists(folder.levels()));
  EXPECT_FALSE(std::filesystem::exists(folder.checkpoint()));
}

}  // namespace
