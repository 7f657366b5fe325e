// What cases_test.py records: which case reaches which mutant.
#include <gtest/gtest.h>

#include <cstdlib>

#include "tests/mutation/mutants.h"

namespace {

const int before_main = APEX_MUTANT(1) ? 1 : 0;

int value(int x) { return APEX_MUTANT(2) ? x + 1 : x; }
int not_compared(int x) { return APEX_MUTANT(3) ? x + 1 : x; }
int of_ranks(int x) { return APEX_MUTANT(5) ? x + 1 : x; }

class SetUp : public testing::Test {
 protected:
  static void SetUpTestSuite() { shared = APEX_MUTANT(4) ? 1 : 0; }
  static int shared;
};
int SetUp::shared = 0;

bool has_compared = false;

TEST(Cases, ReachNothing) { SUCCEED(); }
TEST(Cases, Compare) {
  EXPECT_EQ(value(3), 3);
  has_compared = true;
}
TEST(Cases, FailsAlone) { EXPECT_TRUE(has_compared); }
TEST(Cases, DoNotCompare) { not_compared(3); }
TEST(Cases, StartAnotherProgram) {
  if (!std::getenv("RANK")) {
    ASSERT_EQ(std::system(
                  (std::string("RANK=1 ") + testing::internal::GetArgvs()[0] + " --gtest_filter=*Another* >/dev/null").c_str()),
              0);
  } else {
    EXPECT_EQ(of_ranks(3), 3);
  }
}
TEST_F(SetUp, First) { SUCCEED(); }
TEST_F(SetUp, Second) { EXPECT_EQ(shared + before_main, 0); }

}  // namespace
