#include "records/run_folder.h"

#include <ctime>
#include <filesystem>
#include <fstream>

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

// The name itself, or with a number behind it while another run has it.
std::string unused(const std::string& name) {
  auto candidate = name;
  for (int number = 2; fs::exists(candidate); ++number) {
    candidate = name + "-" + std::to_string(number);
  }
  return candidate;
}

}  // namespace

RunFolder RunFolder::create(const std::string& wanted, const std::string& config_path) {
  const auto path = wanted.empty() ? unused(dated_name(config_path)) : wanted;
  std::error_code error;
  if (fs::exists(path) && !(fs::is_directory(path) && fs::is_empty(path))) {
    throw UserError("run folder '" + path + "' is in use: choose another with --run-dir, or go on with it: --resume " + path);
  }
  fs::create_directories(path, error);
  if (error) {
    throw UserError("cannot make run folder '" + path + "': " + error.message());
  }
  return RunFolder(path);
}

RunFolder RunFolder::open(const std::string& path) {
  const auto parent = fs::path(path).parent_path();
  const RunFolder folder(fs::is_directory(path) ? path : parent.empty() ? "." : parent.string());
  for (const auto& file : {folder.config(), folder.checkpoint()}) {
    if (!fs::exists(file)) {
      throw UserError("cannot resume '" + path + "': there is no '" + file + "'");
    }
  }
  return folder;
}

void write_whole(const std::string& path, const std::string& content) {
  const auto part = path + ".part";
  std::ofstream file(part, std::ios::trunc | std::ios::binary);
  file << content;
  file.close();
  std::error_code error;
  if (file) {
    fs::rename(part, path, error);
  }
  if (!file || error) {
    throw UserError("cannot write '" + path + "'");
  }
}

}  // namespace train
