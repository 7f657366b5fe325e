#include "records/run_folder.h"

#include <ctime>
#include <filesystem>

#include "errors.h"
#include "records/write_whole.h"

namespace train {
namespace {

namespace fs = std::filesystem;

std::string dated_name(const std::string& config_path) {
  const std::time_t now = std::time(nullptr);
  char date[32];
  std::strftime(date, sizeof(date), "%Y%m%d-%H%M%S", std::localtime(&now));
  return "runs/" + fs::path(config_path).stem().string() + "-" + date;
}

// The name itself, or with a number behind it while another run has it.
std::string unused(const std::string& name) {
  auto candidate = name;
  for (int number = 2; fs::exists(candidate); ++number) {
    candidate = name + "-" + std::to_string(number);
  }
  return candidate;
}

// Of what is there already. A folder without a checkpoint may be anything; a run that ended early leaves one, too.
std::string why_not_new(const RunFolder& folder) {
  if (fs::exists(folder.config()) && fs::exists(folder.checkpoint())) {
    return "is in use: choose another with --run-dir, or go on with it: --resume " + folder.path();
  }
  return std::string(fs::is_directory(folder.path()) ? "is not empty" : "is a file") +
         ", and there is no run in it to go on with: choose a new or an empty folder with --run-dir";
}

// The run folder that is meant by it or by its checkpoint.
std::string folder_meant_by(const std::string& path) {
  const auto cannot = "cannot resume '" + path + "': ";
  if (!fs::exists(path)) throw UserError(cannot + "no such file or folder");
  if (fs::is_directory(path)) return path;
  const auto folder = RunFolder::at(folder_of(path));
  const auto checkpoint = fs::path(folder.checkpoint()).filename();
  if (fs::path(path).filename() != checkpoint) {
    throw UserError(cannot + "it is no checkpoint; give a run folder, or the " + checkpoint.string() + " in it");
  }
  return folder.path();
}

}  // namespace

RunFolder RunFolder::create(const std::string& wanted, const std::string& config_path) {
  const auto path = wanted.empty() ? unused(dated_name(config_path)) : wanted;
  std::error_code error;
  if (fs::exists(path) && !(fs::is_directory(path) && fs::is_empty(path))) {
    throw UserError("run folder '" + path + "' " + why_not_new(RunFolder::at(path)));
  }
  fs::create_directories(path, error);
  if (error) {
    throw UserError("cannot make run folder '" + path + "': " + error.message());
  }
  return RunFolder(path);
}

RunFolder RunFolder::open(const std::string& path) {
  const RunFolder folder(folder_meant_by(path));
  const auto cannot = "cannot resume '" + path + "': there is no '";
  if (!fs::exists(folder.config())) {
    throw UserError(cannot + folder.config() + "': give the folder of a run");
  }
  if (!fs::exists(folder.checkpoint())) {
    throw UserError(cannot + folder.checkpoint() + "': the run did not come to its first checkpoint; start anew with " +
                    folder.config() + " and another --run-dir");
  }
  return folder;
}

}  // namespace train
