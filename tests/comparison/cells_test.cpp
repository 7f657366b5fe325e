#include "cells.h"

#include <apex_cpp/amp.h>
#include <apex_cpp/amp/checkpoint.h>
#include <apex_cpp/optimizers.h>

#include <csignal>
#include <sstream>

#include "errors.h"
#include "logging/run_folder.h"
#include "shell.h"
#include "state_bytes.h"
#include "tests/examples/scratch.h"

namespace {

class Listing : public testing::Test {
 protected:
  void SetUp() override {
    cell_.config.model = {"mlp", {4}, {}, 0};
    cell_.config.data.set = "digits";
    cell_.config.optimizer.type = "SGD";
    cell_.config.optimizer.lr = 0.1;
    scratch_.write("cell.yaml", train::to_yaml(cell_.config));
    scratch_.write("times.csv", "step,forward_ms\n1,2\n");
    scratch_.write("run/steps.csv", "epoch,step\n1,1\n");
    comparison::write_listing(folder_);
  }

  bool finished() const { return comparison::is_finished(folder_, cell_); }

  Scratch scratch_;
  comparison::CellFolder folder_{scratch_.path()};
  comparison::Cell cell_;
};

TEST_F(Listing, RecognizesACompleteCell) {
  EXPECT_TRUE(finished());
  scratch_.write("times.csv", "step,forward_ms\n1,3\n");
  EXPECT_FALSE(finished());
  scratch_.write("times.csv", "step,forward_ms\n1,2\n");
  EXPECT_TRUE(finished());
}

TEST_F(Listing, DetectsMissingAndUnexpectedFiles) {
  scratch_.write("run/more.csv", "");
  EXPECT_FALSE(finished());
  std::filesystem::remove(scratch_ / "run/more.csv");
  EXPECT_TRUE(finished());
  std::filesystem::remove(scratch_ / "run/steps.csv");
  EXPECT_FALSE(finished());
}

TEST_F(Listing, BelongsToOneConfig) {
  cell_.config.epochs += 1;
  EXPECT_FALSE(finished());
}

TEST_F(Listing, IsIncompleteWithoutTheListing) {
  std::filesystem::remove(scratch_ / "files.csv");
  EXPECT_FALSE(finished());
}

TEST(Shell, PassesOnLinesAndTheExitCode) {
  std::vector<std::string> lines;
  const auto keep = [&](const std::string& line) { lines.push_back(line); };
  EXPECT_EQ(comparison::run_lines("sh -c 'echo one; echo two >&2; printf three; exit 3'", keep), 3);
  EXPECT_EQ(lines, (std::vector<std::string>{"one", "two", "three"}));
  EXPECT_EQ(comparison::run_lines("sh -c 'kill -9 $$'", keep), 128 + SIGKILL);
}

TEST(Shell, QuotesAnything) {
  std::string printed;
  comparison::run_lines("printf %s " + comparison::quoted("a 'b' $c \"d\""), [&](const std::string& line) { printed = line; });
  EXPECT_EQ(printed, "a 'b' $c \"d\"");
}

TEST(Shell, RemovesFolders) {
  const Scratch scratch;
  scratch.write("it's/a/file", "");
  comparison::remove_folder(scratch / "it's");
  EXPECT_FALSE(std::filesystem::exists(scratch / "it's"));
  comparison::remove_folder(scratch / "it's");  // what is not there
}

TEST(OptimizerState, RejectsFilesThatAreNotCheckpoints) {
  const Scratch scratch;
  scratch.write("short", "abc");
  EXPECT_THROW(comparison::optimizer_state(scratch / "short", "float32"), train::UserError);
  EXPECT_THROW(comparison::optimizer_state(scratch / "none", "float32"), train::UserError);
}

// The rows of moments beside the bytes that the optimizer holds.
TEST(OptimizerState, HasTheSizesOfTheStorageOfMoments) {
  namespace amp = apex::amp;
  using namespace apex::optimizers;
  using apex::optimizers::detail::Moment;
  const Scratch scratch;
  for (const auto storage : {MomentStorage::float32, MomentStorage::bfloat16, MomentStorage::int8}) {
    torch::nn::Linear net(torch::nn::LinearOptions(42, 25).bias(false));
    FusedAdam optimizer(net->parameters(), FusedAdamOptions(0.1).moment_storage(storage));
    auto [model, opt] = amp::initialize(net, optimizer, "O5", amp::InitializeOptions().verbosity(0));
    amp::scale_loss(model->forward(torch::ones({2, 42})).to(at::kFloat).sum(), opt).backward();
    opt.step();
    amp::save_checkpoint(scratch / "state", model, opt);
    const std::string rows = comparison::optimizer_state(scratch / "state", name_of(storage));
    int64_t bytes = 0;
    std::istringstream lines(rows);
    for (std::string line; std::getline(lines, line);) {
      if (line.find("/exp_avg") != std::string::npos) bytes += std::stoll(line.substr(line.rfind(',') + 1));
    }
    auto& state = static_cast<FusedAdamParamState&>(*opt.state().begin()->second);
    const at::Tensor stepped = opt.param_groups()[0].params()[0];
    const bool has_codes = storage == MomentStorage::int8;
    const at::Tensor mean = has_codes ? state.exp_avg_codes.codes_for(stepped, Moment::mean) : state.exp_avg;
    const at::Tensor square = has_codes ? state.exp_avg_sq_codes.codes_for(stepped, Moment::square) : state.exp_avg_sq;
    EXPECT_EQ(bytes, static_cast<int64_t>(mean.nbytes() + square.nbytes())) << rows;
  }
}

}  // namespace
