#include "logging/csv_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "common/counted.h"
#include "errors.h"

namespace train {

std::string first_rows(const std::string& path, const std::string& header, int64_t rows) {
  std::string line, kept = header + "\n";
  if (rows == 0 && !std::filesystem::exists(path)) return kept;
  std::ifstream file(path);
  if (!std::getline(file, line) || line != header) {
    throw UserError("cannot continue '" + path + "': its header is not '" + header + "'");
  }
  for (int64_t row = 0; row < rows; ++row) {
    if (!std::getline(file, line)) {
      throw UserError("cannot continue '" + path + "': it holds " + common::counted(row, "row") + ", the checkpoint is at " +
                      std::to_string(rows));
    }
    kept += line + "\n";
  }
  return kept;
}

CsvFile::CsvFile(const std::string& path, const std::string& header, int64_t rows) : path_(path) {
  const auto begin = first_rows(path, header, rows);
  file_.open(path, std::ios::trunc);
  file_ << begin;
  flush();
}

void CsvFile::flush() {
  file_.flush();
  check();
  const int file = ::open(path_.c_str(), O_WRONLY | O_CLOEXEC);
  const int error = file < 0 || ::fsync(file) != 0 ? errno : 0;
  if (file >= 0) ::close(file);
  if (error != 0) throw UserError("cannot write '" + path_ + "': " + std::strerror(error));
}

void CsvFile::check() const {
  if (!file_) throw UserError("cannot write '" + path_ + "': " + std::strerror(errno));
}

int64_t rows_up_to_step(const std::string& path, const std::string& header, int64_t step) {
  const auto commas = [](const std::string& text) { return std::count(text.begin(), text.end(), ','); };
  std::ifstream file(path);
  std::string row;
  std::getline(file, row);  // the header
  int64_t rows = 0;
  while (std::getline(file, row) && commas(row) == commas(header) && std::atoll(row.c_str() + row.find(',') + 1) <= step) {
    ++rows;
  }
  return rows;
}

}  // namespace train
