// Replaces kernels/cuda/run.cpp or its stub: functions defined in the test program take precedence over the library's.
#include "tests/kernels/host_grid.h"

#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <optional>

#include "kernels/cuda/run.h"
#include "kernels/cuda/table_image.h"
#include "kernels/cuda/updates.h"

namespace kernels_test {
namespace {

namespace cuda = apex::kernels::cuda;

std::optional<Grid> current;
int launch_count = 0;

class HostBlock {
 public:
  static constexpr size_t kSharedBytes = 8192;

  HostBlock(int64_t index, int64_t count, int threads, bool backwards)
      : index_(index), count_(count), threads_(threads), backwards_(backwards) {
    std::memset(memory_, 0xff, sizeof memory_);  // NaN: no code may rely on zeros
  }

  int64_t index() const { return index_; }
  int64_t count() const { return count_; }
  int threads() const { return threads_; }
  void barrier() const {}
  void* shared() const { return memory_; }

  template <class Work>
  void each_thread(const Work& work) const {
    for (int i = 0; i < threads_; ++i) work(backwards_ ? threads_ - 1 - i : i);
  }

  bool is_last(uint32_t* ticket, uint32_t calls) const {
    if (++*ticket < calls) return false;
    *ticket = 0;
    return true;
  }

  template <class Value>
  Value read(const Value* address) const {
    return *address;
  }

 private:
  int64_t index_, count_;
  int threads_;
  bool backwards_;
  alignas(64) mutable char memory_[kSharedBytes];
};

struct alignas(64) Line {
  char bytes[64];
};

class HostTable {
 public:
  explicit HostTable(const cuda::Call& call)
      : image_(*call.plan, call.device), memory_(lines(image_.bytes().size())), scratch_(lines(image_.scratch_size())) {
    if (!image_.bytes().empty()) std::memcpy(memory_.data(), image_.bytes().data(), image_.bytes().size());
  }

  cuda::Table table(bool with_scratch) { return image_.table_at(memory_.data(), with_scratch ? scratch_.data() : nullptr); }

 private:
  static std::vector<Line> lines(size_t bytes) { return std::vector<Line>(bytes / sizeof(Line) + 1); }

  cuda::TableImage image_;
  std::vector<Line> memory_, scratch_;
};

cuda::Table table_of(const cuda::Call& call, bool with_scratch) {
  if (call.plan->kept_by_driver == nullptr) call.plan->kept_by_driver = std::make_shared<HostTable>(call);
  return std::static_pointer_cast<HostTable>(call.plan->kept_by_driver)->table(with_scratch);
}

template <class Body>
void run_blocks(int threads, const Body& body) {
  ++launch_count;
  for (int64_t i = 0; i < current->blocks; ++i) {
    body(HostBlock(current->backwards ? current->blocks - 1 - i : i, current->blocks, threads, current->backwards));
  }
}

}  // namespace

OnHostGrid::OnHostGrid(const Grid& grid) {
  current = grid;
  launch_count = 0;
}
OnHostGrid::~OnHostGrid() { current.reset(); }
int OnHostGrid::launches() const { return launch_count; }

}  // namespace kernels_test

namespace apex::kernels::cuda {

bool handles(c10::Device device) { return kernels_test::current.has_value() && device.is_cpu(); }

template <class Op>
void run_update(const Call& call, const Op& op) {
  const Table table = kernels_test::table_of(call, op.finishes());
  kernels_test::run_blocks(kernels_test::current->threads, [&](const kernels_test::HostBlock& block) {
    if (table.has_double) {
      run_updates<Op::kTakesDoubles>(block, table, op);
    } else {
      run_updates<false>(block, table, op);
    }
  });
  EXPECT_TRUE(!op.finishes() || *table.grid_ticket == 0);
}

template <class Op>
Table run_sum(const Call& call, const Op& op) {
  const Table table = kernels_test::table_of(call, /*with_scratch=*/true);
  kernels_test::run_blocks(kSumThreads, [&](const kernels_test::HostBlock& block) {
    if (table.has_double) {
      run_sums<Op::kTakesDoubles>(block, table, op);
    } else {
      run_sums<false>(block, table, op);
    }
  });
  for (const uint32_t* ticket = table.row_tickets; ticket <= table.grid_ticket; ++ticket) EXPECT_EQ(*ticket, 0u);
  return table;
}

void run_update_scale(c10::Device, const rules::ScaleUpdate& update, const LossScaleAddresses& addresses) {
  ++kernels_test::launch_count;
  addresses.apply(update);
}

APEX_CPP_DEFINE_RUNS

}  // namespace apex::kernels::cuda
