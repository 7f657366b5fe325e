#include "runner.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <set>

#include <apex_cpp/files/csv.h>

#include "common/counted.h"
#include "common/folder_lock.h"
#include "common/user_error.h"
#include "common/write_whole.h"
#include "own_program.h"
#include "program.h"
#include "shell.h"

namespace comparison {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) { return std::chrono::duration<double>(Clock::now() - begin).count(); }

void make_folder(const std::string& path) {
  std::error_code error;
  fs::create_directories(path, error);
  if (error) throw common::UserError("cannot make folder '" + path + "': " + error.message());
}

struct Ended {
  int code = train::kTrained;
  std::string last_line;  // of what it wrote: how it went, or the error
};

bool begins_with(const std::string& line, const std::string& text) { return line.rfind(text, 0) == 0; }

// Without what is for those who look at one run: the process that wrote it, and where its files are. Nothing of a line on how
// processes ended: a line before it says why.
std::string essence_of(const std::string& line) {
  if (begins_with(line, "start_processes: ")) return "";
  const auto begin = begins_with(line, "[rank ") ? line.find("] ") + 2 : 0;
  return line.substr(begin, line.find("; run folder ") - begin);
}

// What a line of progress has room for: "epoch 3/8  test accuracy 97.21 %", without the figures behind it.
std::string beginning_of(const std::string& line) {
  const auto first = line.find("  ");
  return begins_with(line, "epoch ") && first != std::string::npos ? line.substr(0, line.find("  ", first + 2)) : "";
}

class Runner {
 public:
  Runner(const std::vector<Cell>& cells, std::string out, std::string start_processes, common::Progress& progress)
      : cells_(cells), out_(std::move(out)), start_processes_(std::move(start_processes)), progress_(progress) {}

  int run(const std::string& grid) {
    make_folder(out_ + "/cells");
    // Two at work in one folder would make the same cells.
    const common::FolderLock lock(
        out_, "another comparison is running in '" + out_ + "': wait until it has ended, or choose another folder with --out");
    take_folder_for(fs::canonical(grid).string());
    find_what_is_there();
    for (const auto& cell : cells_) {
      if (finished_.count(cell.name) == 0) make(cell);
      ++done_;
    }
    write_table();
    return static_cast<int>(failed_.size());
  }

 private:
  CellFolder folder_of(const Cell& cell) const { return {out_ + "/cells/" + cell.name}; }
  CellFolder part_of(const Cell& cell) const { return {out_ + "/cells/" + cell.name + ".part"}; }

  // The runs of another grid may have the same names, and would be removed.
  void take_folder_for(const std::string& grid) const {
    const auto file = out_ + "/grid";
    const auto owner = content_of(file);
    if (!owner.empty() && owner != grid + "\n") {
      throw common::UserError("'" + out_ + "' holds the runs of " + owner.substr(0, owner.find('\n')) +
                              ": choose another folder with --out");
    }
    common::write_whole(file, grid + "\n");
  }

  void find_what_is_there() {
    for (const auto& cell : cells_) {
      if (is_finished(folder_of(cell), cell)) finished_.insert(cell.name);
    }
    missing_ = static_cast<int>(cells_.size() - finished_.size());
    progress_.line(common::counted(static_cast<int64_t>(cells_.size()), "cell") + " in " + out_ +
                   (finished_.empty() ? "" : ", " + std::to_string(finished_.size()) + " of them finished before"));
  }

  std::string command_for(const Cell& cell) const {
    if (!cell.program.command.empty()) return own_command(cell, part_of(cell), cell.program.steps);
    std::string command;
    if (cell.processes > 1) command = quoted(start_processes_) + " " + std::to_string(cell.processes) + " ";
    command += quoted(fs::read_symlink("/proc/self/exe").string()) + " --cell " + quoted(part_of(cell).path);
    // O0 is compared with itself, at the weights that it ends with.
    const auto weights =
        (cell.reference == cell.name ? part_of(cell) : CellFolder{out_ + "/cells/" + cell.reference}).weights();
    return command + " --weights " + quoted(weights);
  }

  // What cannot be compared with a trained O0 is left to the next start, which runs O0 again.
  void make(const Cell& cell) {
    remove_folder(folder_of(cell).path);  // damaged, or of another config
    if (failed_.count(cell.reference) == 0) {
      run(cell);
      return;
    }
    --missing_;
    progress_.line(cell.name + " is skipped: " + cell.reference + ", to which it is compared, failed");
  }

  void run(const Cell& cell) {
    const auto begin = Clock::now();
    const auto part = part_of(cell);
    progress_.begin(name_and_place(cell));
    remove_folder(part.path);
    make_folder(part.path);
    common::write_whole(part.config(), description_of(cell));
    if (!cell.program.command.empty()) common::write_whole(part.level(), cell.level_text);
    auto ended = run_program(cell, begin);
    cell.program.command.empty() ? check_pass(part, ended) : check_tables(part, ended);
    ++ran_;
    if (ended.code == train::kTrained || ended.code == train::kDiverged) {
      keep(cell);
      tell_end(cell, seconds_since(begin), ended.last_line);
    } else {
      failed_.insert(cell.name);
      progress_.line(cell.name + " failed with exit code " + std::to_string(ended.code) + ": " + ended.last_line +
                     " (all of it: " + part.log() + ")");
    }
  }

  Ended run_program(const Cell& cell, Clock::time_point begin) {
    Ended ended;
    std::ofstream log(part_of(cell).log());
    const auto read = [&](const std::string& line) {
      log << line << std::endl;
      if (const auto essence = essence_of(line); !essence.empty()) ended.last_line = essence;
      show(cell, begin, beginning_of(ended.last_line));
    };
    show(cell, begin, "");
    ended.code = run_lines(command_for(cell), read);
    return ended;
  }

  // The last table that a run writes: the report needs all of them, also of a run that diverged.
  static void check_pass(const CellFolder& part, Ended& ended) {
    if (ended.code != train::kTrained && ended.code != train::kDiverged) return;
    if (!fs::exists(part.table("pass"))) ended = {train::kFailed, "the run ended without its tables"};
  }

  // What a report cannot do without; a program's own exit codes say no more than whether it ended well.
  static void check_tables(const CellFolder& part, Ended& ended) {
    if (ended.code != train::kTrained) {
      ended.code = train::kFailed;
    } else if (const auto missing = what_is_missing(part); !missing.empty()) {
      ended = {train::kFailed, missing};
    }
  }

  void keep(const Cell& cell) {
    write_listing(part_of(cell));
    std::error_code error;
    fs::rename(part_of(cell).path, folder_of(cell).path, error);
    if (error) throw common::UserError("cannot rename '" + part_of(cell).path + "': " + error.message());
  }

  std::string name_and_place(const Cell& cell) const {
    return "cell " + std::to_string(done_ + 1) + "/" + std::to_string(cells_.size()) + " " + cell.name;
  }

  // Of the cells that are still missing, by the time that those before took.
  double seconds_left(double of_this) const {
    const double each = ran_ > 0 ? (seconds_since(begin_) - of_this) / ran_ : of_this;
    return std::max(each - of_this, 0.0) + each * std::max(missing_ - ran_ - 1, 0);
  }

  void show(const Cell& cell, Clock::time_point begin, const std::string& line) {
    common::Standing standing;
    standing.task = cell.name;
    standing.done = done_;
    standing.total = static_cast<int64_t>(cells_.size());
    standing.details = line;
    standing.seconds_left = seconds_left(seconds_since(begin));
    progress_.show(standing);
  }

  void tell_end(const Cell& cell, double seconds, const std::string& what) {
    progress_.line(name_and_place(cell) + ": " + what + ", " + common::clock_time(seconds) +
                   (ran_ < missing_ ? ", about " + common::clock_time(seconds_left(0)) + " left" : ""));
  }

  void write_table() const {
    std::string rows = "cell,config,level,seed,processes,reference,finished\n";
    for (const auto& cell : cells_) {
      rows += apex::csv_row(cell.name, cell.config_name, cell.level_name, cell.config.seed, cell.processes, cell.reference,
                            fs::exists(folder_of(cell).listing()));
    }
    common::write_whole(out_ + "/cells.csv", rows);
  }

  const std::vector<Cell>& cells_;
  const std::string out_, start_processes_;
  common::Progress& progress_;
  Clock::time_point begin_ = Clock::now();
  int done_ = 0, missing_ = 0, ran_ = 0;
  std::set<std::string> finished_, failed_;  // by name; finished by an earlier start
};

}  // namespace

int run_cells(const std::string& grid, const std::vector<Cell>& cells, const std::string& out,
              const std::string& start_processes, common::Progress& progress) {
  return Runner(cells, out, start_processes, progress).run(grid);
}

}  // namespace comparison
