// Rows of comma-separated values: every table of the project consists of them.
#include <apex_cpp/files/csv.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <limits>

namespace {

TEST(CsvRow, WritesTextNumbersAndBools) {
  EXPECT_EQ(apex::csv_row("a", std::string("b c"), 1, int64_t{-2}, size_t{3}, true, false), "a,b c,1,-2,3,1,0\n");
  EXPECT_EQ(apex::csv_row(std::string(), "", 1), ",,1\n");
}

TEST(CsvRow, QuotesSpecialCharacters) {
  EXPECT_EQ(apex::csv_row("a,b", "say \"x\"", "two\nlines", "cr\rhere"),
            "\"a,b\",\"say \"\"x\"\"\",\"two\nlines\",\"cr\rhere\"\n");
}

TEST(CsvField, NumbersReadBackAsTheSameValue) {
  for (const double value : {0.1, 1.0 / 3, 65536.0, 5e-324, std::numeric_limits<double>::max(), -0.0, std::ldexp(1.0, 60)}) {
    const double back = std::strtod(apex::csv_field(value).c_str(), nullptr);
    EXPECT_EQ(std::memcmp(&back, &value, sizeof value), 0) << apex::csv_field(value);
  }
  EXPECT_EQ(apex::csv_field(0.1), "0.1");
  EXPECT_EQ(apex::csv_field(65536.0), "65536");
  EXPECT_EQ(apex::csv_field(0.1f), "0.1");  // a float's digits, not those of the double next to it
}

TEST(CsvField, WritesInfAndNanByName) { EXPECT_EQ(apex::csv_row(INFINITY, -INFINITY, NAN, -NAN), "inf,-inf,nan,nan\n"); }

}  // namespace
