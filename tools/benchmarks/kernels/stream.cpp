#include "stream.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>

#include "stream_cpu.h"

namespace bench::kernels {
namespace {

double bytes_of(const Traffic& list) {
  double bytes = 0;
  for (const auto& tensor : list.tensors) bytes += static_cast<double>(tensor.nbytes());
  return list.access == Access::update ? 2 * bytes : bytes;
}

double bytes_of(const PassTraffic& pass) {
  double bytes = 0;
  for (const auto& list : pass) bytes += bytes_of(list);
  return bytes;
}

std::function<void()> device_copies(const std::vector<PassTraffic>& passes, at::Device device) {
  std::vector<std::pair<at::Tensor, at::Tensor>> copies;
  for (const auto& pass : passes) {
    const auto half = static_cast<int64_t>(bytes_of(pass) / 2);
    const auto from = at::empty({half}, at::TensorOptions(device).dtype(at::kByte));
    copies.emplace_back(from, at::empty_like(from));
  }
  return [copies] {
    for (const auto& [from, to] : copies) to.copy_(from, /*non_blocking=*/true);
  };
}

}  // namespace

double bytes_of(const std::vector<PassTraffic>& passes) {
  double bytes = 0;
  for (const auto& pass : passes) bytes += bytes_of(pass);
  return bytes;
}

std::function<void()> stream(std::vector<PassTraffic> passes, const Way& way) {
  const at::Device device = passes.front().front().tensors.front().device();
  if (!device.is_cpu()) return device_copies(passes, device);
  std::vector<StreamPass> laid_out;
  for (const auto& pass : passes) laid_out.emplace_back(pass, way);
  return [laid_out, keep = std::move(passes)] {
    for (const auto& pass : laid_out) pass.run();
  };
}

}  // namespace bench::kernels
