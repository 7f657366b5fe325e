// The ranks that survive a failure report it and end.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/distributed/launcher.h"

namespace apex::testing {
namespace {

constexpr int kErrorReached = 3;
constexpr int kGraceSeconds = 20;
constexpr int kRanks = 3;

std::vector<std::string> faulty(const std::string& fault) {
  const auto folder = this_program();
  return {folder.substr(0, folder.rfind('/')) + "/faulty_rank", fault};
}

void expect_error(RankProcess& process, const std::vector<std::string>& texts) {
  const auto output = process.output();
  EXPECT_TRUE(WIFEXITED(process.status) && WEXITSTATUS(process.status) == kErrorReached) << process.status << "\n" << output;
  for (const auto& text : texts) EXPECT_NE(output.find(text), std::string::npos) << "no '" << text << "' in\n" << output;
}

bool was_killed(const RankProcess& process) { return WIFSIGNALED(process.status) && WTERMSIG(process.status) == SIGKILL; }

class SurvivorsOf : public ::testing::TestWithParam<int> {};

TEST_P(SurvivorsOf, NameTheLastRankThatWasKilled) {
  const int count = GetParam(), last = count - 1;
  Ranks ranks(count, faulty("last_rank_dies"));
  ranks.wait(kGraceSeconds);
  EXPECT_TRUE(was_killed(ranks[last]));
  for (int rank = 0; rank < last; ++rank)
    expect_error(ranks[rank], {"rank " + std::to_string(rank) + " of " + std::to_string(count) + ": the second sum failed",
                               "No report from rank " + std::to_string(last) + " within"});
}

TEST(Survivors, ReportThatTheStoreEndedWithRank0) {
  Ranks ranks(kRanks, faulty("first_rank_dies"));
  ranks.wait(kGraceSeconds);
  EXPECT_TRUE(was_killed(ranks[0]));
  for (int rank = 1; rank < kRanks; ++rank)
    expect_error(ranks[rank], {"the second sum failed", "The store through which the ranks report has ended", "rank 0"});
}

TEST(Survivors, WaitNoLongerThanTheTimeoutForAHangingRank) {
  const int count = kRanks, last = count - 1;
  Ranks ranks(count, faulty("last_rank_hangs"));
  for (int rank = 0; rank < last; ++rank) {
    ASSERT_TRUE(ranks.ends_within(rank, kGraceSeconds));
    expect_error(ranks[rank], {"the second sum failed", "No report from rank " + std::to_string(last)});
  }
}

// Rank 0 waits until all have heard the reports, so that they find the store. The others end at once.
TEST(Survivors, EndOnceTheyHaveAllReportsAndBeforeRank0) {
  const int last = kRanks - 1;
  Ranks ranks(kRanks, faulty("last_rank_reports_and_hangs"));
  ASSERT_TRUE(ranks.ends_within(1, kGraceSeconds));
  expect_error(ranks[1], {"the first sum failed: another rank has failed", "rank 0: the first sum failed",
                          "rank " + std::to_string(last) + ": the first sum failed: no memory"});
  EXPECT_EQ(ranks[1].output().find("The store through which"), std::string::npos) << ranks[1].output();
  EXPECT_FALSE(ranks[0].ended) << "rank 0 waits for rank " << last;
}

TEST(Survivors, NameARankThatEndedWithAnError) {
  const int count = kRanks, last = count - 1;
  Ranks ranks(count, faulty("last_rank_throws"));
  ranks.wait(kGraceSeconds);
  expect_error(ranks[last], {"a file is missing"});
  for (int rank = 0; rank < last; ++rank)
    expect_error(ranks[rank], {"the first sum failed", "No report from rank " + std::to_string(last)});
}

TEST(Survivors, AreNotifiedOfAFailureInAnotherGroup) {
  Ranks ranks(3, faulty("last_rank_of_a_group_dies"));
  ranks.wait(kGraceSeconds);
  expect_error(ranks[1], {"the pair's sum failed", "No report from rank 1"});
  expect_error(ranks[0], {"everyone's sum failed"});
}

TEST(Survivors, NameTheModelThatDiffers) {
  const int count = kRanks;
  Ranks ranks(count, faulty("shapes_differ"));
  ranks.wait(kGraceSeconds);
  for (int rank = 0; rank < count; ++rank)
    expect_error(ranks[rank],
                 {"the models: rank " + std::to_string(count - 1) + " differs from rank 0", "weight 3 x 4", "weight 3 x 3"});
}

/// A file that ranks use to signal each other, removed at the end.
struct FileOfTest {
  explicit FileOfTest(const std::string& suffix) : path(this_program() + "." + std::to_string(::getpid()) + suffix) {}
  ~FileOfTest() { ::unlink(path.c_str()); }

  std::string path;
};

/// A checkpoint file that interrupted training leaves behind.
struct CheckpointFile : FileOfTest {
  CheckpointFile() : FileOfTest(".checkpoint"), variable("CHECKPOINT=" + path) {}

  std::string variable;

  void expect_whole() const {
    Ranks ranks(1, faulty("load_the_checkpoint"), {variable});
    ranks.wait(kGraceSeconds);
    EXPECT_TRUE(ranks.all_succeeded()) << ranks.outputs();
  }
};

class SurvivorsOfTraining : public ::testing::TestWithParam<const char*> {};

TEST_P(SurvivorsOfTraining, NameTheRankAndKeepTheLastCheckpoint) {
  const CheckpointFile checkpoint;
  Ranks ranks(kRanks, faulty(GetParam()), {checkpoint.variable});
  ranks.wait(kGraceSeconds);
  EXPECT_TRUE(was_killed(ranks[kRanks - 1]));
  for (int rank = 0; rank < kRanks - 1; ++rank)
    expect_error(ranks[rank], {"of DistributedDataParallel failed", "No report from rank " + std::to_string(kRanks - 1)});
  checkpoint.expect_whole();
}

INSTANTIATE_TEST_SUITE_P(Of, SurvivorsOfTraining, ::testing::Values("last_rank_dies_in_forward", "last_rank_dies_in_backward"));

TEST(Survivors, NameARankThatContinuesAfterAnErrorInBackward) {
  const int count = kRanks, last = count - 1;
  Ranks ranks(count, faulty("last_rank_continues_after_an_error"));
  ranks.wait(kGraceSeconds);
  for (int rank = 0; rank < last; ++rank)
    expect_error(ranks[rank], {"a backward pass of DistributedDataParallel failed: rank " + std::to_string(last) +
                               " sent gradients of a different pass"});
  expect_error(ranks[last], {"of DistributedDataParallel failed"});
}

TEST(Survivors, KeepTheCheckpointBeforeTheIncompleteOne) {
  const CheckpointFile checkpoint;
  Ranks ranks(kRanks, faulty("first_rank_dies_in_checkpoint"), {checkpoint.variable});
  ranks.wait(kGraceSeconds);
  EXPECT_TRUE(was_killed(ranks[0]));
  for (int rank = 1; rank < kRanks; ++rank) expect_error(ranks[rank], {"waiting for the checkpoint failed", "rank 0"});
  checkpoint.expect_whole();
}

TEST(Survivors, ReportThatTheOptLevelsDiffer) {
  const CheckpointFile checkpoint;
  Ranks ranks(2, faulty("last_rank_trains_at_a_different_level"), {checkpoint.variable});
  ranks.wait(kGraceSeconds);
  for (const int rank : {0, 1}) expect_error(ranks[rank], {"rank 1 differs from rank 0", "Half", "Float", "opt level"});
}

INSTANTIATE_TEST_SUITE_P(Ranks, SurvivorsOf, ::testing::Values(2, 4), ::testing::PrintToStringParamName());

TEST(Start, NamesTheMissingRanks) {
  Ranks ranks(3, faulty("last_rank_never_starts"));
  ranks.wait(kGraceSeconds);
  expect_error(ranks[0], {"rank 0 of 3", "without success for rank 1, 2"});
}

class LateRank : public ::testing::TestWithParam<int> {};

TEST_P(LateRank, TrainsWithTheOthers) {
  const CheckpointFile checkpoint;
  const FileOfTest word(".word");
  const auto late = "LATE=" + std::to_string(GetParam());
  Ranks ranks(2, faulty("one_rank_is_late"), {checkpoint.variable, late, "READY=" + word.path});
  ranks.wait(kGraceSeconds);
  EXPECT_TRUE(ranks.all_succeeded()) << ranks.outputs();
}

INSTANTIATE_TEST_SUITE_P(Number, LateRank, ::testing::Values(0, 1), ::testing::PrintToStringParamName());

// The store's file has the other's arrival when the late one starts.
TEST(Start, AcceptsARankThatJoinsWhileAnotherWaits) {
  const CheckpointFile checkpoint;
  const FileOfTest store(".store");
  Ranks ranks(2, faulty("one_rank_is_late"),
              {checkpoint.variable, "LATE=1", "READY=" + store.path, "STORE=file://" + store.path});
  ranks.wait(kGraceSeconds);
  EXPECT_TRUE(ranks.all_succeeded()) << ranks.outputs();
}

TEST(Start, ReportsToALateRankThatTheOthersGaveUp) {
  const FileOfTest word(".word");
  Ranks ranks(2, faulty("last_rank_starts_after_the_first_gave_up"), {"READY=" + word.path});
  ASSERT_TRUE(ranks.ends_within(1, kGraceSeconds));
  expect_error(ranks[1], {"rank 1 of 2 started too late: rank 0 waited", "without success for rank 1", "timeout"});
}

// One process after the other: the first has ended when the second starts.
void expect_that_the_second_is_too_late(const std::string& meeting_place, const std::vector<std::string>& texts) {
  Ranks first(1, faulty("gives_up_waiting"), {"WORLD_SIZE=2", meeting_place});
  first.wait(kGraceSeconds);
  expect_error(first[0], {"rank 0 of 2", "without success for rank 1"});
  Ranks second(1, faulty("gives_up_waiting"), {"WORLD_SIZE=2", "RANK=1", meeting_place});
  second.wait(kGraceSeconds);
  expect_error(second[0], texts);
}

TEST(Start, ReportsToALateRankThatTheOthersHaveEnded) {
  const FileOfTest store(".store");
  expect_that_the_second_is_too_late("STORE=file://" + store.path, {"rank 1 of 2 started too late: rank 0 waited"});
  const int port = Port().number();
  expect_that_the_second_is_too_late("MASTER_PORT=" + std::to_string(port),
                                     {"rank 1 of 2", "cannot be used", "it ends if another rank does not start in time"});
}

void expect_start_error(const std::vector<std::string>& environment, const std::vector<std::string>& texts) {
  Ranks ranks(1, faulty("start"), environment);
  ranks.wait(kGraceSeconds);
  expect_error(ranks[0], texts);
}

TEST(Start, NamesAMissingOrInvalidVariable) {
  expect_start_error({"RANK="}, {"environment variable RANK is not set", "torchrun --no-python"});
  expect_start_error({"RANK=zero"}, {"RANK is 'zero', not a number"});
  expect_start_error({"RANK=1"}, {"rank 1 is outside a world of 1"});
  expect_start_error({"WORLD_SIZE=0"}, {"(rank 0): the environment variable WORLD_SIZE is '0'"});
  expect_start_error({"WORLD_SIZE=2x"}, {"WORLD_SIZE is '2x'"});
  expect_start_error({"MASTER_ADDR="}, {"(rank 0): the environment variable MASTER_ADDR is not set"});
  expect_start_error({"MASTER_PORT=70000"}, {"MASTER_PORT is '70000', not a number from 0 to 65535"});
}

TEST(Start, NamesADuplicateRank) {
  Ranks ranks(3, faulty("last_rank_calls_itself_1"));
  ranks.wait(0);  // returns at once: the other ranks would wait for rank 2 for a long time
  EXPECT_NE(ranks.outputs().find("rank 1 has already joined"), std::string::npos) << ranks.outputs();
}

TEST(Start, NamesDifferentWorldSizes) {
  Ranks ranks(2, faulty("last_rank_has_a_larger_world_size"));
  ranks.wait(kGraceSeconds);
  expect_error(ranks[0], {"rank 0 has a WORLD_SIZE of 2, but rank 1 has a WORLD_SIZE of 3"});
}

TEST(Start, ReportsThatThePortIsInUse) {
  const Port port;
  expect_start_error({"MASTER_PORT=" + std::to_string(port.number())}, {"cannot be used", "choose another port (MASTER_PORT)"});
}

TEST(Start, MayBeRepeated) {
  Ranks ranks(3, faulty("start_twice"));
  ranks.wait(kGraceSeconds);
  EXPECT_TRUE(ranks.all_succeeded()) << ranks.outputs();
}

TEST(Start, UsesTheBackendThatOneRankWasGiven) {
  Ranks ranks(2, faulty("one_rank_names_the_backend"));
  ranks.wait(kGraceSeconds);
  EXPECT_TRUE(ranks.all_succeeded()) << ranks.outputs();
}

// All ranks use Gloo then, and rank 0 says so.
TEST(Start, WarnsOnRank0AloneOfAGpuThatIsNotUsed) {
  for (const int with_gpu : {0, 1}) {
    Ranks ranks(2, faulty("one_rank_has_a_gpu"), {"WITH_GPU=" + std::to_string(with_gpu), "CUDA_VISIBLE_DEVICES="});
    ranks.wait(kGraceSeconds);
    EXPECT_TRUE(ranks.all_succeeded()) << ranks.outputs();
    const int other = 1 - with_gpu;
    const auto warning = "rank " + std::to_string(other) + " has no GPU: all ranks use Gloo";
    EXPECT_EQ(ranks[other].output().find(warning) != std::string::npos, other == 0) << ranks.outputs();
  }
}

TEST(Start, IsMissedByWhatNeedsAProcessGroup) {
  Ranks ranks(1, faulty("wraps_a_model_before_the_start"));
  ranks.wait(kGraceSeconds);
  expect_error(ranks[0], {"no process group was made: call apex::parallel::init_process_group() first"});
}

TEST(Start, RejectsAnUnknownInitMethod) {
  Ranks ranks(1, faulty("meet_at_a_file"), {"STORE=mpi://here"});
  ranks.wait(kGraceSeconds);
  expect_error(ranks[0], {"the init_method is 'mpi://here': use env://, tcp://HOST:PORT or file://PATH"});
}

TEST(Start, CanRendezvousAtAnAddressWithoutTheVariables) {
  const std::string address = "127.0.0.1:" + std::to_string(Port().number());
  Ranks ranks(2, faulty("meet_at_a_file"), {"STORE=tcp://" + address, "MASTER_ADDR=", "MASTER_PORT="});
  ranks.wait(kGraceSeconds);
  EXPECT_TRUE(ranks.all_succeeded()) << ranks.outputs();
}

TEST(Start, RejectsABackendThatIsUnknownOrNeedsAGpu) {
  expect_start_error({"BACKEND=mpi"}, {"there is no backend 'mpi': use gloo, nccl or cpu:gloo,cuda:nccl"});
  expect_start_error({"BACKEND=nccl", "CUDA_VISIBLE_DEVICES="}, {"the backend nccl needs"});
}

TEST(Start, CanRendezvousAtAFileThatIsRemovedAfterwards) {
  const FileOfTest store(".store");
  for (const std::string again : {"", "again"}) {
    Ranks ranks(2, faulty("meet_at_a_file"), {"STORE=file://" + store.path});
    ranks.wait(kGraceSeconds);
    EXPECT_TRUE(ranks.all_succeeded()) << again << ranks.outputs();
  }
  EXPECT_NE(::access(store.path.c_str(), F_OK), 0);
}

TEST(Start, NamesAFileLeftByAnEarlierRun) {
  const FileOfTest left(".left");
  const std::string store = "STORE=file://" + left.path;
  Ranks(2, faulty("meet_at_a_file"), {store, "DIE=1"}).wait(kGraceSeconds);
  Ranks ranks(2, faulty("meet_at_a_file"), {store});
  ranks.wait(kGraceSeconds);
  for (const int rank : {0, 1}) expect_error(ranks[rank], {"already", "remove a store's file that an earlier run left"});
}

}  // namespace
}  // namespace apex::testing
