#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "tests/oracle/reading/case_file.h"
#include "tests/oracle/verdict/report.h"

namespace oracle {

// An element passes when |got - expected| <= atol + rtol * |expected| + of_largest * max|expected| + spacings * (the distance
// between float16 numbers at `expected`). `outliers` is the share of elements, and `least_outliers` the least number, that may
// be off by `outlier_atol` instead.
struct Tolerance {
  double rtol = 0;
  double atol = 0;
  double of_largest = 0;
  int spacings = 0;
  double outliers = 0;
  int64_t least_outliers = 0;
  double outlier_atol = 0;
};

// Compares dtype, shape and values, NaN being equal to NaN, and reports what differs.
void compare_tensor(Report& report, const std::string& what, const at::Tensor& got, const ExpectedTensor& expected,
                    const Tolerance& tolerance);

// "[2, 3]"
std::string shape_text(at::IntArrayRef shape);
// As JSON has it.
std::string bool_text(bool value);

void compare_number(Report& report, const std::string& what, double got, double expected, const Tolerance& tolerance);

// Every result that the case stores was compared with something.
void check_all_compared(Report& report, const CaseFile& case_file);

void compare_text(Report& report, const std::string& what, const std::string& got, const std::string& expected);

}  // namespace oracle
