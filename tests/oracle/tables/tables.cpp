#include "tests/oracle/tables/tables.h"

#include <ATen/Functions.h>
#include <apex_cpp/amp/scaling/loss_scaler.h>

#include <functional>
#include <map>
#include <set>

#include "tests/oracle/features.h"
#include "tests/oracle/verdict/compare.h"

namespace oracle {
namespace {

namespace amp = apex::amp;

struct TablePlayer {
  std::set<std::string> parts;  // the members with rows
  std::function<void(const Json&, Report&)> play;
};

// Tables by the member that only they have. A new table is one more entry.
const std::map<std::string, TablePlayer>& table_registry() {
  static const std::map<std::string, TablePlayer> kRegistry = {
      {"cases", {{"cases"}, replay_error_table}},
      {"sequences", {{"sequences"}, replay_scaler_table}},
      {"conversions",
       {{"conversions", "prep_param_lists", "legacy_dynamic_scaler", "legacy_has_inf_or_nan_float32",
         "legacy_has_inf_or_nan_float16"},
        replay_fp16_utils_table}},
      {"ops", {{"ops", "modules"}, replay_o1_table}},
      {"rows", {{"rows"}, replay_user_registry_table}}};
  return kRegistry;
}

const TablePlayer& player_of(const Json& table) {
  for (const auto& [member, player] : table_registry()) {
    if (!table.has(member)) continue;
    std::set<std::string> known = {"format_version", "description"};
    known.insert(player.parts.begin(), player.parts.end());
    require_known(table, known, "a table of " + member);
    return player;
  }
  throw NeedsFeature("a table of this kind");
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
  require_known(row, {"args", "initial_scale", "overflow", "scale", "unskipped", "skip"}, "a scaler sequence");
  require_known(row.at("args"),
                {"loss_scale", "init_scale", "scale_factor", "scale_window", "min_loss_scale", "max_loss_scale"},
                "the arguments of a scaler");
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

at::ScalarType input_type(const std::string& name) {
  static const std::map<std::string, at::ScalarType> kTypes = {{"half", at::kHalf},   {"bfloat16", at::kBFloat16},
                                                               {"float", at::kFloat}, {"double", at::kDouble},
                                                               {"int64", at::kLong},  {"bool", at::kBool}};
  const auto found = kTypes.find(name);
  if (found == kTypes.end()) throw NeedsFeature("inputs of type " + name);
  return found->second;
}

void replay_table(const std::filesystem::path& path, Report& report) {
  const std::string name = path.filename().string();
  report.begin(name, "");
  try {
    const Json table = Json::parse_file(path);
    player_of(table).play(table, report);
  } catch (const NeedsFeature& needed) {
    report.skip(name, needed.what());
  } catch (const std::exception& error) {
    report.begin(name, "");
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
