#include "results.h"

#include <gtest/gtest.h>

#include <limits>
#include <sstream>

namespace {

std::vector<bench::Result> two_results() {
  return {{"ops", "mm", 1, {{"amp ns", 1234.4}, {"ratio", 0.98765}}},
          {"ops", "cat, \"promoted\"", 12, {{"amp ns", 7.5}, {"ratio", 12.4}}}};
}

TEST(Table, AlignsNamesLeftAndNumbersRight) {
  std::ostringstream out;
  bench::print_table(out, two_results());
  EXPECT_EQ(out.str(),
            "ops              threads  amp ns  ratio\n"
            "mm                     1    1234  0.988\n"
            "cat, \"promoted\"       12   7.500     12\n\n");
}

TEST(Table, OfNoRowsIsEmpty) {
  std::ostringstream out;
  bench::print_table(out, {});
  EXPECT_EQ(out.str(), "");
}

std::vector<bench::Result> results_with_remarks() {
  const double none = std::numeric_limits<double>::quiet_NaN();
  return {{"mlp", "O4", 2, {{"ms", 7.5}, {"ratio", 1}}},
          {"mlp", "O5", 2, {{"ms", none}, {"ratio", none}}, "failed: no, really"}};
}

TEST(Table, PutsRemarksAfterTheNumbersAndADashForMissingOnes) {
  std::ostringstream out;
  bench::print_table(out, results_with_remarks());
  EXPECT_EQ(out.str(),
            "mlp  threads     ms  ratio\n"
            "O4         2  7.500  1.000\n"
            "O5         2      -      -  failed: no, really\n\n");
}

TEST(Csv, HasRemarksAndOmitsMissingNumbers) {
  std::ostringstream out;
  bench::write_csv(out, "train", results_with_remarks());
  EXPECT_EQ(out.str(),
            "suite,group,benchmark,threads,quantity,value\n"
            "train,mlp,O4,2,ms,7.5\n"
            "train,mlp,O4,2,ratio,1\n"
            "train,mlp,O5,2,remark,\"failed: no, really\"\n");
}

TEST(Csv, HasOneLinePerNumberAndQuotesSpecialCharacters) {
  std::ostringstream out;
  bench::write_csv(out, "casts", two_results());
  EXPECT_EQ(out.str(),
            "suite,group,benchmark,threads,quantity,value\n"
            "casts,ops,mm,1,amp ns,1234.4\n"
            "casts,ops,mm,1,ratio,0.98765\n"
            "casts,ops,\"cat, \"\"promoted\"\"\",12,amp ns,7.5\n"
            "casts,ops,\"cat, \"\"promoted\"\"\",12,ratio,12.4\n");
}

}  // namespace
