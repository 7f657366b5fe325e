// The plain loops of all kernels that the compiler vectorizes, compiled for every processor.
#include "kernels/float8/cpu/loops.h"
#include "kernels/layers/cpu/loops.h"
#include "kernels/normalization/cpu/make_norm_rows.h"
#include "kernels/statistics/cpu/make_blocks.h"
#include "kernels/xentropy/cpu/make_xentropy_rows.h"

namespace apex::kernels {

constexpr float8::Float8Kernels float8::kPortableFloat8 = float8::make_float8();
constexpr layers::LayerKernels layers::kPortableLayers = layers::make_layers();
constexpr normalization::cpu::RowTables normalization::cpu::kPortableRows = normalization::cpu::make_rows();
constexpr xentropy::cpu::RowTable xentropy::cpu::kPortableRows = xentropy::cpu::make_rows();
constexpr statistics::cpu::BlockTable statistics::cpu::kPortableBlocks = {statistics::cpu::add_block<float>,
                                                                          statistics::cpu::add_block<double>};

}  // namespace apex::kernels
