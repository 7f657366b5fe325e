#include "kernels/convolution/cpu/convolution_cpu.h"

#include "kernels/convolution/cpu/packed.h"
#include "kernels/memory_order.h"

// Each result is one sum over taps and channels, held in registers from its first product to its last. A group of rows of an
// image is copied into a padded buffer; then, for each block of result channels, all results of these rows are computed with
// the weights of that block.
namespace apex::kernels::convolution::cpu {
namespace {

constexpr int64_t kCopied = 64 * 1024;    // values that fit into the L2 cache of a core
constexpr int64_t kGroupsForAThread = 4;  // small groups of rows let threads finish at about the same time

// The products of one row of results, for one pass over columns within one pass over rows: all products of the first row tap,
// then those of the next. Offsets count from the operand row that the first row tap reads.
struct ColumnSums {
  const Pass& columns;
  std::vector<Product> products;
};
struct RowSums {
  const Pass& rows;
  std::vector<ColumnSums> sums;
};

class PixelSums {
 public:
  PixelSums(const PixelProducts& products, const at::Tensor& operand, const PackedWeight& weight, const at::Tensor& bias,
            const Passes& passes, const at::Tensor& result)
      : products_(products), operand_(operand), weight_(weight), bias_(bias), passes_(passes), result_(result) {
    const Lines read = lines();
    row_size_ = read.row_size();
    for (const Pass& rows : passes.height) {
      sums_.push_back({rows, {}});
      for (const Pass& columns : passes.width) sums_.back().sums.push_back({columns, products_of(read, rows, columns)});
    }
    const Pass& longest = passes.height.front();
    size_t taps = 0;
    for (const Pass& rows : passes.height) taps = std::max(taps, rows.taps.size());
    const int64_t lines_that_fit = kCopied / std::max<int64_t>(1, row_size_);
    const int64_t fit = (lines_that_fit - static_cast<int64_t>(taps)) / longest.operand_step + 1;
    const int64_t groups = ceil_div(kGroupsForAThread * at::get_num_threads(), operand.size(0));
    rows_in_group_ = std::clamp<int64_t>(std::min(fit, longest.count / groups), 1, longest.count);
  }

  int64_t groups() const { return ceil_div(passes_.height.front().count, rows_in_group_); }

  Lines lines() const { return Lines(operand_, passes_.width); }

  void sum(Lines& lines, int64_t image, int64_t group) const {
    const Span rows{group * rows_in_group_, (group + 1) * rows_in_group_}, read = rows_read(rows);
    lines.begin(image, read);
    for (int64_t row = std::max<int64_t>(0, read.begin); row < std::min(operand_.size(2), read.end); ++row) {
      if (is_read(row, rows)) lines.copy(row);
    }
    for (int64_t block = 0; block < weight_.blocks(); ++block) {
      for (const RowSums& all : sums_) {
        for (int64_t row = rows.begin; row < std::min(all.rows.count, rows.end); ++row) {
          for (const ColumnSums& sums : all.sums) multiply(all.rows, row, sums, lines.values(), read.begin, image, block);
        }
      }
    }
  }

 private:
  // The range from the first to the last operand row that results of these rows read, padding included.
  Span rows_read(Span rows) const {
    Span read{0, 0};
    for (const Pass& pass : passes_.height) {
      for (const Tap& tap : pass.taps) {
        const Span by_tap{rows.begin * pass.operand_step + tap.offset, (rows.end - 1) * pass.operand_step + tap.offset + 1};
        read = read.size() == 0 ? by_tap : Span{std::min(read.begin, by_tap.begin), std::max(read.end, by_tap.end)};
      }
    }
    return read;
  }

  // True if a result of these rows reads `row`. A dilation or a stride may skip rows.
  bool is_read(int64_t row, Span rows) const {
    for (const Pass& pass : passes_.height) {
      for (const Tap& tap : pass.taps) {
        const int64_t way = row - tap.offset, result = way / pass.operand_step;
        if (way % pass.operand_step == 0 && result >= rows.begin && result < rows.end) return true;
      }
    }
    return false;
  }

  std::vector<Product> products_of(const Lines& lines, const Pass& rows, const Pass& columns) const {
    std::vector<Product> products;
    for (const Tap& down : rows.taps) {
      const int64_t row = (down.offset - rows.taps.front().offset) * row_size_;
      for (int64_t chunk = 0; chunk < weight_.chunks(); ++chunk) {
        for (const Tap& across : columns.taps) {
          products.push_back({row + lines.offset(chunk, across), weight_.offset(down.tap, across.tap, chunk)});
        }
      }
    }
    return products;
  }

  // The range of row taps that read inside the image. They are contiguous.
  Span taps_inside(const Pass& rows, int64_t row) const {
    const auto is_inside = [&](const Tap& tap) {
      const int64_t read = row * rows.operand_step + tap.offset;
      return read >= 0 && read < operand_.size(2);
    };
    const auto begin = std::find_if(rows.taps.begin(), rows.taps.end(), is_inside);
    const auto end = std::find_if_not(begin, rows.taps.end(), is_inside);
    return {begin - rows.taps.begin(), end - rows.taps.begin()};
  }

  void multiply(const Pass& rows, int64_t row, const ColumnSums& sums, const BFloat16Bits* values, int64_t first_row,
                int64_t image, int64_t block) const {
    const Pass& columns = sums.columns;
    const Span taps = taps_inside(rows, row);
    const int64_t products_of_tap = weight_.chunks() * static_cast<int64_t>(columns.taps.size());
    const Product* const products = sums.products.data() + taps.begin * products_of_tap;
    if (!rows.taps.empty()) values += (row * rows.operand_step + rows.taps.front().offset - first_row) * row_size_;
    const int64_t channels = result_.size(1), step = columns.step * channels;
    const int64_t line = image * result_.size(2) + rows.first + row * rows.step;
    auto* const to = written_elements(result_) + (line * result_.size(3) + columns.first) * channels + block * kBlock;
    const float* const bias = bias_.const_data_ptr<float>() + block * kBlock;
    const int64_t parts = ceil_div(columns.count, kMaxPixels);
    for (int64_t part = 0; part < parts; ++part) {
      const int64_t begin = part * columns.count / parts, end = (part + 1) * columns.count / parts;
      products_.multiply(products, taps.size() * products_of_tap, values + begin * kChunk, weight_.block(block), bias,
                         end - begin, to + begin * step, step);
    }
  }

  const PixelProducts& products_;
  const at::Tensor& operand_;
  const PackedWeight& weight_;
  const at::Tensor& bias_;
  const Passes& passes_;
  const at::Tensor& result_;
  std::vector<RowSums> sums_;
  int64_t row_size_ = 0, rows_in_group_ = 0;
};

}  // namespace

void sum_pixels(const PixelProducts& products, const at::Tensor& operand, const PackedWeight& weight, const at::Tensor& bias,
                const Passes& passes, const at::Tensor& result) {
  const PixelSums sums(products, operand, weight, bias, passes, result);
  const int64_t groups = sums.groups(), tasks = operand.size(0) * groups;
  const int64_t work = result.numel() * operand.size(1) * weight.taps() / tasks;
  at::parallel_for(0, tasks, tasks_worth_a_thread(work, kMultipliedInTask), [&](int64_t begin, int64_t end) {
    Lines lines = sums.lines();
    for (int64_t i = begin; i < end; ++i) sums.sum(lines, i / groups, i % groups);
  });
}

}  // namespace apex::kernels::convolution::cpu
