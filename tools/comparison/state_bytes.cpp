#include "state_bytes.h"

#include <cstdint>
#include <fstream>
#include <functional>
#include <numeric>
#include <vector>

#include <apex_cpp/tables/csv.h>
#include <nlohmann/json.hpp>

#include "common/user_error.h"

namespace comparison {
namespace {

// A safetensors file begins with the length of a JSON text, which has dtype, shape and place of each tensor by its name.
nlohmann::json header_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  uint64_t length = 0;
  file.read(reinterpret_cast<char*>(&length), sizeof(length));
  std::string text(file ? length : 0, ' ');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!file) throw common::UserError("cannot read checkpoint '" + path + "'");
  return nlohmann::json::parse(text);
}

}  // namespace

std::string optimizer_state(const std::string& checkpoint) {
  std::string rows = "tensor,numel,dtype,bytes\n";
  const auto header = header_of(checkpoint);
  for (const auto& [name, tensor] : header.items()) {
    const std::string prefix = "optimizer0/state/";
    if (name.rfind(prefix, 0) != 0) continue;
    const auto shape = tensor.at("shape").get<std::vector<int64_t>>();
    const auto place = tensor.at("data_offsets").get<std::vector<int64_t>>();
    rows +=
        apex::csv_row(name.substr(prefix.size()), std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>()),
                      tensor.at("dtype").get<std::string>(), place.at(1) - place.at(0));
  }
  return rows;
}

}  // namespace comparison
