#pragma once

#include <apex_cpp/lr_scheduler/scheduler.h>

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

namespace apex::lr_scheduler {

/// The initial rate times `lr_lambda(epoch)`. Python: LambdaLR.
/// Errors: ValueError for an empty function, and for a list whose length is not the number of groups.
class LambdaLR : public LRScheduler {
 public:
  using Lambda = std::function<double(int64_t epoch)>;
  LambdaLR(torch::optim::Optimizer& optimizer, const Lambda& lr_lambda);
  /// One function for each group.
  LambdaLR(torch::optim::Optimizer& optimizer, std::vector<Lambda> lr_lambdas);

 protected:
  std::vector<double> get_lr() override;
  void check_step() const override;

 private:
  std::vector<Lambda> lr_lambdas_;
};

/// Multiplies the rates by `gamma` every `step_size` epochs. Python: StepLR. Errors: ValueError unless step_size is positive
/// and gamma finite.
class StepLR : public LRScheduler {
 public:
  StepLR(torch::optim::Optimizer& optimizer, int64_t step_size, double gamma = 0.1);

 protected:
  std::vector<double> get_lr() override;
  std::vector<double> first_lr() override { return base_lrs(); }

 private:
  int64_t step_size_;
  double gamma_;
};

/// Multiplies the rates by `gamma` at each of the epochs `milestones`; twice at one that is listed twice. Python: MultiStepLR.
/// Errors: ValueError unless gamma is finite.
class MultiStepLR : public LRScheduler {
 public:
  MultiStepLR(torch::optim::Optimizer& optimizer, const std::vector<int64_t>& milestones, double gamma = 0.1);

 protected:
  std::vector<double> get_lr() override;
  std::vector<double> first_lr() override;

 private:
  double factor() const;
  std::map<int64_t, int64_t> milestones_;
  double gamma_;
};

/// Multiplies the rates by `factor` (0 to 1) for `total_iters` epochs. Python: ConstantLR. Errors: ValueError for another
/// factor or a negative total_iters; at the end of the epochs for a factor of 0, which cannot be undone.
class ConstantLR : public LRScheduler {
 public:
  explicit ConstantLR(torch::optim::Optimizer& optimizer, double factor = 1.0 / 3, int64_t total_iters = 5);

 protected:
  std::vector<double> get_lr() override;
  std::vector<double> first_lr() override;
  void check_step() const override;

 private:
  double factor_;
  int64_t total_iters_;
};

/// A factor on the rates that goes from `start_factor` to `end_factor` in `total_iters` equal steps: a warm-up. Python:
/// LinearLR. Errors: ValueError unless 0 < start_factor <= 1, 0 <= end_factor <= 1 and total_iters is not negative.
class LinearLR : public LRScheduler {
 public:
  explicit LinearLR(torch::optim::Optimizer& optimizer, double start_factor = 1.0 / 3, double end_factor = 1.0,
                    int64_t total_iters = 5);

 protected:
  std::vector<double> get_lr() override;
  std::vector<double> first_lr() override;

 private:
  double start_factor_, end_factor_;
  int64_t total_iters_;
};

/// Multiplies the rates by `gamma` in every epoch. Python: ExponentialLR. Errors: ValueError unless gamma is finite.
class ExponentialLR : public LRScheduler {
 public:
  ExponentialLR(torch::optim::Optimizer& optimizer, double gamma);

 protected:
  std::vector<double> get_lr() override;
  std::vector<double> first_lr() override { return base_lrs(); }

 private:
  double gamma_;
};

/// A factor (1 - epoch / total_iters)^power on the rates; 0 from `total_iters` on. Python: PolynomialLR. Errors: ValueError
/// unless total_iters is positive, and power finite and not negative.
class PolynomialLR : public LRScheduler {
 public:
  explicit PolynomialLR(torch::optim::Optimizer& optimizer, int64_t total_iters = 5, double power = 1.0);

 protected:
  std::vector<double> get_lr() override;
  std::vector<double> first_lr() override { return base_lrs(); }

 private:
  int64_t total_iters_;
  double power_;
};

/// Half a cosine from the initial rate to `eta_min` in `T_max` epochs (Loshchilov and Hutter, arXiv:1608.03983, without
/// restarts), and back in the next `T_max`. Python: CosineAnnealingLR. Errors: ValueError unless T_max is positive and eta_min
/// finite.
class CosineAnnealingLR : public LRScheduler {
 public:
  CosineAnnealingLR(torch::optim::Optimizer& optimizer, int64_t T_max, double eta_min = 0.0);

 protected:
  std::vector<double> get_lr() override;
  std::vector<double> first_lr() override;
  void check_step() const override;

 private:
  /// Whether the rate before was the lowest, from which no factor leads up.
  bool turns() const;

  int64_t t_max_;
  double eta_min_;
};

}  // namespace apex::lr_scheduler
