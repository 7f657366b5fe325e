#include "measure.h"

#include <gtest/gtest.h>

namespace {

using bench::Variant;

TEST(Median, IsTheMiddleOfAnOddNumberOfValues) {
  EXPECT_EQ(bench::median({5, 1, 100}), 5);
  EXPECT_EQ(bench::median({3}), 3);
}

TEST(Median, IsTheMeanOfTheMiddleTwoOfAnEvenNumber) {
  EXPECT_EQ(bench::median({1, 100, 4, 2}), 3);
  EXPECT_EQ(bench::median({7, 7, 9, 9}), 8);
}

TEST(Interleave, RunsEveryVariantOnceARoundAndRotatesTheFirst) {
  std::string order;
  const auto variant = [&](const char* name) {
    return Variant{name, [&order, name] { return order += name, static_cast<double>(order.size()); }};
  };
  int rounds_done = 0;
  const auto results = bench::interleave({variant("a"), variant("b"), variant("c")}, 3, [&](int done) { rounds_done = done; });
  EXPECT_EQ(order,
            "abc"
            "abc"
            "bca"
            "cab");  // the first round warms up
  EXPECT_EQ(rounds_done, 3);
  EXPECT_EQ(results, (bench::Rounds{{4, 9, 11}, {5, 7, 12}, {6, 8, 10}}));
}

TEST(Interleave, SkipsRoundsOfAVariantEvenly) {
  std::string order;
  const auto variant = [&](const char* name, int most_rounds) {
    return Variant{name, [&order, name] { return order += name, 1.0; }, most_rounds};
  };
  const auto results = bench::interleave({variant("a", 2), variant("b", 100)}, 6, [](int) {});
  EXPECT_EQ(order,
            "ab"  // warms up
            "b"
            "b"
            "ab"
            "b"
            "b"
            "ba");
  EXPECT_EQ(results[0].size(), 2);
  EXPECT_EQ(results[1].size(), 6);
}

TEST(NanosecondsPerCall, CallsAsOftenAsItReports) {
  int calls = 0;
  EXPECT_GE(bench::nanoseconds_per_call([&] { ++calls; }, 17), 0);
  EXPECT_EQ(calls, 17);
}

TEST(CallsIn, IsOneIfACallTakesLongerThanTheTime) {
  EXPECT_EQ(bench::calls_in([] {}, 0), 1);
}

}  // namespace
