// The progress display of the programs.
#include "common/progress.h"

#include <sstream>

#include <gtest/gtest.h>
#include <unistd.h>

namespace {

const common::Standing kStanding{"epoch 3/12", 11, 22, "loss 0.2500", 75};

TEST(Progress, TheLineHasEveryFigureAndAHalfFullBar) {
  EXPECT_EQ(common::progress_line(kStanding, 120), "epoch 3/12 [###############...............] 11/22  loss 0.2500  ETA 1:15");
}

TEST(Progress, TheLineFitsANarrowTerminal) {
  EXPECT_EQ(common::progress_line(kStanding, 50), "epoch 3/12 [####....] 11/22  loss 0.2500  ETA 1:15");
  EXPECT_EQ(common::progress_line(kStanding, 46), "epoch 3/12 11/22  loss 0.2500  ETA 1:15");
  EXPECT_EQ(common::progress_line(kStanding, 20), "epoch 3/12 11/22  lo");
}

TEST(Progress, TheLineWithoutDetailsHasNoGap) { EXPECT_EQ(common::progress_line({"mm", 0, 4, "", 0}, 20), "mm 0/4  ETA 0:00"); }

TEST(Progress, TimesAreFormattedLikeAClock) {
  EXPECT_EQ(common::clock_time(0), "0:00");
  EXPECT_EQ(common::clock_time(75.4), "1:15");
  EXPECT_EQ(common::clock_time(3675), "1:01:15");
  EXPECT_EQ(common::clock_time(-1), "0:00");
}

TEST(Progress, ALogFileGetsPlainLinesOnly) {
  std::ostringstream out;
  {
    common::Progress progress(out, {/*live=*/false, 80});
    progress.begin("epochs");
    progress.show(kStanding);  // the first half minute is not over
    progress.line("epoch done");
  }
  EXPECT_EQ(out.str(), "epochs\nepoch done\n");
}

TEST(Progress, ATerminalGetsOneLineThatIsRedrawnAndErased) {
  const auto drawn = "\r\x1b[K" + common::progress_line(kStanding, 80) + "\r";
  std::ostringstream out;
  {
    common::Progress progress(out, {/*live=*/true, 80});
    progress.begin("epochs");  // the line that follows says it
    progress.show(kStanding);
    progress.line("epoch done");
    progress.show(kStanding);
  }
  EXPECT_EQ(out.str(), drawn + "\r\x1b[Kepoch done\n" + drawn + "\r\x1b[K");
}

TEST(Terminal, APipeIsNotATerminal) {
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_FALSE(common::terminal_of(ends[1]).live);
  close(ends[0]);
  close(ends[1]);
}

}  // namespace
