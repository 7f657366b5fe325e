#pragma once
// The real program in a separate folder, on generated images.
#include <gtest/gtest.h>

#include <cstdlib>
#include <sstream>
#include <string>

#include <sys/wait.h>

#include "easy_digits.h"
#include "scratch.h"

struct Ended {
  int code;
  std::string out;
  std::string error;
};

inline std::string config(const std::string& level, const std::string& optimizer = "{type: SGD, lr: 0.05, momentum: 0.9}") {
  return "model: {type: convnet, widths: [4, 8], dropout: 0.1}\ndata: {set: digits, dir: data}\noptimizer: " + optimizer +
         "\nschedule: {type: cosine, warmup_epochs: 1}\nepochs: 4\nbatch_size: 20\ndevice: cpu\nthreads: 1\namp: {opt_level: " +
         level + "}\n";
}

class Program : public testing::Test {
 protected:
  void SetUp() override {
    scratch_.write("data/digits.csv", easy_digits());
    scratch_.write("c.yaml", config("O2"));
  }

  Ended run(const std::string& arguments, const std::string& folder = ".") const {
    const auto line = "cd '" + (scratch_ / folder) + "' && '" TRAIN_PROGRAM "' " + arguments + " >out 2>error";
    const int status = std::system(line.c_str());
    return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, scratch_.read(folder + "/out"), scratch_.read(folder + "/error")};
  }

  // The program must refuse with exit code 2 and one line; the line.
  std::string refusal(const std::string& arguments) const {
    const auto ended = run(arguments);
    EXPECT_EQ(ended.code, 2) << ended.out << ended.error;
    EXPECT_EQ(ended.error.find('\n') + 1, ended.error.size()) << ended.error;
    return ended.error;
  }

  // Test accuracy in the last row of a run's metrics.csv.
  double accuracy(const std::string& folder) const {
    std::istringstream lines(scratch_.read(folder + "/metrics.csv"));
    std::string line, last, cell;
    while (std::getline(lines, line)) {
      last = line;
    }
    std::istringstream cells(last);
    for (int column = 0; column < 3; ++column) {
      std::getline(cells, cell, ',');
    }
    return std::atof(cell.c_str());
  }

  Scratch scratch_;
};
