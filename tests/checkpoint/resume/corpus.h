#pragma once
// The checkpoints in tests/checkpoint/corpus: how they were made, and the state that they must load.
#include <memory>
#include <string>
#include <vector>

#include "tests/checkpoint/resume/training.h"

namespace apex::test {

/// A training set-up whose checkpoints are kept: one model, or two models with two optimizers ("SGD+FusedAdam").
class CorpusRun {
 public:
  CorpusRun(const std::string& optimizers, const std::string& level, uint64_t seed);

  /// Trains in evaluation mode, without random numbers, so that losses can be compared across machines.
  std::vector<double> run(int begin, int end);
  void save(const std::string& path, const amp::Metadata& metadata) const;
  amp::LoadedCheckpoint load(const std::string& path);
  /// A checksum of parameters, buffers, masters and learning rates.
  std::string checksum() const;

 private:
  std::vector<DropNet> models_;
  std::vector<amp::Model<DropNet>> nets_;
  std::vector<std::unique_ptr<torch::optim::Optimizer>> optimizers_;
  std::vector<std::string> names_;
};

/// The expectations for one file.
struct CorpusEntry {
  std::string file, optimizers, level, checksum;
  std::vector<double> losses;  // of the steps after it
};

std::vector<CorpusEntry> read_corpus(const std::string& folder);
void write_corpus(const std::string& folder);

}  // namespace apex::test
