#include "logging/tensorboard_log.h"

#include <stdexcept>

#include "errors.h"
#include "logging/metrics.h"

namespace train {
namespace {

using apex::SummaryHistogram;
using apex::amp::TensorStatistics;

// A bucket for each exponent from the lowest to the highest; where a value lies between two powers of two nobody counted, and
// sums take the middle.
SummaryHistogram exponents_of(const TensorStatistics& record) {
  SummaryHistogram histogram;
  const int lowest = record.exponents.begin()->first, highest = record.exponents.rbegin()->first;
  histogram.min = lowest;
  histogram.max = highest + 1;
  for (int exponent = lowest; exponent <= highest; ++exponent) {
    const auto found = record.exponents.find(exponent);
    const auto count = static_cast<double>(found == record.exponents.end() ? 0 : found->second);
    const double middle = exponent + 0.5;
    histogram.limits.push_back(exponent + 1);
    histogram.counts.push_back(count);
    histogram.num += count;
    histogram.sum += count * middle;
    histogram.sum_squares += count * middle * middle;
  }
  return histogram;
}

// As Markdown.
std::string as_code(const std::string& text) {
  std::string code = "    ";
  for (const char c : text) code += c == '\n' ? "\n    " : std::string(1, c);
  return code;
}

// What the library throws is of a file that the user chose.
template <class Action>
auto or_user_error(const Action& action) {
  try {
    return action();
  } catch (const std::runtime_error& error) {
    throw UserError(error.what());
  }
}

}  // namespace

TensorBoardLog::TensorBoardLog(const RunFolder& folder, int64_t steps, const Config& config)
    : writer_(or_user_error([&] { return apex::SummaryWriter(folder.path(), steps + 1); })), step_(steps) {
  writer_.add_text("config", as_code(to_yaml(config)), steps);
}

void TensorBoardLog::add(const StepLog& log) {
  step_ = log.step + 1;
  writer_.add_scalar("step/loss", log.loss, step_);
  writer_.add_scalar("step/loss_scale", log.loss_scale, step_);
  writer_.add_scalar("step/skipped", log.skipped, step_);
  writer_.add_scalar("step/lr", log.lr, step_);
  const auto add_exponents = [&](const std::string& kind, const std::vector<TensorStatistics>& records) {
    for (const auto& record : records)
      if (!record.exponents.empty()) writer_.add_histogram(kind + "/" + record.name, exponents_of(record), step_);
  };
  add_exponents("weight_exponents", log.weights);
  add_exponents("scaled_gradient_exponents", log.scaled_grads);
}

void TensorBoardLog::add(const EpochLog& log) {
  writer_.add_scalar("epoch/train_loss", log.train_loss, step_);
  writer_.add_scalar("epoch/test_accuracy", log.accuracy(), step_);
  writer_.add_scalar("epoch/images_per_second", log.images_per_second, step_);
  or_user_error([&] { writer_.flush(); });
}

}  // namespace train
