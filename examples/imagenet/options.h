#pragma once

#include <cstdint>
#include <string>

/// The flags of Apex's imagenet example.
struct Options {
  std::string data;
  std::string arch = "resnet18";
  size_t workers = 4;
  int64_t epochs = 90;
  int64_t start_epoch = 0;
  int64_t batch_size = 256;  // per process
  double lr = 0.1;           // for 256 images per step; scaled with the actual number
  double momentum = 0.9;
  double weight_decay = 1e-4;
  int64_t print_freq = 10;
  std::string resume;
  bool evaluate = false;
  std::string pretrained;
  int64_t prof = -1;
  bool deterministic = false;
  int local_rank = 0;
  bool sync_bn = false;
  std::string opt_level = "O1";
  std::string keep_batchnorm_fp32;  // empty: the level's default
  std::string loss_scale;           // empty: the level's default
  bool channels_last = false;
  // Apex's example has no such flags: its images are 224 and 256 pixels wide.
  int64_t crop_size = 224;
  int64_t val_size = 256;
};

/// Reads the command line. After an error and after --help, prints a message and exits.
Options read_options(int argc, char** argv);
