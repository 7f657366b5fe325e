#include <apex_cpp/optimizers/detail/remainders.h>
#include <apex_cpp/optimizers/stepped_param.h>

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros_like.h>

namespace apex::optimizers {

const char* name_of(MasterStorage storage) {
  switch (storage) {
    case MasterStorage::float32:
      return "float32";
    case MasterStorage::remainder16:
      return "remainder16";
    case MasterStorage::remainder8:
      return "remainder8";
    case MasterStorage::stochastic:
      return "stochastic";
  }
  return "";
}

MasterStorage master_storage_named(const std::string& name) {
  for (const auto storage :
       {MasterStorage::float32, MasterStorage::remainder16, MasterStorage::remainder8, MasterStorage::stochastic}) {
    if (name == name_of(storage)) return storage;
  }
  TORCH_CHECK_VALUE(false, "There is no master_storage '", name, "'. Take float32, remainder16, remainder8 or stochastic.");
}

}  // namespace apex::optimizers

namespace apex::optimizers::detail {
namespace {

constexpr int kInf = 0x7f800000, kWithoutSign = 0x7fffffff, kNaN = 0x7fc0;

// The bits of a float32 that a remainder does not keep.
int dropped_bits(const at::Tensor& remainder) { return remainder.defined() && remainder.scalar_type() == at::kChar ? 8 : 0; }

at::Tensor halved(const at::Tensor& remainder) {
  return remainder.to(at::kInt).add(128).bitwise_right_shift(8).clamp(-128, 127).to(at::kChar);
}

at::Tensor doubled(const at::Tensor& remainder) { return remainder.to(at::kShort).mul(256); }

}  // namespace

bool has_remainder(at::ScalarType dtype, MasterStorage storage) {
  return dtype == at::kBFloat16 && (storage == MasterStorage::remainder16 || storage == MasterStorage::remainder8);
}

void check_splits(size_t group, size_t position, const at::Tensor& param, MasterStorage storage) {
  TORCH_CHECK(storage == MasterStorage::float32 || param.scalar_type() != at::kHalf, name_of(group, position, param),
              " has dtype Half, and master_storage ", name_of(storage),
              " is for bfloat16 parameters: train with level O5, or leave master_storage float32.");
}

at::ScalarType remainder_dtype(MasterStorage storage) { return storage == MasterStorage::remainder8 ? at::kChar : at::kShort; }

at::Tensor joined(const at::Tensor& param, const at::Tensor& remainder) {
  const at::NoGradGuard no_grad;
  const at::Tensor upper = param.detach().view(at::kShort).to(at::kInt).bitwise_left_shift(16);
  const at::Tensor magnitude = upper.bitwise_and(kWithoutSign);
  const at::Tensor below_zero = (magnitude == 0).logical_and(remainder < 0);
  const at::Tensor above_inf = (magnitude > kInf).logical_or((magnitude == kInf).logical_and(remainder > 0));
  const at::Tensor lower = remainder.to(at::kInt).bitwise_left_shift(dropped_bits(remainder));
  return (upper + lower.masked_fill(below_zero.logical_or(above_inf), 0)).view(at::kFloat);
}

namespace {

// Values as integers: the bits that bfloat16 and remainder keep, of which the remainder has the lowest `bits`.
struct KeptBits {
  KeptBits(const at::Tensor& values, const at::Tensor& param, const at::Tensor& remainder) {
    const int dropped = dropped_bits(remainder);
    bits = 16 - dropped;
    kept = values.detach().to(param.device(), at::kFloat).view(at::kInt);
    is_nan = kept.bitwise_and(kWithoutSign) > kInf;
    if (dropped > 0) kept = (kept + 127 + kept.bitwise_right_shift(dropped).bitwise_and(1)).bitwise_right_shift(dropped);
    upper = (kept + (1 << (bits - 1))).bitwise_right_shift(bits);
  }
  at::Tensor rest_from(const at::Tensor& from) const { return kept - from.bitwise_left_shift(bits); }

  int bits;
  at::Tensor kept, is_nan, upper;
};

}  // namespace

void split_into(const at::Tensor& values, const at::Tensor& param, const at::Tensor& remainder) {
  const at::NoGradGuard no_grad;
  const KeptBits split(values, param, remainder);
  const at::Tensor upper = split.upper.masked_fill(split.is_nan, kNaN).to(at::kShort);
  param.detach().copy_(upper.view(at::kBFloat16));
  if (remainder.defined())
    remainder.copy_(split.rest_from(split.upper).masked_fill_(split.is_nan, 0).to(remainder.scalar_type()));
}

void write_remainder(const at::Tensor& values, const at::Tensor& param, const at::Tensor& remainder) {
  const at::NoGradGuard no_grad;
  const KeptBits split(values, param, remainder);
  const int most = 1 << (split.bits - 1);
  const at::Tensor from_param = split.rest_from(param.detach().view(at::kShort).to(at::kInt));
  const at::Tensor is_near = from_param.abs().le(2 * most);
  const at::Tensor rest = at::where(is_near, from_param.clamp(-most, most - 1), split.rest_from(split.upper));
  remainder.copy_(rest.masked_fill_(split.is_nan, 0).to(remainder.scalar_type()));
}

at::Tensor loaded_remainder(const at::Tensor& param, const at::Tensor& loaded, MasterStorage storage, const std::string& name) {
  if (!has_remainder(param.scalar_type(), storage)) {
    TORCH_CHECK(!loaded.defined(), name, " was saved with a remainder of its master. Here it is ", param.scalar_type(),
                ", and the optimizer has master_storage ", name_of(storage),
                ". Make it bfloat16 (level O5), with the master_storage of the file, or load a file of amp::save_checkpoint, "
                "which fits any.");
    return {};
  }
  const at::ScalarType dtype = remainder_dtype(storage);
  if (!loaded.defined()) return at::zeros_like(param, dtype);
  if (loaded.scalar_type() == dtype) return loaded;
  return dtype == at::kChar ? halved(loaded) : doubled(loaded);
}

}  // namespace apex::optimizers::detail
