#pragma once
// A training state of the pair "adam" with a scaler, which tests damage and load.
#include <apex_cpp/amp/checkpoint/safetensors.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <functional>
#include <string>
#include <vector>

#include "tests/exchange/training.h"

namespace apex::test {

/// Everything in a file.
std::string bytes_in(const std::string& path);

class HostileStates : public testing::Test {
 protected:
  using Json = nlohmann::json;
  using TensorFile = amp::detail::TensorFile;
  using Damage = std::function<void(TensorFile&, Json&)>;

  HostileStates();
  ~HostileStates() override;

  /// In a folder of the test's own.
  std::string path(const std::string& name = "state") const { return folder_ + "/" + name; }

  /// Loads the file "damaged" into a run of another pair or mode. Expects an error with these texts, and no change.
  void expect_refused(const std::vector<std::string>& texts, const std::string& pair = "adam",
                      const std::string& mode = "scaler");
  /// The same, of the damaged state.
  void expect_refused(const Damage& damage, const std::vector<std::string>& texts, const std::string& pair = "adam",
                      const std::string& mode = "scaler");

  /// Replaces a value of the JSON text.
  static Damage with(const std::string& pointer, const Json& value);
  /// Removes an entry of an object of the JSON text.
  static Damage without(const std::string& pointer, const std::string& key);
  static at::Tensor& tensor_in(TensorFile& file, const std::string& name);

 private:
  std::string folder_;
};

}  // namespace apex::test
