// resume_program resume OPTIMIZER LEVEL FILE BEGIN END: loads a checkpoint in a new process, continues training, prints the
// state. resume_program corpus FOLDER: writes the files of tests/checkpoint/corpus.
#include <cstdlib>
#include <iostream>

#include "tests/checkpoint/resume/corpus.h"
#include "tests/checkpoint/resume/training.h"

int main(int count, char** arguments) {
  const std::vector<std::string> args(arguments + 1, arguments + count);
  if (args.size() == 6 && args[0] == "resume") {
    apex::test::Training run(args[1], args[2], /*seed=*/99);
    run.load(args[3]);
    run.run(std::atoi(args[4].c_str()), std::atoi(args[5].c_str()));
    std::cout << run.bytes() << "\n";
    return 0;
  }
  if (args.size() == 2 && args[0] == "corpus") {
    apex::test::write_corpus(args[1]);
    return 0;
  }
  std::cerr << "usage: resume_program resume OPTIMIZER LEVEL FILE BEGIN END | corpus FOLDER\n";
  return 2;
}
