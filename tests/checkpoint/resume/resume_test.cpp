// BUG-10, SD-*: a resumed run continues as if it had not been interrupted, for every optimizer and level.
#include <apex_cpp/optimizers.h>
#include <apex_cpp/parallel.h>

#include "tests/amp/support.h"
#include "tests/checkpoint/resume/training.h"

namespace apex::test {
namespace {

constexpr int kSaved = 3, kEnd = 6;
const char* const kLevels[] = {"plain", "O0", "O1", "O2", "O3", "O4", "O5", "O6"};

class Resume : public AmpTest, public ::testing::WithParamInterface<std::string> {
 protected:
  Folder folder_;
};

TEST_P(Resume, Bug10ResumingChangesNoBitAtAnyLevel) {
  for (const char* level : kLevels) {
    if (!trains(GetParam(), level)) continue;
    SCOPED_TRACE(level);
    const auto file = folder_ / "run.ckpt";
    Training run(GetParam(), level);
    run.run(0, kSaved);
    const auto at_save = run.bytes();
    run.save(file);
    EXPECT_EQ(run.bytes(), at_save) << "saving changed something";
    const std::vector<double> before = run.losses;
    run.run(kSaved, kEnd);
    const auto expected = run.bytes();

    for (int trained_before : {0, 2}) {
      Training resumed(GetParam(), level, /*seed=*/17);
      resumed.run(0, trained_before);
      resumed.losses = before;
      EXPECT_EQ(resumed.load(file).notes, std::vector<std::string>());
      EXPECT_EQ(resumed.bytes(), at_save) << trained_before;
      resumed.save(folder_ / "again.ckpt");
      EXPECT_EQ(read_bytes(folder_ / "again.ckpt"), read_bytes(file)) << "the same state gives another file";
      resumed.run(kSaved, kEnd);
      EXPECT_EQ(resumed.losses, run.losses) << trained_before;
      EXPECT_EQ(resumed.bytes(), expected) << trained_before;
    }
  }
}

TEST_P(Resume, ACheckpointFromBeforeTheFirstStepRestartsTheRun) {
  for (const char* level : kLevels) {
    if (!trains(GetParam(), level)) continue;
    SCOPED_TRACE(level);
    Training run(GetParam(), level);
    run.save(folder_ / "start.ckpt");
    run.run(0, kSaved);
    const auto expected = run.bytes();
    run.load(folder_ / "start.ckpt");
    run.run(0, kSaved);
    EXPECT_EQ(run.bytes(), expected);
  }
}
INSTANTIATE_TEST_SUITE_P(Optimizers, Resume, ::testing::ValuesIn(optimizer_names()),
                         [](const auto& test) { return test.param; });

/// As a program derives from a fused class.
struct OwnAdam : optimizers::FusedAdam {
  using FusedAdam::FusedAdam;
};

template <class Opt>
void expect_exact_masters(Mlp& model, Opt& opt) {
  const Folder folder;
  for (int i = 0; i < 3; ++i) {
    opt.zero_grad();
    model->forward(features().to(torch::kBFloat16)).square().mean().backward();
    opt.step();
  }
  const auto master = [&] {
    auto& state = *opt.state().at(model->fc1->weight.unsafeGetTensorImpl());
    return bytes_of(static_cast<optimizers::FusedAdamParamState&>(state).master_param);
  };
  const auto before = master();
  amp::save_checkpoint(folder / "run.ckpt", model, opt);
  EXPECT_EQ(amp::load_checkpoint(folder / "run.ckpt", model, opt).notes, std::vector<std::string>());
  EXPECT_EQ(master(), before);
}

TEST(ResumeOwnMasters, OfWrappedAndDerivedClassesKeepTheirBits) {
  const auto options = optimizers::FusedAdamOptions(1e-3).capturable(true).master_weights(true);
  Mlp of_larc, of_own;
  of_larc->to(torch::kBFloat16);
  of_own->to(torch::kBFloat16);
  parallel::LARC<optimizers::FusedAdam> larc(optimizers::FusedAdam(of_larc->parameters(), options));
  expect_exact_masters(of_larc, larc);
  OwnAdam own(of_own->parameters(), options);
  expect_exact_masters(of_own, own);
}

}  // namespace
}  // namespace apex::test
