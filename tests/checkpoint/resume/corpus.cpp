#include "tests/checkpoint/resume/corpus.h"

#include <fstream>
#include <iomanip>
#include <sstream>

namespace apex::test {
namespace {

constexpr int kCorpusSaved = 3, kCorpusEnd = 6;

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  std::istringstream stream(text);
  for (std::string part; std::getline(stream, part, '+');) parts.push_back(part);
  return parts;
}

// FNV-1a, which is the same everywhere.
void add(uint64_t& hash, const void* data, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) hash = (hash ^ static_cast<const unsigned char*>(data)[i]) * 1099511628211u;
}

void add(uint64_t& hash, const torch::Tensor& tensor) {
  const auto flat = tensor.detach().contiguous();
  add(hash, flat.data_ptr(), flat.nbytes());
}

}  // namespace

CorpusRun::CorpusRun(const std::string& optimizers, const std::string& level, uint64_t seed) : names_(split(optimizers)) {
  amp::reset();
  torch::manual_seed(seed);
  std::vector<std::unique_ptr<torch::optim::Optimizer>> originals;
  for (const auto& name : names_) {
    models_.emplace_back();
    originals.push_back(make_optimizer(name, models_.back()));
  }
  auto [nets, opts] = amp::initialize(models_, originals, level, amp::InitializeOptions().verbosity(0));
  nets_ = std::move(nets);
  optimizers_ = std::move(opts);
  for (auto& net : nets_) net->eval();
}

std::vector<double> CorpusRun::run(int begin, int end) {
  std::vector<double> losses;
  for (int i = begin; i < end; ++i) {
    for (size_t j = 0; j < nets_.size(); ++j) {
      auto& optimizer = *optimizers_[j];
      const auto pass = [&] {
        optimizer.zero_grad();
        const auto loss = nets_[j]->forward(input_of(i + static_cast<int>(j))).square().mean();
        losses.push_back(loss.item<double>());
        if (names_[j] == "LBFGS") {
          loss.backward();
        } else {
          amp::scale_loss(loss, optimizer).backward();
        }
        return loss;
      };
      if (names_[j] == "LBFGS") {
        optimizer.step(pass);
      } else {
        pass();
        optimizer.step();
      }
    }
  }
  return losses;
}

void CorpusRun::save(const std::string& path, const amp::Metadata& metadata) const {
  amp::save_checkpoint(path, nets_, optimizers_, metadata);
}

amp::LoadedCheckpoint CorpusRun::load(const std::string& path) { return amp::load_checkpoint(path, nets_, optimizers_); }

std::string CorpusRun::checksum() const {
  uint64_t hash = 14695981039346656037u;
  for (const auto& model : models_) {
    for (const auto& item : model->named_parameters()) add(hash, item.value());
    for (const auto& item : model->named_buffers()) add(hash, item.value());
  }
  for (const auto& optimizer : optimizers_) {
    for (const auto& group : optimizer->param_groups()) {
      for (const auto& param : group.params()) add(hash, param);
      const double lr = group.options().get_lr();
      add(hash, &lr, sizeof(lr));
    }
  }
  std::ostringstream text;
  text << std::hex << hash;
  return text.str();
}

std::vector<CorpusEntry> read_corpus(const std::string& folder) {
  std::vector<CorpusEntry> entries;
  std::ifstream table(folder + "/expected.txt");
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    CorpusEntry entry;
    words >> entry.file >> entry.optimizers >> entry.level >> entry.checksum;
    for (double loss; words >> loss;) entry.losses.push_back(loss);
    entries.push_back(std::move(entry));
  }
  return entries;
}

void write_corpus(const std::string& folder) {
  std::ofstream table(folder + "/expected.txt");
  const std::vector<std::pair<std::string, std::string>> runs = {
      {"Adam", "O0"},    {"LBFGS", "O1"}, {"SGD", "O2"},       {"FusedMixedPrecisionLamb", "O2"}, {"SGD+FusedAdam", "O2"},
      {"RMSprop", "O3"}, {"AdamW", "O4"}, {"FusedAdam", "O5"}, {"FusedNovoGrad", "O5"},           {"FusedSGDLate", "O2"}};
  for (const auto& [optimizers, level] : runs) {
    CorpusRun run(optimizers, level, 3);
    run.run(0, kCorpusSaved);
    const auto file = optimizers + "_" + level + ".safetensors";
    run.save(folder + "/" + file, {{"step", kCorpusSaved}, {"optimizers", optimizers}});
    table << file << " " << optimizers << " " << level << " " << run.checksum() << std::setprecision(9);
    for (double loss : run.run(kCorpusSaved, kCorpusEnd)) table << " " << loss;
    table << "\n";
  }
}

}  // namespace apex::test
