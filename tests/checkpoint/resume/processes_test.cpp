// A checkpoint can be resumed in another process, and does not depend on the number of threads.
#include <ATen/Parallel.h>

#include <array>
#include <cstdio>

#include "tests/amp/support.h"
#include "tests/checkpoint/resume/training.h"

namespace apex::test {
namespace {

std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = ::popen(command.c_str(), "r");
  std::array<char, 4096> part;
  while (std::fgets(part.data(), part.size(), pipe)) text += part.data();
  EXPECT_EQ(::pclose(pipe), 0) << command;
  return text;
}

class Processes : public AmpTest {
 protected:
  Folder folder_;
};

TEST_F(Processes, AnotherProcessResumesBitForBit) {
  for (const auto& [optimizer, level] : std::vector<std::pair<std::string, std::string>>{
           {"Adam", "O2"}, {"FusedAdamLate", "O5"}, {"LBFGS", "O1"}, {"SGD", "plain"}}) {
    const auto file = folder_ / "run.ckpt";
    Training run(optimizer, level);
    run.run(0, 3);
    run.save(file);
    run.run(3, 6);
    EXPECT_EQ(output_of(std::string(RESUME_PROGRAM) + " resume " + optimizer + " " + level + " " + file + " 3 6"),
              run.bytes() + "\n")
        << optimizer << " " << level;
  }
}

TEST_F(Processes, TheSameStateGivesTheSameFileAtAnyNumberOfThreads) {
  const int threads = at::get_num_threads();
  DropNet model(3000);  // large enough that torch divides the work
  auto optimizer = make_optimizer("FusedAdam", model);
  auto [net, opt] = amp::initialize(model, optimizer, "O2", quiet());
  amp::scale_loss(net->forward(images()).square().mean(), *opt).backward();
  opt->step();
  std::vector<std::string> files;
  for (int count : {1, 2, 3}) {
    at::set_num_threads(count);
    amp::save_checkpoint(folder_ / "threads", net, opt);
    files.push_back(read_bytes(folder_ / "threads"));
    amp::load_checkpoint(folder_ / "threads", net, opt);
  }
  at::set_num_threads(threads);
  EXPECT_EQ(files[0], files[1]);
  EXPECT_EQ(files[0], files[2]);
}

}  // namespace
}  // namespace apex::test
