#include "layers.h"

#include <map>

#include <apex_cpp/amp/statistics.h>
#include <apex_cpp/files/csv.h>

#include "differences.h"

namespace comparison {
namespace {

namespace amp = apex::amp;

constexpr const char* kLayersHeader =
    "kind,name,layer,dtype,numel,relative_error,sqnr_db,cosine,inf,nan,abs_max,nonzero,underflow_zero,underflow_subnormal\n";

int64_t finite_nonzero(const amp::TensorStatistics& statistics) {
  return statistics.numel - statistics.zeros - statistics.inf - statistics.nan;
}

// Of O0's values, where the level's tensor has 16 bits.
amp::Underflow underflow(const amp::TensorStatistics& reference, double scale, const at::Tensor& tensor) {
  const auto dtype = tensor.scalar_type();
  return dtype == at::kHalf || dtype == at::kBFloat16 ? reference.underflow(scale, dtype) : amp::Underflow{};
}

class Tables {
 public:
  explicit Tables(double loss_scale) : loss_scale_(loss_scale) { tables_.layers = kLayersHeader; }

  void add(const std::string& kind, const std::vector<PassTensor>& reference, const std::vector<PassTensor>& tensors) {
    for (size_t i = 0; i < tensors.size(); ++i) add(kind, reference[i], tensors[i]);
  }

  LayerTables finish() {
    tables_.exponents = "kind,of,exponent,count\n";
    for (const auto& [key, exponents] : exponents_) {
      for (const auto& [exponent, count] : exponents)
        tables_.exponents += apex::csv_row(key.first, key.second, exponent, count);
    }
    return tables_;
  }

 private:
  void add(const std::string& kind, const PassTensor& reference, const PassTensor& tensor) {
    const auto records = amp::statistics({{"reference", reference.value}, {"level", tensor.scaled}});
    const auto lost = underflow(records[0], kind == "output" ? 1 : loss_scale_, tensor.scaled);
    const auto apart = difference(reference.value, tensor.value);
    tables_.layers += apex::csv_row(kind, tensor.name, tensor.layer_type, c10::toString(tensor.scaled.scalar_type()),
                                    tensor.scaled.numel(), apart.relative_error, apart.sqnr_db, apart.cosine, apart.inf,
                                    apart.nan, records[0].abs_max, finite_nonzero(records[0]), lost.zero, lost.subnormal);
    for (const auto& [exponent, count] : records[0].exponents) exponents_[{kind, "O0"}][exponent] += count;
    for (const auto& [exponent, count] : records[1].exponents) exponents_[{kind, "level"}][exponent] += count;
  }

  double loss_scale_;
  LayerTables tables_;
  std::map<std::pair<std::string, std::string>, std::map<int, int64_t>> exponents_;
};

}  // namespace

LayerTables compare_layers(const Pass& reference, const Pass& pass, double loss_scale) {
  Tables tables(loss_scale);
  tables.add("output", reference.outputs, pass.outputs);
  tables.add("gradient", reference.gradients, pass.gradients);
  tables.add("weight gradient", reference.weight_gradients, pass.weight_gradients);
  return tables.finish();
}

}  // namespace comparison
