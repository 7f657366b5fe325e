#include "compile/compiler.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "tests/errors.h"

namespace {

using bench::compile::compiler;
using bench::compile::processor_nanoseconds;

double compile(const std::vector<std::string>& file) {
  auto command = compiler();
  command.insert(command.end(), file.begin(), file.end());
  return processor_nanoseconds(command);
}

TEST(BenchCompiler, FindsTheHeadersThatAUserIncludes) {
  EXPECT_GT(compile({"-include", "apex_cpp/files/csv.h", "-x", "c++", "/dev/null"}), 0);
}

TEST(BenchCompiler, CountsTheTimeOfTheCompilersChildren) {
  // Processor time of the shell's own child: 10 ms at least, in ticks of 4 ms at most.
  EXPECT_GE(processor_nanoseconds({"sh", "-c", "sh -c 'i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done'; :"}), 1e7);
}

TEST(BenchCompiler, NamesTheCommandThatFailed) {
  apex::test::expect_error<std::runtime_error>(
      [] {
        compile({"-include", "no_such_header.h", "-x", "c++", "/dev/null"});
      },
      {"no_such_header.h"});
}

}  // namespace
