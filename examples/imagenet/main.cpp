// Trains ResNet-18 or ResNet-50 on a folder of images, in one process or, under torchrun, in several. `imagenet --help` lists
// the flags, which are the flags of Apex's example.
#include <apex_cpp/amp.h>
#include <apex_cpp/parallel.h>
#include <torch/cuda.h>
#include <torch/optim/sgd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <optional>

#include "epoch.h"
#include "options.h"
#include "resnet.h"

namespace {

namespace amp = apex::amp;
namespace parallel = apex::parallel;

Place find_place(const Options& options) {
  Place place;
  if (torch::cuda::is_available()) {
    // Some launchers make only its own GPU visible to each process.
    const int gpu = torch::cuda::device_count() == 1 ? 0 : options.local_rank;
    place.device = {at::kCUDA, static_cast<c10::DeviceIndex>(gpu)};
  }
  const char* world_size = std::getenv("WORLD_SIZE");
  if (world_size && std::atoi(world_size) > 1) {
    const auto group = parallel::init_process_group();
    place.rank = group->getRank();
    place.world_size = group->getSize();
  }
  return place;
}

amp::InitializeOptions overrides(const Options& options) {
  amp::InitializeOptions overrides;
  if (!options.keep_batchnorm_fp32.empty()) overrides.keep_batchnorm_fp32(options.keep_batchnorm_fp32);
  if (!options.loss_scale.empty()) overrides.loss_scale(options.loss_scale);
  return overrides;
}

void make_channels_last(torch::nn::Module& module) {
  for (auto& parameter : module.parameters()) {
    if (parameter.dim() == 4) parameter.set_data(parameter.contiguous(at::MemoryFormat::ChannelsLast));
  }
}

struct Progress {
  int64_t epochs = 0;  // completed
  double best_prec1 = 0;
};

template <class Net, class Optimizer>
Progress resume(const Options& options, Net& net, Optimizer& opt) {
  const auto metadata = amp::load_checkpoint(options.resume, net, opt).metadata;
  const Progress progress{metadata.at("epoch").to_int(), metadata.at("best_prec1").to_double()};
  std::printf("=> loaded checkpoint '%s' (epoch %zd)\n", options.resume.c_str(), progress.epochs);
  return progress;
}

template <class Net, class Optimizer>
void save(const Options& options, const Progress& progress, bool is_best, const Net& net, const Optimizer& opt) {
  amp::save_checkpoint("checkpoint.ckpt", net, opt,
                       {{"epoch", progress.epochs}, {"arch", options.arch}, {"best_prec1", progress.best_prec1}});
  if (is_best) {
    std::filesystem::copy_file("checkpoint.ckpt", "model_best.ckpt", std::filesystem::copy_options::overwrite_existing);
  }
}

void run(Options options) {
  const auto place = find_place(options);
  at::globalContext().setBenchmarkCuDNN(!options.deterministic);
  at::globalContext().setDeterministicCuDNN(options.deterministic);
  if (options.deterministic) torch::manual_seed(static_cast<uint64_t>(options.local_rank));
  const auto train_images = std::make_shared<const ImageFiles>(options.data + "/train");
  const auto val_images = std::make_shared<const ImageFiles>(options.data + "/val");
  check_same_classes(*train_images, *val_images);

  resnet::ResNet model(options.arch, static_cast<int64_t>(train_images->classes.size()));
  if (!options.pretrained.empty()) amp::load_safetensors(options.pretrained, model);
  if (options.sync_bn && place.world_size > 1) model = parallel::convert_syncbn_model(model);
  model->to(place.device);
  if (options.channels_last) make_channels_last(*model);
  torch::optim::SGD optimizer(
      model->parameters(), torch::optim::SGDOptions(options.lr).momentum(options.momentum).weight_decay(options.weight_decay));

  auto handles = amp::initialize(model, optimizer, options.opt_level, overrides(options));
  auto& net = handles.first;
  auto& opt = handles.second;
  Progress progress{options.start_epoch, 0};
  if (!options.resume.empty()) progress = resume(options, net, opt);
  using DDP = parallel::DistributedDataParallel<std::decay_t<decltype(net)>>;
  std::optional<DDP> ddp;
  if (place.world_size > 1) ddp.emplace(net);
  const Forward train_forward = [&](const at::Tensor& images) { return ddp ? (*ddp)(images) : net->forward(images); };
  const Forward val_forward = [&](const at::Tensor& images) { return net->forward(images); };

  if (options.evaluate) {
    net->eval();
    Epoch(options, place, progress.epochs).validate(val_images, val_forward);
    return;
  }
  while (progress.epochs < options.epochs) {
    const Epoch epoch(options, place, progress.epochs);
    net->train();
    epoch.train(train_images, train_forward, opt);
    if (options.prof >= 0) return;
    net->eval();
    const double prec1 = epoch.validate(val_images, val_forward);
    const bool is_best = prec1 > progress.best_prec1;
    progress = {progress.epochs + 1, std::max(prec1, progress.best_prec1)};
    if (place.rank == 0) save(options, progress, is_best, net, opt);
  }
}

}  // namespace

int main(int argc, char** argv) try { run(read_options(argc, argv)); } catch (const c10::Error& error) {
  std::fprintf(stderr, "%s\n", error.what_without_backtrace());
  return 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "%s\n", error.what());
  return 1;
}
