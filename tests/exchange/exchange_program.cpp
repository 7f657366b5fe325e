// The C++ side of exchange_test.py.
//   exchange_program FOLDER JOB...
// JOB is one of
//   begin:PAIR:MODE:OUT          a new model; writes its training state, and the gradients of 6 steps to PAIR.gradients
//   train:PAIR:MODE:IN:BEGIN:END:OUT    loads a training state, takes steps BEGIN to END, and writes one
// MODE is "plain", "scaler" or a level. Prints the notes of each load.
#include <ATen/Context.h>
#include <c10/util/Exception.h>

#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "tests/exchange/training.h"

namespace {

using apex::test::exchange_pair;
using apex::test::ExchangeGradients;
using apex::test::ExchangeTraining;

constexpr int kSteps = 6;

std::vector<std::string> words_of(const std::string& job) {
  std::vector<std::string> words;
  std::istringstream text(job);
  for (std::string word; std::getline(text, word, ':');) words.push_back(word);
  return words;
}

void begin(const std::string& folder, const std::vector<std::string>& job) {
  at::manual_seed(11);
  ExchangeTraining training(exchange_pair(job.at(1)), job.at(2));
  ExchangeGradients(training.model, kSteps).save(folder + "/" + job[1] + ".gradients");
  training.save(folder + "/" + job.at(3));
}

void train(const std::string& folder, const std::vector<std::string>& job) {
  ExchangeTraining training(exchange_pair(job.at(1)), job.at(2));
  for (const auto& note : training.load(folder + "/" + job.at(3))) std::cout << job[1] << " " << job[2] << ": " << note << "\n";
  training.run(ExchangeGradients(folder + "/" + job[1] + ".gradients"), std::stoi(job.at(4)), std::stoi(job.at(5)));
  training.save(folder + "/" + job.at(6));
}

}  // namespace

int main(int count, char** arguments) try {
  for (int i = 2; i < count; ++i) {
    const auto job = words_of(arguments[i]);
    job.at(0) == "begin" ? begin(arguments[1], job) : train(arguments[1], job);
  }
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
