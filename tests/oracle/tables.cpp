#include "tests/oracle/tables.h"

#include <ATen/Functions.h>
#include <apex_cpp/amp/scaling/loss_scaler.h>

#include <functional>
#include <map>

#include "tests/oracle/compare.h"

namespace oracle {
namespace {

namespace amp = apex::amp;
using TablePlayer = std::function<void(const Json&, Report&)>;

// Tables by the member that only they have. A new table is one more entry.
const std::map<std::string, TablePlayer>& table_registry() {
  static const std::map<std::string, TablePlayer> kRegistry = {{"cases", replay_error_table},
                                                               {"sequences", replay_scaler_table},
                                                               {"conversions", replay_fp16_utils_table},
                                                               {"ops", replay_o1_table},
                                                               {"rows", replay_user_registry_table}};
  return kRegistry;
}

amp::LossScaler make_scaler(const Json& args) {
  const Json& mode = args.at("loss_scale");
  const Json* floor = args.find("min_loss_scale");
  const Json* ceiling = args.find("max_loss_scale");
  constexpr double kDefaultCeiling = 16777216.0;
  const double max_scale = ceiling ? ceiling->as_double() : kDefaultCeiling;
  amp::LossScaler scaler(mode.is_number() ? amp::LossScale(mode.as_double()) : amp::LossScale(mode.as_string()),
                         floor ? std::optional<double>(floor->as_double()) : std::nullopt, max_scale);
  // Apex's init_scale is no argument here; a saved scale put in force has the same effect up to the ceiling.
  const Json* init = args.find("init_scale");
  if (init && init->as_double() <= max_scale) scaler.restore(init->as_double(), 0);
  if (args.has("scale_window")) scaler.set_scale_window(args.at("scale_window").as_int());
  return scaler;
}

bool update(amp::LossScaler& scaler, bool overflow) {
  const at::Tensor gradient = at::full({3}, overflow ? INFINITY : 1.0f);
  scaler.clear_overflow_state();
  scaler.unscale({gradient}, {at::empty({3})});
  return scaler.update_scale();
}

void play_sequence(const Json& row, Report& report) {
  amp::LossScaler scaler = make_scaler(row.at("args"));
  compare_number(report, "initial scale", scaler.loss_scale(), row.at("initial_scale").as_double(), {});
  const std::string overflow = row.at("overflow").as_string();
  const std::string skip = row.at("skip").as_string();
  for (size_t i = 0; i < overflow.size(); ++i) {
    report.at("update " + std::to_string(i));
    const bool skipped = update(scaler, overflow[i] == '1');
    compare_text(report, "skip", skipped ? "1" : "0", std::string(1, skip.at(i)));
    compare_number(report, "scale", scaler.loss_scale(), row.at("scale").items().at(i).as_double(), {});
    compare_number(report, "unskipped", static_cast<double>(scaler.unskipped()), row.at("unskipped").items().at(i).as_double(),
                   {});
  }
}

}  // namespace

void replay_table(const std::filesystem::path& path, Report& report) {
  report.begin(path.filename().string(), "");
  try {
    const Json table = Json::parse_file(path);
    for (const auto& [member, player] : table_registry()) {
      if (table.has(member)) return player(table, report);
    }
    report.skip(path.filename().string(), "needs a table of this kind");
  } catch (const std::exception& error) {
    report.begin(path.filename().string(), "");
    report.fail("a readable table", "none", error.what());
    report.end();
  }
}

void replay_scaler_table(const Json& table, Report& report) {
  const auto& rows = table.at("sequences").items();
  for (size_t i = 0; i < rows.size(); ++i) {
    play(report, "loss scaler sequence " + std::to_string(i), "loss scaler", [&] { play_sequence(rows[i], report); });
  }
}

}  // namespace oracle
