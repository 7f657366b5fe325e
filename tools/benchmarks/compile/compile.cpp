// The compile time that the library's headers add to a user's file.
#include "../suites.h"
#include "compiler.h"

namespace bench {
namespace compile {
namespace {

constexpr const char* kUmbrellaHeaders[] = {"amp",           "amp_C",      "fp16_utils", "multi_tensor_apply",
                                            "normalization", "optimizers", "parallel"};
constexpr double kMillisecond = 1e6;

/// Compiles a file.
Variant compiling(const std::string& name, const std::vector<std::string>& file) {
  return {name, [file] {
            auto command = compiler();
            command.insert(command.end(), file.begin(), file.end());
            return processor_nanoseconds(command);
          }};
}

void compare(Runner& runner, const std::string& group, const std::string& name, const std::vector<std::string>& without,
             const std::vector<std::string>& with) {
  if (!runner.wants(group, name)) return;
  const auto medians = runner.medians(name, 1, {compiling("without", without), compiling("with", with)});
  runner.add({group,
              name,
              1,
              {{"without ms", medians[0] / kMillisecond},
               {"with ms", medians[1] / kMillisecond},
               {"adds ms", (medians[1] - medians[0]) / kMillisecond},
               {"with/without", medians[1] / medians[0]}}});
}

/// An empty file with torch/torch.h, without and with a header of the library.
void run_headers(Runner& runner) {
  const std::vector<std::string> torch{"-include", "torch/torch.h"}, empty{"-x", "c++", "/dev/null"};
  for (const std::string name : kUmbrellaHeaders) {
    auto without = torch, with = torch;
    with.insert(with.end(), {"-include", "apex_cpp/" + name + ".h"});
    without.insert(without.end(), empty.begin(), empty.end());
    with.insert(with.end(), empty.begin(), empty.end());
    compare(runner, "headers", name + ".h", without, with);
  }
  runner.print_group();
}

/// A file that trains a model, without and with amp's three lines.
void run_training(Runner& runner) {
  compare(runner, "training", "initialize and scale_loss", {BENCH_TRAINING_FILE}, {"-DWITH_AMP", BENCH_TRAINING_FILE});
  runner.print_group();
}

}  // namespace
}  // namespace compile

void run_compile(Runner& runner) {
  compile::run_headers(runner);
  compile::run_training(runner);
}

}  // namespace bench
