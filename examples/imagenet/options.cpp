#include "options.h"

#include <CLI/CLI.hpp>

namespace {

void add_training(CLI::App& app, Options& options) {
  app.add_option("--epochs", options.epochs, "epochs to run")->check(CLI::PositiveNumber);
  app.add_option("--start-epoch", options.start_epoch, "epoch to start with")->check(CLI::NonNegativeNumber);
  app.add_option("-b,--batch-size", options.batch_size, "images in a batch of each process")->check(CLI::PositiveNumber);
  app.add_option("--lr,--learning-rate", options.lr, "learning rate for 256 images a step, after 5 epochs of warm-up")
      ->check(CLI::PositiveNumber);
  app.add_option("--momentum", options.momentum, "of SGD")->check(CLI::Range(0.0, 1.0));
  app.add_option("--wd,--weight-decay", options.weight_decay, "of SGD")->check(CLI::NonNegativeNumber);
  app.add_option("--resume", options.resume, "checkpoint to continue from")->check(CLI::ExistingFile);
  app.add_option("--pretrained", options.pretrained, "initial weights: safetensors with torchvision's names")
      ->check(CLI::ExistingFile);
  app.add_flag("-e,--evaluate", options.evaluate, "only evaluate, on the validation images");
  app.add_flag("--deterministic", options.deterministic, "the same results in every run");
}

void add_amp(CLI::App& app, Options& options) {
  const auto flag = CLI::IsMember({"True", "False"}, CLI::ignore_case);
  app.add_option("--opt-level", options.opt_level, "O0 to O6 (default: O1, as in Apex)");
  app.add_option("--keep-batchnorm-fp32", options.keep_batchnorm_fp32, "True or False, instead of the level's value")
      ->check(flag);
  app.add_option("--loss-scale", options.loss_scale, "a number or dynamic, instead of the level's value");
  app.add_flag("--sync_bn", options.sync_bn, "batch norm over the images of all processes");
  app.add_flag("--channels-last", options.channels_last, "images and weights with the channels innermost");
}

}  // namespace

Options read_options(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Trains a ResNet on a folder of images: DIR/train and DIR/val, each with a folder of JPEG files for every class.");
  app.option_defaults()->always_capture_default()->take_last();
  app.add_option("data", options.data, "the folder DIR")->required()->check(CLI::ExistingDirectory);
  app.add_option("-a,--arch", options.arch, "the network")->check(CLI::IsMember({"resnet18", "resnet50"}));
  app.add_option("-j,--workers", options.workers, "threads that read images, in each process");
  app.add_option("-p,--print-freq", options.print_freq, "batches between two lines of output")->check(CLI::PositiveNumber);
  app.add_option("--prof", options.prof, "end after this many batches of an epoch, for a profiler");
  app.add_option("--local_rank", options.local_rank, "the GPU of this process")->envname("LOCAL_RANK");
  app.add_option("--crop-size", options.crop_size, "width and height of the images that the network gets")
      ->check(CLI::PositiveNumber);
  app.add_option("--val-size", options.val_size, "short side of validation images before they are cropped")
      ->check(CLI::PositiveNumber);
  add_training(app, options);
  add_amp(app, options);
  try {
    app.parse(argc, argv);
    if (options.val_size < options.crop_size) throw CLI::ValidationError("--val-size", "must not be below --crop-size");
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return options;
}
