#include "options.h"

#include <gtest/gtest.h>

#include "common/user_error.h"
#include "suites.h"
#include "tests/errors.h"

namespace {

using apex::test::message_of;
using bench::parse_options;

std::string error_of(const std::vector<std::string>& arguments) {
  return message_of<common::UserError>([&] { parse_options(arguments); });
}

TEST(BenchOptions, AcceptASuiteAndFlagsInAnyOrder) {
  const auto options = parse_options({"--rounds", "31", "casts", "--only", "^ops/", "--csv", "x.csv"});
  EXPECT_EQ(options.suite, "casts");
  EXPECT_EQ(options.rounds, 31);
  EXPECT_EQ(options.only, "^ops/");
  EXPECT_EQ(options.csv, "x.csv");
  EXPECT_EQ(options.help, "");
}

TEST(BenchOptions, UseTheCpuByDefault) {
  EXPECT_EQ(parse_options({"kernels"}).device, "cpu");
  EXPECT_EQ(parse_options({"kernels", "--device", "cuda"}).device, "cuda");
  EXPECT_NE(error_of({"kernels", "--device", "tpu"}).find("'tpu'"), std::string::npos);
}

TEST(BenchOptions, RejectAnUnavailableDevice) {
  const auto refusal = [](const std::string& suite, bool has_gpu) {
    return message_of<common::UserError>([&] { bench::check_suite(parse_options({suite, "--device", "cuda"}), has_gpu); });
  };
  EXPECT_EQ(
      refusal("casts", true),
      "suite 'casts' measures the CPU: leave out --device cuda, or take one of contrib, kernels, statistics, step, train");
  EXPECT_EQ(refusal("step", false), "--device cuda needs a GPU, but LibTorch finds none; use cpu");
  EXPECT_EQ(refusal("step", true), "");
  EXPECT_NO_THROW(bench::check_suite(parse_options({"casts"}), false));
}

TEST(BenchOptions, RejectQuickForSuitesWithoutTraining) {
  const auto refusal = [](const std::string& suite) {
    return message_of<common::UserError>([&] { bench::check_suite(parse_options({suite, "--quick"}), false); });
  };
  EXPECT_EQ(refusal("casts"), "suite 'casts' trains no network: leave out --quick, or take one of pages, train");
  EXPECT_EQ(refusal("pages"), "");
  EXPECT_EQ(refusal("train"), "");
}

TEST(BenchOptions, HelpNamesTheSmallestNumberOfRounds) {
  EXPECT_NE(parse_options({"--help"}).help.find("at least 3"), std::string::npos);
}

TEST(BenchOptions, RunTheFullWorkByDefault) {
  EXPECT_FALSE(parse_options({"train"}).quick);
  EXPECT_TRUE(parse_options({"train", "--quick"}).quick);
}

TEST(BenchOptions, UseTheSuitesRoundsByDefault) {
  EXPECT_EQ(parse_options({"casts"}).rounds, std::nullopt);
  for (const auto& suite : bench::suites())
    EXPECT_GE(suite.rounds, suite.name == std::string("compile") ? 5
                            : suite.name == std::string("train") ? 9
                                                                 : 15)
        << suite.name;
}

TEST(BenchOptions, NameAnInvalidArgument) {
  EXPECT_NE(error_of({"casts", "--fast"}).find("--fast"), std::string::npos);
  EXPECT_NE(error_of({"casts", "step"}).find("step"), std::string::npos);
  EXPECT_NE(error_of({"casts", "--csv"}).find("--csv: 1 required FILE missing"), std::string::npos);
  EXPECT_NE(error_of({"casts", "--only", "("}).find("'('"), std::string::npos);
  for (const auto* rounds : {"2", "-5", "ten", "7x", "", "99999999999"}) {
    EXPECT_NE(error_of({"casts", "--rounds", rounds}).find("--rounds"), std::string::npos) << rounds;
  }
  EXPECT_NE(error_of({""}), "");
  EXPECT_NE(error_of({}), "");
}

}  // namespace
