#include "epoch.h"

#include <apex_cpp/amp/scale_loss.h>
#include <apex_cpp/parallel/processes/collectives.h>
#include <torch/data.h>
#include <torch/types.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>

namespace {

namespace data = torch::data;

/// Sums over images, and their average.
class Average {
 public:
  void add(double value, int64_t images) {
    value_ = value;
    sum_ += value * static_cast<double>(images);
    images_ += images;
  }
  double value() const { return value_; }
  double average() const { return images_ == 0 ? 0 : sum_ / static_cast<double>(images_); }
  double sum() const { return sum_; }
  int64_t images() const { return images_; }

 private:
  double value_ = 0, sum_ = 0;
  int64_t images_ = 0;
};

/// Top-k accuracy in percent: the share of images whose class is among the first `k` predictions.
double precision(const at::Tensor& logits, const at::Tensor& classes, int64_t k) {
  const auto guesses = std::get<1>(logits.topk(std::min(k, logits.size(1)), 1));
  return 100 * guesses.eq(classes.unsqueeze(1)).any(1).to(at::kDouble).mean().item().toDouble();
}

struct Averages {
  Average time, loss, prec1, prec5;

  void add(const at::Tensor& batch_loss, const at::Tensor& logits, const at::Tensor& classes) {
    const auto images = classes.size(0);
    loss.add(batch_loss.item().toDouble(), images);
    prec1.add(precision(logits, classes, 1), images);
    prec5.add(precision(logits, classes, 5), images);
    const auto now = Clock::now();
    time.add(std::chrono::duration<double>(now - last_).count(), 1);
    last_ = now;
  }
  void print(const char* what, int64_t batch, int64_t batches, int64_t images_a_batch) const {
    std::printf("%s[%zd/%zd]\tTime %.3f (%.3f)\tSpeed %.3f (%.3f)\tLoss %.10f (%.4f)\tPrec@1 %.3f (%.3f)\tPrec@5 %.3f (%.3f)\n",
                what, batch, batches, time.value(), time.average(), static_cast<double>(images_a_batch) / time.value(),
                static_cast<double>(images_a_batch) / time.average(), loss.value(), loss.average(), prec1.value(),
                prec1.average(), prec5.value(), prec5.average());
    std::fflush(stdout);
  }

 private:
  using Clock = std::chrono::steady_clock;
  Clock::time_point last_ = Clock::now();
};

data::DataLoaderOptions loader_options(const Options& options) {
  return data::DataLoaderOptions(static_cast<size_t>(options.batch_size)).workers(options.workers);
}

int64_t divided_up(int64_t count, int64_t size) { return (count + size - 1) / size; }

}  // namespace

/// Step decay by 10 every 30 epochs and once more after epoch 80, with a linear warmup over the first 5 epochs.
double Epoch::learning_rate(int64_t batch, int64_t batches) const {
  const double full = options_.lr * static_cast<double>(options_.batch_size * place_.world_size) / 256;
  const double rate = full * std::pow(0.1, number_ / 30 + (number_ >= 80));
  const auto done = static_cast<double>(1 + batch + number_ * batches);
  return number_ < 5 ? rate * done / static_cast<double>(5 * batches) : rate;
}

/// Moves pixels from the loader to this process's device and normalizes each channel to ImageNet's mean 0 and standard
/// deviation 1.
at::Tensor Epoch::normalized(const at::Tensor& pixels) const {
  const auto on_device = pixels.to(place_.device).to(at::kFloat);
  const auto mean = at::tensor({0.485f, 0.456f, 0.406f}).view({1, 3, 1, 1}).to(place_.device) * 255;
  const auto deviation = at::tensor({0.229f, 0.224f, 0.225f}).view({1, 3, 1, 1}).to(place_.device) * 255;
  const auto images = (on_device - mean) / deviation;
  return options_.channels_last ? images.contiguous(at::MemoryFormat::ChannelsLast) : images;
}

void Epoch::train(const std::shared_ptr<const ImageFiles>& images, const Forward& forward,
                  torch::optim::Optimizer& optimizer) const {
  data::samplers::DistributedRandomSampler sampler(images->files.size(), place_.world_size, place_.rank);
  sampler.set_epoch(number_);
  sampler.reset();
  ImageFolder folder(images, {options_.crop_size, options_.val_size, number_});
  const auto images_here = divided_up(static_cast<int64_t>(images->files.size()), place_.world_size);
  const auto batches = divided_up(images_here, options_.batch_size);
  const auto loader = data::make_data_loader(folder.map(data::transforms::Stack<>()), sampler, loader_options(options_));
  const auto heading = "Epoch: [" + std::to_string(number_) + "]";

  Averages averages;
  int64_t batch = 0;
  for (const auto& example : *loader) {
    if (options_.prof >= 0 && batch >= options_.prof) break;
    for (auto& group : optimizer.param_groups()) group.options().set_lr(learning_rate(batch, batches));
    const auto classes = example.target.to(place_.device);
    const auto logits = forward(normalized(example.data));
    const auto loss = torch::cross_entropy_loss(logits, classes);
    optimizer.zero_grad();
    apex::amp::scale_loss(loss, optimizer).backward();
    optimizer.step();
    averages.add(loss, logits, classes);
    ++batch;
    if (place_.rank == 0 && (batch % options_.print_freq == 0 || batch == batches)) {
      averages.print(heading.c_str(), batch, batches, options_.batch_size * place_.world_size);
    }
  }
}

double Epoch::validate(const std::shared_ptr<const ImageFiles>& images, const Forward& forward) const {
  const torch::NoGradGuard no_grad;
  // Each image goes to exactly one process. LibTorch's distributed sampler drops the last images or repeats some.
  const auto part = std::make_shared<const ImageFiles>(images->part(place_.rank, place_.world_size));
  ImageFolder folder(part, {options_.crop_size, options_.val_size, std::nullopt});
  const auto batches = divided_up(static_cast<int64_t>(part->files.size()), options_.batch_size);
  const auto loader = data::make_data_loader<data::samplers::SequentialSampler>(folder.map(data::transforms::Stack<>()),
                                                                                loader_options(options_));

  Averages averages;
  int64_t batch = 0;
  for (const auto& example : *loader) {
    const auto classes = example.target.to(place_.device);
    const auto logits = forward(normalized(example.data));
    averages.add(torch::cross_entropy_loss(logits, classes), logits, classes);
    if (place_.rank == 0 && ++batch % options_.print_freq == 0) {
      averages.print("Test: ", batch, batches, options_.batch_size * place_.world_size);
    }
  }
  auto sums =
      at::tensor({averages.prec1.sum(), averages.prec5.sum(), static_cast<double>(averages.prec1.images())}, at::kDouble);
  if (place_.world_size > 1) {
    const auto group = apex::parallel::default_process_group();
    sums = sums.to(apex::parallel::device_for(group));
    apex::parallel::all_reduce(group, sums, "counting correct predictions");
  }
  const auto count = sums[2].item().toDouble(), prec1 = sums[0].item().toDouble() / count;
  if (place_.rank == 0) std::printf(" * Prec@1 %.3f Prec@5 %.3f\n", prec1, sums[1].item().toDouble() / count);
  return prec1;
}
