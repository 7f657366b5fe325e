#include "kernels/statistics/cpu/make_blocks.h"

namespace apex::kernels::statistics::cpu {

constexpr BlockTable kAvx2Blocks = make_blocks();

}  // namespace apex::kernels::statistics::cpu
