#include <apex_cpp/amp/printing.h>

#include <iomanip>
#include <iostream>

namespace apex::amp::detail {
namespace {

void print_table(const opt_levels::Properties& properties) {
  for (const auto& [name, value] : opt_levels::describe(properties)) {
    std::cout << "  " << std::left << std::setw(22) << name << " : " << value << "\n";
  }
}

}  // namespace

void print_properties(const opt_levels::OptLevel& level, const opt_levels::Settings& settings) {
  if (settings.verbosity <= 0) return;
  std::cout << "amp: opt level " << level.name() << ": " << level.description() << "\n"
            << "Properties that the level sets:\n";
  print_table(level.preset());
  std::cout << "Properties in force, with overrides:\n";
  print_table(settings.properties);
  std::cout << std::flush;
}

void print_skipped_step(const Session& session, int64_t loss_id, const StepResult& result) {
  if (session.settings.verbosity <= 0) return;
  std::cout << "amp: gradient overflow";
  if (!result.first_nonfinite.empty()) std::cout << ", first in parameter '" << result.first_nonfinite << "'";
  std::cout << ". Skipping step, loss scaler " << loss_id << " is at loss scale " << session.scalers.at(loss_id).loss_scale()
            << std::endl;
}

}  // namespace apex::amp::detail
