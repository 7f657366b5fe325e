#include "config/config.h"

#include <sstream>

#include "errors.h"
#include "scratch.h"
#include "tests/errors.h"

namespace {

using apex::test::message_of;

const std::string kModel = "model: {type: mlp, widths: [8]}\n";
const std::string kRest = "data: {set: digits}\noptimizer: {type: SGD, lr: 0.1}\namp: {opt_level: O2}\n";
const std::string kGood = kModel + kRest;
const std::string kPlain = kModel + "data: {set: digits}\noptimizer: {type: SGD, lr: 0.1}\n";

std::string complaint(const std::string& text) {
  return message_of<train::UserError>([&] { train::parse_config(text, "c.yaml"); });
}

TEST(Config, MissingKeysHaveDefaults) {
  const auto config = train::parse_config(kGood, "c.yaml");
  EXPECT_EQ(config.model.type, "mlp");
  EXPECT_EQ(config.model.widths, std::vector<int64_t>{8});
  EXPECT_EQ(config.optimizer.momentum, 0);
  EXPECT_EQ(config.schedule.type, "none");
  EXPECT_EQ(config.batch_size, 64);
  EXPECT_EQ(config.device, "auto");
}

TEST(Config, EveryKeyIsRead) {
  const auto config = train::parse_config(
      "model: {type: resnet, widths: [4, 8], blocks: [1, 2]}\n"
      "data: {set: cifar10, dir: /data}\n"
      "optimizer: {type: AdamW, lr: 2e-3, weight_decay: 0.01, beta1: 0.8, beta2: 0.9, eps: 1e-6, amsgrad: true}\n"
      "schedule: {type: step, warmup_epochs: 0.5, step_epochs: 3, gamma: 0.2}\n"
      "epochs: 7\nbatch_size: 32\nseed: 5\ndevice: cpu\nthreads: 1\ncheckpoint_every: 2\nstatistics_every: 50\nrun_dir: here\n"
      "on_divergence: climb\nclimb_to: kept.yaml\n"
      "amp: {opt_level: O5}\n",
      "c.yaml");
  EXPECT_EQ(config.model.type, "resnet");
  EXPECT_EQ(config.model.widths, (std::vector<int64_t>{4, 8}));
  EXPECT_EQ(config.model.blocks, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(config.data.set, "cifar10");
  EXPECT_EQ(config.data.dir, "/data");
  EXPECT_EQ(config.optimizer.type, "AdamW");
  EXPECT_EQ(config.optimizer.lr, 2e-3);
  EXPECT_EQ(config.optimizer.weight_decay, 0.01);
  EXPECT_EQ(config.optimizer.beta1, 0.8);
  EXPECT_EQ(config.optimizer.beta2, 0.9);
  EXPECT_EQ(config.optimizer.eps, 1e-6);
  EXPECT_TRUE(config.optimizer.amsgrad);
  EXPECT_EQ(config.schedule.type, "step");
  EXPECT_EQ(config.schedule.warmup_epochs, 0.5);
  EXPECT_EQ(config.schedule.step_epochs, 3);
  EXPECT_EQ(config.schedule.gamma, 0.2);
  EXPECT_EQ(config.epochs, 7);
  EXPECT_EQ(config.batch_size, 32);
  EXPECT_EQ(config.seed, 5);
  EXPECT_EQ(config.device, "cpu");
  EXPECT_EQ(config.level.name(), "O5");
  EXPECT_EQ(config.threads, 1);
  EXPECT_EQ(config.checkpoint_every, 2);
  EXPECT_EQ(config.statistics_every, 50);
  EXPECT_EQ(config.run_dir, "here");
  EXPECT_TRUE(config.climbs());
  EXPECT_EQ(config.climb_to, "kept.yaml");
}

TEST(Config, AWrittenConfigIsReadBackUnchanged) {
  for (const std::string optimizer :
       {"SGD", "Adam", "AdamW", "RMSprop", "Adagrad", "FusedSGD", "FusedAdam", "FusedLAMB", "FusedNovoGrad", "FusedAdagrad",
        "FusedLARS", "FusedLion", "FusedScheduleFreeAdamW", "FusedMixedPrecisionLamb", "Muon"}) {
    auto config = train::parse_config(kModel + "data: {set: mnist, dir: \"a: b # c\"}\noptimizer: {type: " + optimizer +
                                          ", lr: 0.1}\nseed: 9\namp: {opt_level: O2}\n",
                                      "c.yaml");
    config.optimizer.lr = 1.0 / 3;
    config.model.batch_norm = true;
    config.data.scale = 1e5;
    config.data.offset = -0.1;
    const auto text = train::to_yaml(config);
    const auto again = train::parse_config(text, "again.yaml");
    EXPECT_EQ(train::to_yaml(again), text);
    EXPECT_EQ(again.optimizer.lr, 1.0 / 3);
    EXPECT_EQ(again.data.dir, "a: b # c");
    EXPECT_TRUE(again.model.batch_norm);
    EXPECT_EQ(again.data.scale, 1e5);
    EXPECT_EQ(again.data.offset, -0.1);
    EXPECT_EQ(again.level.to_yaml(), config.level.to_yaml());
  }
}

TEST(Config, TorchAmpReplacesTheLevel) {
  const auto config = train::parse_config(
      kModel +
          "data: {set: digits, image_size: 32}\noptimizer: {type: SGD, lr: 0.1}\n"
          "torch_amp: {autocast: float16, grad_scaler: true, init_scale: 1024, growth_factor: 4, backoff_factor: 0.25, "
          "growth_interval: 7}\n",
      "c.yaml");
  ASSERT_TRUE(config.torch_amp);
  EXPECT_EQ(config.torch_amp->autocast, "float16");
  EXPECT_TRUE(config.torch_amp->grad_scaler);
  EXPECT_EQ(config.torch_amp->init_scale, 1024);
  EXPECT_EQ(config.torch_amp->growth_factor, 4);
  EXPECT_EQ(config.torch_amp->backoff_factor, 0.25);
  EXPECT_EQ(config.torch_amp->growth_interval, 7);
  EXPECT_EQ(config.level.overrides().enabled(), false);
  EXPECT_EQ(config.data.image_size, 32);
  const auto text = train::to_yaml(config);
  EXPECT_EQ(text.find("opt_level"), std::string::npos) << text;
  EXPECT_EQ(train::to_yaml(train::parse_config(text, "again.yaml")), text);
}

TEST(Config, SchedulesAndAveragesAreReadAndWritten) {
  const std::string rest = "data: {set: digits}\noptimizer: {type: SGD, lr: 0.5}\namp: {opt_level: O2}\n";
  const auto read = [&](const std::string& lines) { return train::parse_config(kModel + rest + lines, "c.yaml"); };
  const auto cycle =
      read("schedule: {type: one_cycle, pct_start: 0.25, div_factor: 10, final_div_factor: 100, cycle_momentum: false}\n");
  EXPECT_EQ(cycle.schedule.pct_start, 0.25);
  EXPECT_EQ(cycle.schedule.div_factor, 10);
  EXPECT_EQ(cycle.schedule.final_div_factor, 100);
  EXPECT_FALSE(cycle.schedule.cycle_momentum);
  EXPECT_FALSE(cycle.ema);
  const auto polynomial =
      read("schedule: {type: polynomial, warmup_epochs: 2, power: 0.5}\nema: {decay: 0.75, use_num_updates: true}\n");
  EXPECT_EQ(polynomial.schedule.power, 0.5);
  EXPECT_EQ(polynomial.schedule.warmup_epochs, 2);
  ASSERT_TRUE(polynomial.ema);
  EXPECT_EQ(polynomial.ema->decay, 0.75);
  EXPECT_TRUE(polynomial.ema->use_num_updates);
  EXPECT_EQ(read("schedule: {type: linear, final_lr: 0.125}\n").schedule.final_lr, 0.125);
  for (const auto& config : {cycle, polynomial}) {
    const auto text = train::to_yaml(config);
    const auto again = train::parse_config(text, "again.yaml");
    EXPECT_EQ(train::to_yaml(again), text);
    EXPECT_EQ(again.ema.has_value(), config.ema.has_value());
  }
}

struct BadConfig {
  std::string name;
  std::string text;
  std::string message_start;  // the message's beginning: place and key
};

class BadConfigs : public testing::TestWithParam<BadConfig> {};

TEST_P(BadConfigs, AreErrorsInOneLineWithPlaceAndKey) {
  const auto message = complaint(GetParam().text);
  EXPECT_EQ(message.rfind(GetParam().message_start, 0), 0u) << message;
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
}

const BadConfig kBadConfigs[] = {
    {"SecondDocument", "# one\n---\n" + kRest + "---\nepochs: 3\n",
     "c.yaml:6:1: a second document begins; write all keys in one"},
    {"NotYaml", "model: [1,\n", "c.yaml:2:1: not YAML"},
    {"NoMapping", "just text", "c.yaml:1:1: expected a mapping"},
    {"Empty", "", "c.yaml:1:1: expected a mapping"},
    {"UnknownKey", kGood + "epoch: 3\n", "c.yaml:5:1: key 'epoch': unknown key; known here: model, data, optimizer"},
    {"UnknownInnerKey",
     kModel + "data: {set: digits}\noptimizer:\n  type: SGD\n  lr: 0.1\n  beta1: 0.9\namp: {opt_level: O2}\n",
     "c.yaml:6:3: key 'optimizer.beta1': unknown key"},
    {"GivenTwice", kGood + "seed: 1\nseed: 2\n", "c.yaml:6:1: key 'seed': given twice"},
    {"WrongType", kGood + "epochs: many\n", "c.yaml:5:9: key 'epochs': expected an integer, got 'many'"},
    {"FractionForInteger", kGood + "epochs: 1.5\n", "c.yaml:5:9: key 'epochs': expected an integer, got '1.5'"},
    {"ListForScalar", kGood + "epochs: [1]\n", "c.yaml:5:9: key 'epochs': expected an integer"},
    {"NullValue", kGood + "epochs:\n", "c.yaml:5:1: key 'epochs': expected an integer"},
    {"TooSmall", kGood + "epochs: 0\n", "c.yaml:5:9: key 'epochs': 0 is out of range (1 to 1000000)"},
    {"NowhereToClimb", kGood + "climb_to: O1\n", "c.yaml:5:11: key 'climb_to': has no effect without 'on_divergence: climb'"},
    {"TooBigForInteger", kGood + "seed: 99999999999999999999\n", "c.yaml:5:7: key 'seed': expected an integer"},
    {"NaN", kModel + "data: {set: digits}\noptimizer: {type: SGD, lr: .nan}\namp: {opt_level: O2}\n",
     "c.yaml:3:28: key 'optimizer.lr': "},
    {"Infinite", kModel + "data: {set: digits}\noptimizer: {type: SGD, lr: .inf}\namp: {opt_level: O2}\n",
     "c.yaml:3:28: key 'optimizer.lr': .inf is out of range (0 to 1000)"},
    {"WrongChoice", "model: {type: vgg, widths: [8]}\n" + kRest,
     "c.yaml:1:15: key 'model.type': 'vgg' is not one of mlp, convnet, resnet, alexnet"},
    {"WidthsOfAlexNet", "model: {type: alexnet, widths: [8]}\n" + kRest, "c.yaml:1:24: key 'model.widths': unknown key"},
    {"WarmupOfACycle", kGood + "schedule: {type: one_cycle, warmup_epochs: 1}\n",
     "c.yaml:5:29: key 'schedule.warmup_epochs': unknown key"},
    {"LinearUpwards", kGood + "schedule: {type: linear, final_lr: 0.2}\n",
     "c.yaml:5:11: key 'schedule': a linear schedule needs an 'optimizer.lr' above 0, and a 'final_lr' that is not above it"},
    {"CycleWithoutMomentum",
     kModel + "data: {set: digits}\noptimizer: {type: Adagrad, lr: 0.1}\nschedule: {type: one_cycle}\namp: {opt_level: O2}\n",
     "c.yaml:4:11: key 'schedule': cycles momentum, which Adagrad does not have: add 'cycle_momentum: false'"},
    {"CycleOfAnAverage",
     kModel + "data: {set: digits}\noptimizer: {type: FusedScheduleFreeAdamW, lr: 0.1}\nschedule: {type: one_cycle}\namp: "
              "{opt_level: O2}\n",
     "c.yaml:4:11: key 'schedule': cycles momentum, which FusedScheduleFreeAdamW does not have: add 'cycle_momentum: false'"},
    {"ClippedMuon", kModel + "data: {set: digits}\noptimizer: {type: Muon, lr: 0.1, clip_grad_norm: 1}\namp: {opt_level: O2}\n",
     "c.yaml:3:50: key 'optimizer.clip_grad_norm': is not for Muon, whose steps have the same length for any gradient"},
    {"AverageOfMuon",
     kModel + "data: {set: digits}\noptimizer: {type: Muon, lr: 0.1}\nema: {decay: 0.9}\namp: {opt_level: O2}\n",
     "c.yaml:4:6: key 'ema': is of one optimizer, and Muon trains beside another: use FusedAdam"},
    {"DecayAboveOne", kGood + "ema: {decay: 1.5}\n", "c.yaml:5:14: key 'ema.decay': 1.5 is out of range (0 to 1)"},
    {"AverageOfShards",
     kModel +
         "data: {set: digits}\noptimizer: {type: DistributedFusedAdam, lr: 0.1}\nema: {decay: 0.9}\namp: {opt_level: O2}\n",
     "c.yaml:4:6: key 'ema': is not for DistributedFusedAdam"},
    {"TwoWays", kGood + "torch_amp: {autocast: none}\n", "c.yaml:4:6: key 'amp': cannot be combined with 'torch_amp'"},
    {"UnknownAutocast", kPlain + "torch_amp: {autocast: fp16}\n",
     "c.yaml:4:23: key 'torch_amp.autocast': 'fp16' is not one of none, float16, bfloat16"},
    {"NoAutocast", kPlain + "torch_amp: {grad_scaler: true}\n", "c.yaml:4:12: key 'torch_amp.autocast': missing"},
    {"ScaleWithoutScaler", kPlain + "torch_amp: {autocast: float16, init_scale: 8}\n",
     "c.yaml:4:32: key 'torch_amp.init_scale': unknown key"},
    {"ShrinkingGrowth", kPlain + "torch_amp: {autocast: none, grad_scaler: true, growth_factor: 1}\n",
     "c.yaml:4:63: key 'torch_amp.growth_factor': 1 is out of range (1 to 1e+06)"},
    {"ClimbsFromNoLevel", kPlain + "torch_amp: {autocast: none}\non_divergence: climb\n",
     "c.yaml:5:16: key 'on_divergence': moves to a higher level"},
    {"ShardedWithoutLevel",
     kModel + "data: {set: digits}\noptimizer: {type: DistributedFusedAdam, lr: 0.1}\ntorch_amp: {autocast: none}\n",
     "c.yaml:4:12: key 'torch_amp': is not for DistributedFusedAdam"},
    {"BatchNormOfAConvnet", "model: {type: convnet, widths: [8], batch_norm: true}\n" + kRest,
     "c.yaml:1:37: key 'model.batch_norm': unknown key"},
    {"ScaleOfZero", kModel + "data: {set: digits, scale: 0}\noptimizer: {type: SGD, lr: 0.1}\namp: {opt_level: O2}\n",
     "c.yaml:2:28: key 'data.scale': 0 is out of range (1e-30 to 1e+30)"},
    {"MistypedSection", "modle: {type: mlp, widths: [8]}\n" + kRest,
     "c.yaml:1:1: key 'modle': unknown key. Did you mean 'model'?"},
    {"MistypedInnerKey", "model: {tpye: mlp, widths: [8]}\n" + kRest,
     "c.yaml:1:9: key 'model.tpye': unknown key. Did you mean 'type'?"},
    {"MistypedNeededKey", "model: {type: mlp, width: [8]}\n" + kRest,
     "c.yaml:1:20: key 'model.width': unknown key. Did you mean 'widths'?"},
    {"MistypedBlock", kPlain + "ampp: {opt_level: O2}\n", "c.yaml:4:1: key 'ampp': unknown key. Did you mean 'amp'?"},
    {"MistypedOptionalKey", kGood + "batchsize: 32\n", "c.yaml:5:1: key 'batchsize': unknown key; known here: model, "},
    {"MistypedChoice", kModel + "data: {set: digits}\noptimizer: {type: Sgd, lr: 0.1, momentum: 0.9}\namp: {opt_level: O2}\n",
     "c.yaml:3:19: key 'optimizer.type': 'Sgd' is not one of SGD, Adam, "},
    {"NoSection", kRest,
     "c.yaml:1:1: key 'model.type': missing; expected one of mlp, convnet, resnet, alexnet; there are the keys data, "
     "optimizer, amp"},
    {"TabIndents", "model:\n\ttype: mlp\n", "c.yaml:2:1: not YAML: a tab indents the line; indent with spaces"},
    {"TabIndentsLater", "model:\n  type: mlp\n  \twidths: [8]\n" + kRest, "c.yaml:3:3: not YAML: a tab indents the line"},
    {"ScalarForSection", "model: mlp\n" + kRest, "c.yaml:1:8: key 'model': expected a mapping"},
    {"NoLearningRate", kModel + "data: {set: digits}\noptimizer: {type: SGD}\namp: {opt_level: O2}\n",
     "c.yaml:3:12: key 'optimizer.lr': missing"},
    {"NoAmp", kModel + "data: {set: digits}\noptimizer: {type: SGD, lr: 0.1}\n", "c.yaml:1:1: key 'amp': missing"},
    {"EmptyList", "model: {type: mlp, widths: []}\n" + kRest,
     "c.yaml:1:28: key 'model.widths': the list is empty; expected a list such as [16, 32]"},
    {"TextInList", "model: {type: mlp, widths: [8, wide]}\n" + kRest,
     "c.yaml:1:28: key 'model.widths': expected a list of integers"},
    {"StagesDiffer", "model: {type: resnet, widths: [8, 8], blocks: [1]}\n" + kRest,
     "c.yaml:1:47: key 'model.blocks': has 1 stage, but 'widths' has 2"},
    {"NesterovAlone", kModel + "data: {set: digits}\noptimizer: {type: SGD, lr: 0.1, nesterov: true}\namp: {opt_level: O2}\n",
     "c.yaml:3:43: key 'optimizer.nesterov': needs a momentum"},
};

INSTANTIATE_TEST_SUITE_P(All, BadConfigs, testing::ValuesIn(kBadConfigs), [](const auto& test) { return test.param.name; });

TEST(Config, NearKeysAndValuesAreSuggested) {
  const auto suggests = [](const std::string& text, const std::string& word) {
    const auto message = complaint(text), end = ". Did you mean '" + word + "'?";
    EXPECT_EQ(message.rfind(end), message.size() - end.size()) << message;
  };
  suggests(kPlain + "ampp: {opt_level: O2}\n", "amp");
  suggests(kGood + "batchsize: 32\n", "batch_size");
  suggests(kModel + "data: {set: digits}\noptimizer: {type: Sgd, lr: 0.1}\namp: {opt_level: O2}\n", "SGD");
  suggests(kModel + "data: {set: digits}\noptimizer: {type: SGD, lr: 0.1, momentm: 0.9}\namp: {opt_level: O2}\n", "momentum");
  EXPECT_EQ(complaint(kGood + "unheard_of: 1\n").find("Did you mean"), std::string::npos);
}

TEST(Config, AllMistakesAreReportedInTheOrderOfTheFile) {
  const auto message = complaint(
      "model: {type: mlp, width: [8]}\n"
      "data: {set: digit}\n"
      "optimizer: {type: Sgd, lr: -1, momentm: 0.9}\n"
      "ampp: {opt_lvel: O2, num_losses: many}\n"
      "epochs: many\n"
      "epoch: 3\n");
  std::vector<std::string> places;
  std::istringstream lines(message);
  for (std::string line; std::getline(lines, line);) places.push_back(line.substr(0, line.find(": ")));
  // The level is read from the mistyped block, the other keys as those of SGD.
  const std::vector<std::string> expected{"c.yaml:1:20", "c.yaml:2:13", "c.yaml:3:19", "c.yaml:3:28", "c.yaml:3:32",
                                          "c.yaml:4:1",  "c.yaml:4:8",  "c.yaml:4:34", "c.yaml:5:9",  "c.yaml:6:1"};
  EXPECT_EQ(places, expected) << message;
}

// What keys there are depends on the type, and values are compared with others where all are right.
TEST(Config, ConsequencesOfAMistakeAreNotReported) {
  EXPECT_EQ(complaint("model: {kind: 3, depth: 4}\n" + kRest).find('\n'), std::string::npos);
  EXPECT_EQ(complaint("model: {type: resnet, widths: [8, x], blocks: [1]}\n" + kRest).find("stage"), std::string::npos);
}

TEST(Config, MistakesInTheAmpBlockAreReportedAtTheirPlaceInTheFile) {
  const auto block = complaint(
      kModel +
      "data: {set: digits}\noptimizer: {type: SGD, lr: 0.1}\namp:\n  opt_level: O2\n  keep_batchnorm_fp23: true\nepochs: 3\n");
  EXPECT_NE(block.find("c.yaml:6:3"), std::string::npos) << block;
  EXPECT_NE(block.find("keep_batchnorm_fp23"), std::string::npos) << block;
  EXPECT_EQ(block.find('\n'), std::string::npos) << block;
  const auto flow = complaint(kModel + "data: {set: digits}\noptimizer: {type: SGD, lr: 0.1}\namp: {opt_level: O9}\n");
  EXPECT_NE(flow.find("c.yaml:4:"), std::string::npos) << flow;
  EXPECT_NE(flow.find("O9"), std::string::npos) << flow;
}

TEST(Config, MissingFileAndFolderAreNamed) {
  const Scratch scratch;
  EXPECT_EQ(message_of<train::UserError>([&] { train::read_config(scratch / "no.yaml"); }),
            "cannot read config '" + (scratch / "no.yaml") + "': No such file or directory");
  EXPECT_EQ(message_of<train::UserError>([&] { train::read_config(scratch.path()); }),
            "cannot read config '" + scratch.path() + "': it is a folder");
}

}  // namespace
