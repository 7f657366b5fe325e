#include "rounds.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <apex_cpp/amp/comparison.h>
#include <apex_cpp/files/csv.h>

#include "common/folder_lock.h"
#include "common/user_error.h"
#include "common/write_whole.h"
#include "own_program.h"
#include "shell.h"

namespace comparison {
namespace {

namespace fs = std::filesystem;
namespace detail = apex::amp::detail;

constexpr const char* kRoundsHeader = "config,processes,round,level,step_ms,forward_ms,backward_ms,optimizer_ms\n";
constexpr int64_t kStepsOfAProgram = 40;  // of a turn; a run is judged by the median behind the first five

/// The rows of a CSV table of numbers without a header, each to be read by `>>`.
std::vector<std::istringstream> rows_of(std::string table) {
  std::replace(table.begin(), table.end(), ',', ' ');
  std::vector<std::istringstream> rows;
  std::istringstream lines(table);
  for (std::string line; std::getline(lines, line);) rows.emplace_back(line);
  return rows;
}

/// The cells of one config on one number of processes: those of each level, which has the same seeds as the others.
struct Group {
  std::string config;
  int64_t processes = 1;
  std::vector<std::string> levels;
  std::vector<std::vector<Cell>> cells;  // of each level, in the order of seeds

  const Cell& first() const { return cells.front().front(); }
  bool has_program() const { return !first().program.command.empty(); }
  std::string name() const {
    return detail::folder_name(config + (processes > 1 ? "-" + std::to_string(processes) + "processes" : ""));
  }
  /// What its times belong to.
  std::string description() const {
    std::string text;
    for (const auto& level : cells) text += description_of(level.front()) + "---\n";
    return text;
  }
};

/// Milliseconds of one level in one round; the parts are not known of a program.
struct Turn {
  double step = 0;
  std::array<double, 3> parts{};
};

using Turns = std::vector<std::vector<Turn>>;  // rounds of levels

std::vector<Group> groups_of(const std::vector<Cell>& cells, const std::string& out) {
  std::map<std::pair<std::string, int64_t>, Group> groups;
  std::vector<std::pair<std::string, int64_t>> order;
  for (const auto& cell : cells) {
    if (!is_finished({out + "/cells/" + cell.name}, cell)) continue;
    const std::pair key(cell.config_name, cell.processes);
    const auto [entry, is_new] = groups.try_emplace(key);
    if (is_new) order.push_back(key);
    auto& group = entry->second;
    group.config = cell.config_name;
    group.processes = cell.processes;
    const auto found = std::find(group.levels.begin(), group.levels.end(), cell.level_name);
    const auto place = static_cast<size_t>(found - group.levels.begin());
    if (found == group.levels.end()) {
      group.levels.push_back(cell.level_name);
      group.cells.emplace_back();
    }
    group.cells[place].push_back(cell);
  }
  std::vector<Group> ordered;
  for (const auto& key : order) ordered.push_back(std::move(groups.at(key)));
  return ordered;
}

class Timer {
 public:
  Timer(const Group& group, const RoundsPlan& plan, common::Progress& progress)
      : group_(group), plan_(plan), progress_(progress), folder_(plan.out + "/rounds/" + group.name()) {}

  /// Rounds, as many as are needed. Throws UserError where a run fails.
  Turns turns() {
    if (group_.has_program() && !group_.first().program.takes_steps()) return of_seeds();
    auto turns = read();
    // All rounds were made, and the machine was too busy: these say no more than before.
    if (static_cast<int64_t>(turns.size()) >= plan_.most && detail::has_unknown_order(steps_of(turns))) turns.clear();
    while (detail::needs_rounds(steps_of(turns), plan_.most)) {
      const auto made = static_cast<int64_t>(turns.size());
      const auto more = made < detail::kFirstRounds ? detail::kFirstRounds - made : detail::kMoreRounds;
      show(made, std::min(more, plan_.most - made));
      add(turns, std::min(more, plan_.most - made));
      write(turns);
    }
    return turns;
  }

  static detail::Rounds steps_of(const Turns& turns) {
    detail::Rounds rounds;
    for (const auto& round : turns) {
      auto& times = rounds.emplace_back();
      for (const auto& turn : round) times.push_back(turn.step);
    }
    return rounds;
  }

 private:
  void show(int64_t made, int64_t more) {
    progress_.line("timing " + group_.name() + ": rounds " + std::to_string(made + 1) + " to " + std::to_string(made + more) +
                   (made > 0 ? ", because the order of two levels is not clear yet" : ""));
  }

  // Levels took turns within each seed.
  Turns of_seeds() const {
    Turns turns;
    for (const auto& at_reference : group_.cells.front()) {
      std::vector<Turn> round;
      for (const auto& level : group_.cells) {
        const auto same_seed = [&](const Cell& cell) { return cell.config.seed == at_reference.config.seed; };
        const auto cell = std::find_if(level.begin(), level.end(), same_seed);
        if (cell != level.end()) round.push_back({median_step({plan_.out + "/cells/" + cell->name})});
      }
      if (round.size() == group_.levels.size()) turns.push_back(std::move(round));
    }
    return turns;
  }

  std::string table() const { return folder_ + ".csv"; }
  std::string description() const { return folder_ + ".yaml"; }

  // Those of an earlier start, unless they are of something else.
  Turns read() const {
    Turns turns;
    if (content_of(description()) != group_.description()) return turns;
    for (std::istringstream& fields : rows_of(content_of(table()))) {
      size_t round = 0, level = 0;
      Turn turn;
      fields >> round >> level >> turn.step >> turn.parts[0] >> turn.parts[1] >> turn.parts[2];
      if (round >= turns.size()) turns.resize(round + 1, std::vector<Turn>(group_.levels.size()));
      turns[round].at(level) = turn;
    }
    return turns;
  }

  void write(const Turns& turns) const {
    std::string rows;
    for (size_t round = 0; round < turns.size(); ++round) {
      for (size_t level = 0; level < turns[round].size(); ++level) {
        const auto& turn = turns[round][level];
        rows += apex::csv_row(round, level, turn.step, turn.parts[0], turn.parts[1], turn.parts[2]);
      }
    }
    common::write_whole(table(), rows);
    common::write_whole(description(), group_.description());
  }

  void add(Turns& turns, int64_t more) {
    remove_folder(folder_);
    fs::create_directories(folder_);
    group_.has_program() ? add_of_program(turns, more) : add_of_configs(turns, more);
    remove_folder(folder_);
  }

  void run(const std::string& command) const {
    std::string last;
    const auto code = run_lines(command, [&](const std::string& line) { last = line; });
    if (code != 0) {
      throw common::UserError("timing " + group_.name() + " failed with exit code " + std::to_string(code) + ": " + last);
    }
  }

  void add_of_configs(Turns& turns, int64_t more) const {
    for (size_t i = 0; i < group_.levels.size(); ++i) {
      common::write_whole(folder_ + "/" + std::to_string(i) + ".yaml", train::to_yaml(group_.cells[i].front().config));
    }
    auto command = group_.processes > 1 ? quoted(plan_.start_processes) + " " + std::to_string(group_.processes) + " " : "";
    command += quoted(fs::read_symlink("/proc/self/exe").string()) + " --turns " + quoted(folder_);
    run(command + " --rounds " + std::to_string(more));
    const auto before = turns.size();
    turns.resize(before + static_cast<size_t>(more), std::vector<Turn>(group_.levels.size()));
    for (std::istringstream& fields : rows_of(content_of(folder_ + "/turns.csv"))) {
      size_t round = 0, level = 0;
      Turn turn;
      fields >> round >> level >> turn.parts[0] >> turn.parts[1] >> turn.parts[2];
      turn.step = turn.parts[0] + turn.parts[1] + turn.parts[2];
      turns.at(before + round).at(level) = turn;
    }
  }

  void add_of_program(Turns& turns, int64_t more) const {
    const auto count = group_.levels.size();
    for (int64_t i = 0; i < more; ++i) {
      const auto first = turns.size() % count;  // no level is always the first
      std::vector<Turn> round(count);
      for (size_t j = 0; j < count; ++j) {
        const auto level = (first + j) % count;
        const auto& cell = group_.cells[level].front();
        const CellFolder folder{folder_ + "/" + std::to_string(level)};
        fs::create_directories(folder.path);
        common::write_whole(folder.level(), cell.level_text);
        run(own_command(cell, folder, std::min(kStepsOfAProgram, cell.program.steps)));
        round[level].step = median_step(folder);
        remove_folder(folder.path);
      }
      turns.push_back(std::move(round));
    }
  }

  const Group& group_;
  const RoundsPlan& plan_;
  common::Progress& progress_;
  const std::string folder_;
};

}  // namespace

int make_rounds(const std::vector<Cell>& cells, const RoundsPlan& plan, common::Progress& progress) {
  std::string rows = kRoundsHeader, times = detail::kTimesHeader, ratios = detail::kRatiosHeader;
  int failed = 0;
  const common::FolderLock lock(plan.out, "another comparison is running in '" + plan.out +
                                              "': wait until it has ended, or choose another folder with --out");
  fs::create_directories(plan.out + "/rounds");
  for (const auto& group : groups_of(cells, plan.out)) {
    try {
      const auto turns = Timer(group, plan, progress).turns();
      for (size_t round = 0; round < turns.size(); ++round) {
        for (size_t level = 0; level < group.levels.size(); ++level) {
          const auto& turn = turns[round][level];
          rows += apex::csv_row(group.config, group.processes, round, group.levels[level], turn.step, turn.parts[0],
                                turn.parts[1], turn.parts[2]);
        }
      }
      const detail::TimedGroup timed{group.config, group.processes, group.levels, Timer::steps_of(turns)};
      times += detail::times_rows(timed);
      ratios += detail::ratios_rows(timed);
    } catch (const common::UserError& error) {
      progress.line(error.what());
      ++failed;
    }
  }
  common::write_whole(plan.out + "/rounds.csv", rows);
  common::write_whole(plan.out + "/times.csv", times);
  common::write_whole(plan.out + "/ratios.csv", ratios);
  return failed;
}

}  // namespace comparison
