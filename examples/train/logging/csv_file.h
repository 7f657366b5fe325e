#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include <apex_cpp/files/csv.h>

namespace train {

/// A growing table in a file. Opening one that exists keeps its first `rows` rows: those a resumed run has behind it.
class CsvFile {
 public:
  /// Throws UserError where the file cannot be written, has another header, or holds fewer than `rows` rows.
  CsvFile(const std::string& path, const std::string& header, int64_t rows);

  /// Appends a row of the fields: texts and numbers. Throws UserError where that fails (a full disk).
  template <class... Fields>
  void append(const Fields&... fields) {
    file_ << apex::csv_row(fields...);
    check();
  }
  /// Writes everything appended so far to the disk: after a loss of power a table may not have fewer rows than the checkpoint
  /// has steps. Throws UserError as `append`.
  void flush();

 private:
  // To be called after each use of the file: the system keeps the reason of the last failure alone.
  void check() const;

  std::string path_;
  std::ofstream file_;
};

/// The header and the first `rows` rows of the file at `path`, as text; the header alone where there is no file and no row is
/// asked for. Throws UserError where the file has another header or fewer rows.
std::string first_rows(const std::string& path, const std::string& header, int64_t rows);

/// How many rows of a table that has epoch and step as its first columns, and the header given, are of steps up to `step`. Rows
/// come in the order of steps; one that was cut off does not count. 0 where there is no file.
int64_t rows_up_to_step(const std::string& path, const std::string& header, int64_t step);

}  // namespace train
