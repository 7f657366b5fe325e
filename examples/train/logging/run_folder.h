#pragma once

#include <memory>
#include <string>

#include "common/folder_lock.h"

namespace train {

/// Where one run keeps its files: config.yaml, steps.csv, metrics.csv, loss_scale.csv, checkpoint.safetensors, statistics.csv
/// where it is asked for, and levels.csv where the run left its level for the one above. While a run writes to it, `lock` is
/// locked.
class RunFolder {
 public:
  /// Makes the folder for a new run, and keeps others out of it while the answer or a copy lives: `wanted`, or
  /// runs/<config's name>-<date and time> where that is empty. Throws UserError where something lies there already, or another
  /// run begins there.
  static RunFolder create(const std::string& wanted, const std::string& config_path);
  /// The folder of a run to go on with; `path` is the folder or the checkpoint in it. Throws UserError where it is neither, or
  /// a file to go on from is missing.
  static RunFolder find(const std::string& path);
  /// The same, with others kept out of it while the answer or a copy lives. Throws UserError where another run writes to it.
  static RunFolder open(const std::string& path);

  /// One that `create` or `open` answered, in this process or another, which keeps nobody out.
  static RunFolder at(const std::string& path) { return RunFolder(path); }

  const std::string& path() const { return path_; }
  std::string config() const { return path_ + "/config.yaml"; }
  std::string steps() const { return path_ + "/steps.csv"; }
  std::string metrics() const { return path_ + "/metrics.csv"; }
  std::string loss_scale() const { return path_ + "/loss_scale.csv"; }
  std::string levels() const { return path_ + "/levels.csv"; }
  std::string statistics() const { return path_ + "/statistics.csv"; }
  std::string checkpoint() const { return path_ + "/checkpoint.safetensors"; }

 private:
  explicit RunFolder(std::string path) : path_(std::move(path)) {}
  void lock(const std::string& held) { lock_ = std::make_shared<common::FolderLock>(path_, held); }

  std::string path_;
  std::shared_ptr<common::FolderLock> lock_;
};

}  // namespace train
