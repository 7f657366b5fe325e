#include <apex_cpp/amp/cpu_fallback/cpu_16bit.h>

#include <ATen/Functions.h>
#include <ATen/Parallel.h>
#include <ATen/cpu/Utils.h>
#include <omp.h>
#include <time.h>

#include <algorithm>
#include <cstdlib>
#include <future>
#include <limits>
#include <set>
#include <sstream>
#include <vector>

// From mkl_service.h; null if LibTorch was built without MKL.
extern "C" __attribute__((weak)) int MKL_Set_Num_Threads_Local(int threads);

namespace apex::amp::detail {
namespace {

using opt_levels::Cpu16Bit;

constexpr const char* kCpu16BitVariable = "APEX_CPP_CPU_16BIT";
// Without instructions for the type, native kernels take 10 to 75 times as long as FP32; with them, half as long to equally
// long. This bound is far from both, so that a busy machine does not change the decision from run to run.
constexpr double kNativeMayTake = 4;
// A round takes a millisecond if both ways are fast. The shortest of many rounds is close to the time on an idle machine.
constexpr int kRounds = 40;
constexpr double kSecondsForRounds = 0.05;

/// CPU time of this thread. Wall time would include waiting for a processor or for other threads: it showed native kernels 64
/// times slower when processes shared the cores.
double processor_seconds() {
  timespec spent{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &spent);
  return static_cast<double>(spent.tv_sec) + 1e-9 * static_cast<double>(spent.tv_nsec);
}

struct Feature {
  const char* capability;  // as cpuinfo calls it
  const char* name;
};

std::vector<Feature> features_for(c10::ScalarType type) {
#ifdef __aarch64__
  if (type == at::kHalf) return {{"fp16_arith", "FP16 arithmetic"}};
  return {{"bf16", "BF16 products"}};
#else
  if (type == at::kHalf) return {{"avx512_fp16", "AVX512-FP16"}, {"amx_fp16", "AMX-FP16"}};
  return {{"avx512_bf16", "AVX512-BF16"}, {"amx_bf16", "AMX-BF16"}};
#endif
}

std::string joined_names(const std::vector<Feature>& features, const char* separator) {
  std::string text;
  for (const auto& feature : features) text += (text.empty() ? "" : separator) + std::string(feature.name);
  return text;
}

std::vector<Feature> features_here(c10::ScalarType type) {
  const auto capabilities = at::cpu::get_cpu_capabilities();
  std::vector<Feature> here;
  for (const auto& feature : features_for(type)) {
    const auto found = capabilities.find(feature.capability);
    if (found != capabilities.end() && found->second.isBool() && found->second.toBool()) here.push_back(feature);
  }
  return here;
}

/// The products of one step of a linear layer and of a convolution, in one type. Native kernels may have a fast path for some
/// layouts and a plain loop for the others, so all three layouts of a step are measured.
struct Probe {
  at::Tensor input, weight, image, filters;

  explicit Probe(c10::ScalarType type)
      : input(at::ones({64, 256}, type)),
        weight(at::ones({256, 256}, type)),
        image(at::ones({4, 32, 16, 16}, type)),
        filters(at::ones({32, 32, 3, 3}, type)) {}

  void run() const {
    const at::Tensor output = at::mm(input, weight.t());
    at::mm(output, weight);
    at::mm(output.t(), input);
    const at::Tensor maps = at::conv2d(image, filters);
    at::convolution_backward(maps, image, filters, std::nullopt, {1, 1}, {0, 0}, {1, 1}, false, {0, 0}, 1, {true, true, false});
  }
  double seconds() const {
    const double start = processor_seconds();
    run();
    return processor_seconds() - start;
  }
};

/// Native time over FP32 time on this thread: the shortest of interleaved rounds of each.
double measured_ratio(c10::ScalarType type) {
  const Probe native(type), float32(at::kFloat);
  double native_time = std::numeric_limits<double>::infinity(), float32_time = native_time;
  double spent = 0;
  for (int i = 0; i < kRounds && (i < 3 || spent < kSecondsForRounds); ++i) {
    const double in_native = native.seconds(), in_float32 = float32.seconds();
    native_time = std::min(native_time, in_native);
    float32_time = std::min(float32_time, in_float32);
    spent += in_native + in_float32;
  }
  return native_time / float32_time;
}

// Limits the calling thread to one thread. `at::set_num_threads` would also change every thread that LibTorch has yet to see,
// and set a number for MKL.
void compute_alone() {
  at::get_num_threads();  // the first call sets the thread's numbers
  ::omp_set_num_threads(1);
  if (MKL_Set_Num_Threads_Local) MKL_Set_Num_Threads_Local(1);
}

/// Measures on a new thread, which has no casts and computes alone.
double native_over_float32(c10::ScalarType type) {
  const auto alone = [type] {
    compute_alone();
    return measured_ratio(type);
  };
  return std::async(std::launch::async, alone).get();
}

// The instruction set to which the environment limits oneDNN, if it lacks instructions for the type; otherwise empty.
std::string onednn_limit(c10::ScalarType type) {
  std::set<std::string> too_little{"SSE41", "AVX", "AVX2", "AVX2_VNNI", "AVX512_CORE", "AVX512_CORE_VNNI"};
  if (type == at::kHalf) too_little.insert("AVX512_CORE_BF16");
  for (const std::string variable : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}) {
    const char* value = std::getenv(variable.c_str());
    if (value && too_little.count(value)) return variable + "=" + value;
  }
  return {};
}

CpuCompute decide(c10::ScalarType type) {
  const auto here = features_here(type);
  if (here.empty()) return {true, true, "this processor has no " + joined_names(features_for(type), " and no ")};
  const std::string limit = onednn_limit(type);
  if (!limit.empty()) return {true, true, limit + " keeps oneDNN from " + joined_names(here, " and ")};
  const double ratio = native_over_float32(type);
  std::ostringstream reason;
  reason.precision(2);
  reason << "with " << joined_names(here, " and ") << ", the products of a step take " << ratio
         << " times what they take in FP32";
  return {ratio > kNativeMayTake, true, reason.str()};
}

template <c10::ScalarType kType>
const CpuCompute& decided() {
  static const CpuCompute choice = decide(kType);
  return choice;
}

CpuCompute as_asked(Cpu16Bit way, const std::string& by) {
  return {way == Cpu16Bit::float32, way != Cpu16Bit::native, "as " + by + " asks for"};
}

}  // namespace

CpuCompute cpu_compute(Cpu16Bit wanted, c10::ScalarType type) {
  if (wanted != Cpu16Bit::automatic) return as_asked(wanted, "cpu_16bit");
  const char* text = std::getenv(kCpu16BitVariable);
  const std::string variable = text ? text : "";
  if (variable.empty() || variable == "auto") {
    return type == at::kHalf ? decided<at::kHalf>() : decided<at::kBFloat16>();
  }
  TORCH_CHECK_VALUE(variable == "native" || variable == "float32", kCpu16BitVariable, "=", variable,
                    " in the environment is not allowed. Set it to auto, native or float32.");
  return as_asked(variable == "native" ? Cpu16Bit::native : Cpu16Bit::float32, kCpu16BitVariable);
}

}  // namespace apex::amp::detail
