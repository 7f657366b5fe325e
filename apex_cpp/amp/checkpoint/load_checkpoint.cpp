#include <ATen/core/grad_mode.h>

#include <apex_cpp/amp/checkpoint.h>
#include <apex_cpp/amp/checkpoint/content.h>
#include <apex_cpp/amp/checkpoint/parts.h>
#include <apex_cpp/amp/masters/optimizer_stash.h>
#include <apex_cpp/amp/optimizer_classes/optimizer_traits.h>
#include <apex_cpp/amp/session/amp_session.h>
#include <apex_cpp/amp/tensors/parameters.h>
#include <apex_cpp/torch_compat/private_members.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <deque>
#include <optional>
#include <sstream>
#include <unordered_map>

namespace apex::amp::detail {
namespace {

std::string level_name(const std::string& level) { return level.empty() ? "FP32 without amp" : level; }

/// While it lives, loads of these optimizers leave the skips of their next steps.
class KeptSkips {
 public:
  explicit KeptSkips(const std::vector<torch::optim::Optimizer*>& optimizers) {
    for (const auto* optimizer : optimizers) {
      if (auto* stash = stash_of(*optimizer)) stashes_.push_back(stash);
    }
    keep(true);
  }
  ~KeptSkips() { keep(false); }
  KeptSkips(const KeptSkips&) = delete;
  KeptSkips& operator=(const KeptSkips&) = delete;

  /// All optimizers were loaded: their skips belong to the state before.
  void forget() {
    keep(false);
    for (auto* stash : stashes_) stash->forget_skip();
  }

 private:
  void keep(bool on) {
    for (auto* stash : stashes_) stash->keep_skip(on);
  }

  std::vector<OptimizerStash*> stashes_;
};

/// One load: checks everything, then changes everything.
class Loading {
 public:
  Loading(const CheckpointContent& content, const LoadedParts& parts)
      : content_(content),
        parts_(parts),
        models_(parts.models.begin(), parts.models.end()),
        names_(names_of(models_)),
        session_(session_of({parts.optimizers.begin(), parts.optimizers.end()}, parts.session)) {
    for (size_t i = 0; i < content.models.size(); ++i) {
      for (const auto& tensor : content.models[i]) saved_.emplace(full_name(i, tensor.name), Saved{&tensor, {}});
    }
    for (size_t k = 0; k < content.optimizers.size(); ++k) {
      const auto& params = content.optimizers[k].params;
      for (size_t i = 0; i < params.size(); ++i) {
        const auto found = saved_.find(params[i].name);
        const at::Tensor master = master_in(k, i);
        if (found == saved_.end() || !master.defined()) continue;
        if (master.sizes() == found->second.tensor->value.sizes()) found->second.master = master;
      }
    }
  }

  void check() {
    check_models();
    if (parts_.optimizers.empty()) {
      for (const auto& session : sessions_with_masters()) session->make_masters();  // here, where an error changes nothing
      return;
    }
    check_optimizers();
    for (const auto& scaler : content_.scalers) {
      LossScaler(LossScale(1.0)).restore(scaler.loss_scale, scaler.unskipped);
    }
    check_float8();
    check_generator_states(content_.generators);
    for (size_t i = 0; i < parts_.optimizers.size(); ++i) make_masters(*parts_.optimizers[i], content_.optimizers[i]);
  }

  std::vector<std::string> apply() {
    load_optimizers();
    has_changed_ = true;
    const at::NoGradGuard no_grad;
    note_level();
    const Sessions sessions = sessions_with_masters();
    load_values(sessions, [&] {
      load_models(sessions);
      load_params();
    });
    note_conversions();
    if (parts_.optimizers.empty()) return notes_;
    load_scalers();
    load_float8();
    restore_generator_states(content_.generators, notes_);
    return notes_;
  }

  /// Whether `apply` began to write into models, which it cannot undo.
  bool has_changed() const { return has_changed_; }

 private:
  /// The file's entry for one tensor of a model.
  struct Saved {
    const ModelTensor* tensor;
    at::Tensor master;
    const at::Tensor& float32() const { return master.defined() ? master : tensor->value; }
  };

  // The master of a parameter in the file: amp's, or one that the optimizer itself kept.
  at::Tensor master_in(size_t optimizer, size_t param) const {
    const OptimizerContent& saved = content_.optimizers[optimizer];
    if (saved.params[param].master.defined()) return saved.params[param].master;
    const auto* here = optimizer < parts_.optimizers.size() ? parts_.optimizers[optimizer] : nullptr;
    return own_master_in(saved, param, dynamic_cast<const StepsMasters*>(here) != nullptr);
  }

  // Without optimizers, also those of other calls: the models may be parts of theirs.
  Sessions sessions_with_masters() const {
    std::vector<at::Tensor> tensors;
    if (parts_.optimizers.empty()) {
      for (const auto* model : models_) {
        for (const auto& [name, tensor] : tensors_of(*model)) tensors.push_back(tensor);
      }
    }
    return sessions_that_know(tensors, session_);
  }

  void check_models() const {
    TORCH_CHECK(content_.models.size() == models_.size(), "it holds ", content_.models.size(), " models, ", models_.size(),
                " were given. Pass as many as were saved, in the same order.");
    for (size_t i = 0; i < models_.size(); ++i) {
      check_fits(*models_[i], content_.models[i], models_.size() > 1 ? "model " + std::to_string(i) : "this model");
    }
  }

  std::shared_ptr<Float8History> float8_history() const { return session_ ? session_->float8_history() : nullptr; }

  void check_float8() const {
    if (const auto& saved = content_.float8; saved.history.defined())
      Float8History::check(saved.history, saved.parameters.size());
  }

  void check_optimizers() {
    const auto& optimizers = parts_.optimizers;
    TORCH_CHECK(content_.optimizers.size() == optimizers.size(), "it holds ", content_.optimizers.size(), " optimizers, ",
                optimizers.size(), " were given. Pass as many as were saved, in the same order, or the models alone.");
    for (size_t i = 0; i < optimizers.size(); ++i) {
      const auto* stash = stash_of(*optimizers[i]);
      TORCH_CHECK(!stash || !stash->inside_backward(),
                  "load_checkpoint was called inside a scale_loss block. Call it before or after the block.");
      loads_.emplace_back(*optimizers[i], stash);
      loads_.back().check_fits(names_, content_.optimizers[i]);
    }
  }

  // A parameter that is frozen now may have been trained when the file was written; then the file has its master.
  static void make_masters(const torch::optim::Optimizer& optimizer, const OptimizerContent& content) {
    auto* stash = stash_of(optimizer);
    if (!stash) return;
    const OptimizerParams here(optimizer, stash);
    std::vector<at::Tensor> once_trained;
    for (size_t i = 0; i < here.params.size(); ++i) {
      if (content.params[i].master.defined()) once_trained.push_back(here.params[i].model);
    }
    stash->adopt_new_params(once_trained);
  }

  void load_optimizers() {
    KeptSkips skips(parts_.optimizers);
    try {
      for (size_t i = 0; i < loads_.size(); ++i) loads_[i].apply(content_.optimizers[i]);
    } catch (...) {
      for (auto& load : loads_) load.undo();
      throw;
    }
    skips.forget();
    loads_.clear();  // frees the old states
  }

  // A tied parameter has its master under one name. Where the file ties the same names, this is the value of all of them.
  const Saved& take_master_of_ties(const at::Tensor& target, Saved& saved) {
    const Saved& first = *by_memory_.try_emplace(target.const_data_ptr(), &saved).first->second;
    if (!saved.master.defined() && first.master.defined() && saved.tensor->value.equal(first.tensor->value))
      saved.master = first.master;
    return saved;
  }

  void load_models(const Sessions& sessions) {
    for (size_t i = 0; i < models_.size(); ++i) {
      for (auto [name, target] : tensors_of(*models_[i])) {
        const Saved& saved = take_master_of_ties(target, saved_.at(full_name(i, name)));
        copy_to(target, saved.tensor->value, saved.tensor->dtype, saved.master, full_name(i, name));
        // An optimizer that is not loaded may still have a master, and its next step would overwrite the model from it.
        if (!parts_.optimizers.empty()) continue;
        for (const auto& session : sessions) session->load_master(target, saved.float32());
      }
    }
  }

  // Loads masters, and parameters of no model.
  void load_params() {
    for (size_t i = 0; i < parts_.optimizers.size(); ++i) {
      const auto* stash = stash_of(*parts_.optimizers[i]);
      if (stash) stash->update_masters_from_edits(/*may_be_restored=*/false);
      const OptimizerParams here(*parts_.optimizers[i], stash);
      auto* sharded = dynamic_cast<ShardedOptimizer*>(parts_.optimizers[i]);
      auto* fused = dynamic_cast<StepsMasters*>(parts_.optimizers[i]);
      for (size_t j = 0; j < here.params.size(); ++j) {
        const OptimizerParam& saved = content_.optimizers[i].params[j];
        const at::Tensor master = master_in(i, j);
        sharded ? load_sharded(saved, master, here.params[j], *sharded) : load_param(saved, master, here.params[j], fused);
      }
    }
  }

  // The file's float32 value of a parameter. If the parameter belongs to no model, also loads it.
  const at::Tensor& load_value(const OptimizerParam& saved, const at::Tensor& master, const OptimizerParams::Param& here) {
    if (!saved.name.empty()) return saved_.at(saved.name).tensor->value;
    copy_to(here.model, saved.value, saved.dtype, master, "(a parameter of no model)");
    return saved.value;
  }

  void load_sharded(const OptimizerParam& saved, const at::Tensor& master, const OptimizerParams::Param& here,
                    ShardedOptimizer& optimizer) {
    const at::Tensor& value = load_value(saved, master, here);
    optimizer.load_master(here.model, master.defined() ? master : value);
  }

  // `fused`: the optimizer, if it may itself keep masters.
  void load_param(const OptimizerParam& saved, const at::Tensor& master, const OptimizerParams::Param& here,
                  StepsMasters* fused) {
    const at::Tensor& value = load_value(saved, master, here);
    const at::Tensor& float32 = master.defined() ? master : value;
    if (here.has_master()) {
      at::Tensor(here.stepped).copy_(float32);
      masters_made_ += !master.defined();
    } else if (fused && (master.defined() || here.model.requires_grad()) && fused->load_kept_master(here.model, float32)) {
      masters_made_ += !master.defined();
    } else {
      masters_dropped_ += master.defined() && c10::isReducedFloatingType(here.model.scalar_type());
    }
  }

  // If the dtype has changed, loads the master, of which the saved 16-bit value was a rounding.
  void copy_to(at::Tensor target, const at::Tensor& value, const std::string& dtype, const at::Tensor& master,
               const std::string& name) {
    const bool converts = dtype != c10::toString(target.scalar_type());
    remove_internal_overlap(target);
    target.copy_(converts && master.defined() ? master : value);
    if (!converts) return;
    from_masters_ += master.defined();
    if (converted_++ == 0) first_converted_ = name + " from " + dtype + " to " + c10::toString(target.scalar_type());
  }

  void load_scalers() {
    if (!session_) return;
    auto& scalers = session_->scalers;
    if (content_.scalers.size() != scalers.size()) {
      note("The file has ", content_.scalers.size(), " loss scalers, there are ", scalers.size(), " here; ",
           std::min(scalers.size(), content_.scalers.size()), " were restored.");
    }
    for (size_t i = 0; i < std::min(scalers.size(), content_.scalers.size()); ++i) {
      const auto& saved = content_.scalers[i];
      auto& scaler = scalers[i];
      if (scaler.dynamic() && saved.dynamic) {
        scaler.restore(saved.loss_scale, saved.unskipped);
      } else if (!scaler.dynamic() && !saved.dynamic && scaler.loss_scale() == saved.loss_scale) {
        scaler.restore(saved.loss_scale, saved.unskipped);
      } else {
        note("Loss scaler ", i, " keeps its ", scaler.dynamic() ? "dynamic" : "static", " scale of ", scaler.loss_scale(),
             "; the file's was ", saved.dynamic ? "dynamic" : "static", ", at ", saved.loss_scale, ".");
      }
    }
  }

  void load_float8() {
    const auto history = float8_history();
    const auto& saved = content_.float8;
    const bool same = history && saved.parameters == history->parameters();
    const std::string told = restore_float8_history(history.get(), saved.history, same);
    if (!told.empty()) note(told);
  }

  void note_level() {
    const auto here = opt_level_of(session_);
    if (here != content_.opt_level) note("Saved at ", level_name(content_.opt_level), ", loaded at ", level_name(here), ".");
  }

  void note_conversions() {
    if (converted_ > 0) {
      note(converted_, " parameters and buffers were converted, ", from_masters_,
           " of them from their FP32 master weights; the first: ", first_converted_, ".");
    }
    if (masters_made_ > 0) note(masters_made_, " FP32 master weights were made from the file's FP32 parameters.");
    if (masters_dropped_ > 0) note(masters_dropped_, " FP32 master weights of the file are not used at this level.");
  }

  template <class... Args>
  void note(const Args&... args) {
    std::ostringstream text;
    (text << ... << args);
    notes_.push_back(text.str());
  }

  const CheckpointContent& content_;
  const LoadedParts& parts_;
  std::vector<const torch::nn::Module*> models_;
  ParamNames names_;
  std::shared_ptr<Session> session_;
  std::map<std::string, Saved> saved_;
  std::unordered_map<const void*, const Saved*> by_memory_;  // the first name of each memory
  std::deque<OptimizerLoad> loads_;
  bool has_changed_ = false;
  std::vector<std::string> notes_;
  size_t converted_ = 0, from_masters_ = 0, masters_made_ = 0, masters_dropped_ = 0;
  std::string first_converted_;
};

[[noreturn]] void fail(const std::string& file, const std::string& reason) {
  C10_THROW_ERROR(Error, file + " was not loaded, and nothing was changed: " + reason);
}

// Such as no memory for the copy of a tensor.
[[noreturn]] void fail_in_part(const std::string& file, const std::string& reason) {
  C10_THROW_ERROR(Error, file + " was loaded in part: " + reason +
                             ". Load it again before training goes on: models and optimizers have tensors of both states.");
}

}  // namespace

std::vector<std::string> load_content(const std::string& caller, const std::string& path, const LoadedParts& parts,
                                      const std::function<const CheckpointContent&()>& read) {
  const c10::InferenceMode off(false);  // an optimizer cannot step state tensors made in inference mode
  const std::string file = caller + ": '" + path + "'";
  std::optional<Loading> loading;
  try {
    loading.emplace(read(), parts);
    loading->check();
    return loading->apply();
  } catch (const std::exception& error) {
    const char* reason = torch_compat::text_of(error);
    loading && loading->has_changed() ? fail_in_part(file, reason) : fail(file, reason);
  }
}

LoadedCheckpoint load_checkpoint(const std::string& path, const LoadedParts& parts) {
  const c10::InferenceMode off(false);
  const TensorFile file = read_safetensors(path);
  CheckpointContent content;
  auto notes = load_content("amp::load_checkpoint", path, parts,
                            [&]() -> const CheckpointContent& { return content = content_of(file); });
  return {std::move(content.metadata), content.opt_level, content.library_version, std::move(notes)};
}

}  // namespace apex::amp::detail
