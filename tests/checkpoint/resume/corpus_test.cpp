// Checkpoints of released versions still load, bit for bit.
#include "tests/checkpoint/resume/corpus.h"

#include <apex_cpp/amp/checkpoint/content.h>

#include <map>

#include "tests/amp/support.h"

namespace apex::test {
namespace {

class Corpus : public AmpTest, public ::testing::WithParamInterface<CorpusEntry> {};

TEST_P(Corpus, LoadsAndContinuesAsInTheOriginalRun) {
  const auto& entry = GetParam();
  ASSERT_GE(entry.losses.size(), 3u);
  CorpusRun run(entry.optimizers, entry.level, /*seed=*/8);
  ASSERT_NE(run.checksum(), entry.checksum);
  const auto loaded = run.load(std::string(CORPUS_FOLDER) + "/" + entry.file);
  EXPECT_EQ(run.checksum(), entry.checksum);
  EXPECT_EQ(loaded.notes, std::vector<std::string>());
  EXPECT_EQ(loaded.opt_level, entry.level);
  EXPECT_EQ(loaded.metadata.at("step").to_int(), 3);
  EXPECT_EQ(loaded.metadata.at("optimizers").to_string(), entry.optimizers);
  const auto path = std::string(CORPUS_FOLDER) + "/" + entry.file;
  const Folder folder;
  run.save(folder / "again", {});
  const auto before = amp::detail::read_safetensors(path), again = amp::detail::read_safetensors(folder / "again");
  const std::map<std::string, torch::Tensor> tensors(again.tensors.begin(), again.tensors.end());
  for (const auto& [name, tensor] : before.tensors) {  // also moments and random numbers
    ASSERT_EQ(tensors.count(name), 1u) << name;
    EXPECT_TRUE(tensors.at(name).equal(tensor)) << name;
  }
  const auto scalers = amp::detail::content_of(before).scalers, now = amp::detail::content_of(again).scalers;
  ASSERT_EQ(now.size(), scalers.size());
  for (size_t i = 0; i < now.size(); ++i) {
    EXPECT_EQ(now[i].loss_scale, scalers[i].loss_scale);
    EXPECT_EQ(now[i].unskipped, scalers[i].unskipped);
  }
  const auto losses = run.run(3, 6);
  ASSERT_EQ(losses.size(), entry.losses.size());
  // Other processors sum in other orders. A BF16 output may then be a neighbour of the recorded one, 2^-8 of it away, which
  // changes a squared error by 2^-7 of it. Such gradients moved the weights in up to three steps before: two and a half times
  // that.
  for (size_t i = 0; i < losses.size(); ++i) EXPECT_NEAR(losses[i], entry.losses[i], 2e-2 * std::abs(entry.losses[i])) << i;
}
INSTANTIATE_TEST_SUITE_P(Files, Corpus, ::testing::ValuesIn(read_corpus(CORPUS_FOLDER)),
                         [](const ::testing::TestParamInfo<CorpusEntry>& test) {
                           std::string name = test.param.optimizers + test.param.level;
                           std::replace(name.begin(), name.end(), '+', '_');
                           return name;
                         });

TEST(CorpusFolder, HasTheCheckpoints) { EXPECT_GE(read_corpus(CORPUS_FOLDER).size(), 10u); }

}  // namespace
}  // namespace apex::test
