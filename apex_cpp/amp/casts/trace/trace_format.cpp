#include <apex_cpp/amp/casts/trace/trace_format.h>
#include <apex_cpp/tables/csv.h>

#include <c10/util/Exception.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iomanip>
#include <sstream>
#include <tuple>

namespace apex::amp::detail {
namespace {

template <class Items, class Text>
std::string joined(const Items& items, const char* separator, Text&& text) {
  std::string result;
  for (const auto& item : items) result += (result.empty() ? "" : separator) + text(item);
  return result;
}

std::string dtypes(const std::vector<c10::ScalarType>& types) {
  return joined(types, " ", [](c10::ScalarType type) { return std::string(c10::toString(type)); });
}

std::string cast_text(const TracedOp::Cast& cast) {
  return std::string(c10::toString(cast.from)) + "->" + c10::toString(cast.to) + (cast.cached ? "(cached)" : "");
}

using Row = std::array<std::string, 8>;

Row row_of(const TracedOp& op) {
  return {op.name,
          op.module,
          op.backward ? "backward" : "forward",
          dtypes(op.inputs),
          dtypes(op.outputs),
          joined(op.casts, " ", cast_text),
          op.in_float32 ? "float32" : "",
          std::to_string(op.cache_hits())};
}

std::vector<Row> rows_of(const std::vector<TracedOp>& ops) {
  std::vector<Row> rows{{"op", "module", "pass", "inputs", "outputs", "casts", "computed_in", "cache_hits"}};
  for (const auto& op : ops) rows.push_back(row_of(op));
  return rows;
}

// Names of operators and parameters may be the user's.
std::string json_string(const std::string& text) {
  std::ostringstream json;
  json << '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      json << '\\' << c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      json << "\\u" << std::hex << std::setw(4) << std::setfill('0') << static_cast<int>(c) << std::dec;
    } else {
      json << c;
    }
  }
  json << '"';
  return json.str();
}

std::string dtype_list(const std::vector<c10::ScalarType>& types) {
  return "[" + joined(types, ", ", [](c10::ScalarType type) { return json_string(c10::toString(type)); }) + "]";
}

std::string json_of(const TracedOp::Cast& cast) {
  return "{\"from\": " + json_string(c10::toString(cast.from)) + ", \"to\": " + json_string(c10::toString(cast.to)) +
         ", \"cached\": " + (cast.cached ? "true" : "false") + "}";
}

std::string json_of(const TracedOp& op) {
  return "{\"name\": " + json_string(op.name) + ", \"module\": " + json_string(op.module) +
         ", \"backward\": " + (op.backward ? "true" : "false") + ", \"inputs\": " + dtype_list(op.inputs) +
         ", \"outputs\": " + dtype_list(op.outputs) + ", \"casts\": [" +
         joined(op.casts, ", ", [](const TracedOp::Cast& cast) { return json_of(cast); }) +
         "], \"in_float32\": " + (op.in_float32 ? "true" : "false") + "}";
}

}  // namespace

std::string trace_table(const std::vector<TracedOp>& ops) {
  const auto rows = rows_of(ops);
  std::array<size_t, std::tuple_size_v<Row>> widths{};
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::ostringstream table;
  for (const auto& row : rows) {
    for (size_t i = 0; i + 1 < row.size(); ++i) table << std::left << std::setw(static_cast<int>(widths[i] + 2)) << row[i];
    table << row.back() << "\n";
  }
  return table.str();
}

std::string trace_json(const std::vector<TracedOp>& ops) {
  return "{\"ops\": [\n" + joined(ops, ",\n", [](const TracedOp& op) { return json_of(op); }) + "\n]}\n";
}

std::string trace_csv(const std::vector<TracedOp>& ops) {
  std::string text;
  for (const auto& row : rows_of(ops)) {
    text += std::apply([](const auto&... fields) { return csv_row(fields...); }, row);
  }
  return text;
}

void write_text(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  file << text << std::flush;
  TORCH_CHECK(file, "amp cannot write '", path, "': ", std::strerror(errno), ".");
}

}  // namespace apex::amp::detail
