#include "processor.h"

#include <ATen/Version.h>
#include <ATen/cpu/Utils.h>
#include <apex_cpp/amp/cpu_fallback/cpu_16bit.h>

#include <cstdlib>

namespace bench::train {
namespace {

struct Instructions {
  const char* capability;  // its name in /proc/cpuinfo
  const char* name;
};

constexpr Instructions kInstructions[] = {
    {"avx2", "AVX2"},         {"avx512_f", "AVX512"},   {"avx512_bf16", "AVX512-BF16"}, {"avx512_fp16", "AVX512-FP16"},
    {"amx_bf16", "AMX-BF16"}, {"amx_fp16", "AMX-FP16"},
};
constexpr const char* kVariables[] = {"ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "APEX_CPP_CPU_16BIT"};

using Capabilities = std::unordered_map<std::string, c10::IValue>;

std::string name_in(const Capabilities& capabilities) {
  const auto name = capabilities.find("cpu_name");
  return name != capabilities.end() && name->second.isString() ? name->second.toStringRef() : "unknown";
}

std::string instructions_in(const Capabilities& capabilities) {
  std::string text;
  for (const auto& [capability, name] : kInstructions) {
    const auto found = capabilities.find(capability);
    if (found == capabilities.end() || !found->second.isBool() || !found->second.toBool()) continue;
    text += (text.empty() ? "" : " ") + std::string(name);
  }
  return text.empty() ? "no AVX2" : text;
}

std::string environment() {
  std::string text;
  for (const char* variable : kVariables) {
    if (const char* value = std::getenv(variable)) text += std::string("; ") + variable + "=" + value;
  }
  return text;
}

/// How amp's levels compute on CPU tensors of a dtype by default.
std::string way_of_amp(const char* name, c10::ScalarType type) {
  const auto compute = apex::amp::detail::cpu_compute(apex::opt_levels::Cpu16Bit::automatic, type);
  return std::string("; amp's ") + name + (compute.in_float32 ? " in FP32" : " native");
}

}  // namespace

Result processor(int threads) {
  const auto capabilities = at::cpu::get_cpu_capabilities();
  Result result{"processor", name_in(capabilities), threads, {}};
  result.remark = instructions_in(capabilities) + "; LibTorch's own kernels: " + at::get_cpu_capability() + environment();
  result.remark += way_of_amp("BF16", at::kBFloat16) + way_of_amp("FP16", at::kHalf);
  return result;
}

}  // namespace bench::train
