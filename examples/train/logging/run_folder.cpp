#include "logging/run_folder.h"

#include <algorithm>
#include <ctime>
#include <filesystem>

#include "common/write_whole.h"
#include "errors.h"

namespace train {
namespace {

namespace fs = std::filesystem;

std::string dated_name(const std::string& config_path) {
  const std::time_t now = std::time(nullptr);
  char date[32];
  std::strftime(date, sizeof(date), "%Y%m%d-%H%M%S", std::localtime(&now));
  return "runs/" + fs::path(config_path).stem().string() + "-" + date;
}

void check_made(const std::string& path, const std::error_code& error) {
  if (error) throw UserError("cannot make run folder '" + path + "': " + error.message());
}

void make_folders(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  check_made(path, error);
}

// Makes the folder of that name, or with a number behind it while another run has it. Whoever makes a folder has it: runs that
// begin in the same second do not meet.
std::string claimed(const std::string& name) {
  make_folders(common::folder_of(name));
  auto candidate = name;
  std::error_code error;
  for (int number = 2; !fs::create_directory(candidate, error) && !error; ++number) {
    candidate = name + "-" + std::to_string(number);
  }
  check_made(candidate, error);
  return candidate;
}

// The lock is what a run that could not begin leaves behind.
bool is_empty(const std::string& folder) {
  return std::all_of(fs::directory_iterator(folder), fs::directory_iterator(),
                     [](const auto& entry) { return entry.path().filename() == common::FolderLock::kName; });
}

bool is_new(const std::string& path) { return !fs::exists(path) || (fs::is_directory(path) && is_empty(path)); }

std::string held(const std::string& path) {
  return "run folder '" + path + "': another run is writing to it: choose another folder with --run-dir";
}

// Of what is there already. A folder without a checkpoint may be anything; a run that ended early leaves one, too.
std::string why_not_new(const RunFolder& folder) {
  if (fs::exists(folder.config()) && fs::exists(folder.checkpoint())) {
    return "holds a run: choose another folder with --run-dir, or resume the run with --resume " + folder.path();
  }
  return std::string(fs::is_directory(folder.path()) ? "is not empty" : "is a file") +
         ", and holds no run to resume: choose a new or an empty folder with --run-dir";
}

void check_new(const RunFolder& folder) {
  const auto& path = folder.path();
  if (is_new(path)) return;
  // A folder that is not a run's gets no file.
  if (fs::exists(path + "/" + common::FolderLock::kName)) common::FolderLock(path, held(path));
  throw UserError("run folder '" + path + "' " + why_not_new(folder));
}

// The run folder that is meant by it or by its checkpoint.
std::string folder_meant_by(const std::string& path) {
  const auto cannot = "cannot resume '" + path + "': ";
  if (!fs::exists(path)) throw UserError(cannot + "no such file or folder");
  if (fs::is_directory(path)) return path;
  const auto folder = RunFolder::at(common::folder_of(path));
  const auto checkpoint = fs::path(folder.checkpoint()).filename();
  if (fs::path(path).filename() != checkpoint) {
    throw UserError(cannot + "it is not a checkpoint; give a run folder, or the " + checkpoint.string() + " in it");
  }
  return folder.path();
}

}  // namespace

RunFolder RunFolder::create(const std::string& wanted, const std::string& config_path) {
  RunFolder folder(wanted.empty() ? claimed(dated_name(config_path)) : wanted);
  check_new(folder);
  make_folders(folder.path());
  folder.lock(held(folder.path()));
  check_new(folder);  // not another's, who began and ended since
  return folder;
}

RunFolder RunFolder::open(const std::string& path) {
  auto folder = find(path);
  folder.lock("cannot resume '" + path + "': another run is writing to '" + folder.path() + "': wait until it has ended");
  return folder;
}

RunFolder RunFolder::find(const std::string& path) {
  const RunFolder folder(folder_meant_by(path));
  const auto cannot = "cannot resume '" + path + "': there is no '";
  if (!fs::exists(folder.config())) {
    throw UserError(cannot + folder.config() + "': give the folder of a run");
  }
  if (!fs::exists(folder.checkpoint())) {
    throw UserError(cannot + folder.checkpoint() + "': the run ended before its first checkpoint; start again with " +
                    folder.config() + " and another --run-dir");
  }
  return folder;
}

}  // namespace train
