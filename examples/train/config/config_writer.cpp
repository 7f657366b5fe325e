#include <array>
#include <charconv>
#include <sstream>

#include <yaml-cpp/yaml.h>

#include "config/config_keys.h"

namespace train {
namespace {

// The shortest text that reads back as the same double.
std::string shortest(double value) {
  std::array<char, 32> buffer{};
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  return std::string(buffer.data(), end);
}

std::string quoted_where_needed(const std::string& text) {
  YAML::Emitter emitter;
  emitter << text;
  return emitter.c_str();
}

class Writer : public ConfigKeys {
 public:
  explicit Writer(std::string indent) : indent_(std::move(indent)) {}

  bool has(const std::string&) override { return false; }
  void text(const std::string& key, std::string& value) override { line(key, quoted_where_needed(value)); }
  void choice(const std::string& key, std::string& value, const std::vector<std::string>&) override { line(key, value); }
  void integer(const std::string& key, int64_t& value, int64_t, int64_t) override { line(key, std::to_string(value)); }
  void real(const std::string& key, double& value, double, double) override { line(key, shortest(value)); }
  void flag(const std::string& key, bool& value) override { line(key, value ? "true" : "false"); }

  void integers(const std::string& key, std::vector<int64_t>& values, int64_t, int64_t) override {
    std::string list;
    for (const auto value : values) {
      list += (list.empty() ? "" : ", ") + std::to_string(value);
    }
    line(key, "[" + list + "]");
  }

  void section(const std::string& key, const std::function<void(ConfigKeys&)>& describe) override {
    Writer inner(indent_ + "  ");
    describe(inner);
    written_ += indent_ + key + ":\n" + inner.written_;
  }

  void block(const std::string& key, const std::function<void(const std::string&)>&, const std::string& text) override {
    written_ += indent_ + key + ":\n";
    std::istringstream lines(text);
    for (std::string each; std::getline(lines, each);) {
      written_ += each.empty() ? "" : indent_ + "  " + each + "\n";
    }
  }

  bool require(bool holds, const std::string&, const std::string&) override { return holds; }

  const std::string& written() const { return written_; }

 private:
  void line(const std::string& key, const std::string& value) { written_ += indent_ + key + ": " + value + "\n"; }

  std::string indent_;
  std::string written_;
};

}  // namespace

std::string write_keys(const std::function<void(ConfigKeys&)>& describe) {
  Writer writer("");
  describe(writer);
  return writer.written();
}

}  // namespace train
