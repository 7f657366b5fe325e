// The distributed example on two hosts, each with its own torchrun. Network namespaces simulate the hosts (two_hosts.sh).
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>

#include "tests/distributed/launcher.h"
#include "tests/examples/easy_digits.h"
#include "tests/examples/scratch.h"

namespace apex::testing {
namespace {

constexpr int kSkipped = 77;

TEST(TwoHosts, TrainUnderTorchrunLikeOneHost) {
  if (std::string(TORCHRUN).empty()) GTEST_SKIP() << "no torchrun stands beside this LibTorch";
  Scratch scratch;
  scratch.write("data/digits.csv", easy_digits());
  scratch.write("c.yaml",
                "model: {type: mlp, widths: [32]}\ndata: {set: digits, dir: data}\noptimizer: {type: FusedAdam, lr: 0.01}\n"
                "epochs: 2\nbatch_size: 24\ndevice: cpu\nthreads: 1\namp: {opt_level: O2}\n");
  const std::string there = "cd '" + scratch.path() + "' && ";
  scratch.write("node.sh", "exec '" TORCHRUN
                           "' --no-python --nnodes=2 --node_rank=$NODE_RANK --nproc_per_node=2 --master_addr=$MASTER_ADDR "
                           "--master_port=29500 '" DISTRIBUTED_PROGRAM "' c.yaml --run-dir hosts\n");
  const int status = std::system((there + "OMP_NUM_THREADS=1 '" TWO_HOSTS "' sh node.sh >out 2>&1").c_str());
  if (WEXITSTATUS(status) == kSkipped) GTEST_SKIP() << scratch.read("out");
  ASSERT_EQ(status, 0) << scratch.read("out");
  Ranks on_one(4, {"sh", "-c", there + "exec '" DISTRIBUTED_PROGRAM "' c.yaml --run-dir host"});
  on_one.wait(/*grace_seconds=*/20);
  ASSERT_TRUE(on_one.all_succeeded()) << on_one.outputs();
  EXPECT_FALSE(scratch.read("host/steps.csv").empty());
  EXPECT_EQ(scratch.read("hosts/steps.csv"), scratch.read("host/steps.csv"));
}

}  // namespace
}  // namespace apex::testing
