// Runs the program of examples/train in several processes:
//   torchrun --no-python --nproc_per_node=2 distributed config.yaml
// or, with one shell per process, MASTER_ADDR=127.0.0.1 MASTER_PORT=29500 WORLD_SIZE=2 RANK=0 distributed config.yaml
#include "processes.h"
#include "program.h"

int main(int argc, char** argv) {
  try {
    distributed::Processes processes;
    return train::run_program(argc, argv, processes);
  } catch (...) {
    return train::complain();
  }
}
