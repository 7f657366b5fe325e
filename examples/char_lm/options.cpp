#include "options.h"

#include <CLI/CLI.hpp>

Options read_options(int argc, char** argv) {
  Options options;
  CLI::App app("Trains a small GPT on the characters of a text, and prints a sample.");
  app.option_defaults()->always_capture_default()->take_last();
  app.add_option("text", options.text, "the text to train on")->check(CLI::ExistingFile);
  app.add_option("--opt-level", options.opt_level,
                 "O0 to O6, or a YAML file; O5 (BF16) suits GPUs and CPUs with AVX512-BF16, O2 GPUs");
  app.add_option("--device", options.device, "cpu or cuda");
  app.add_option("--layers", options.layers, "transformer blocks")->check(CLI::PositiveNumber);
  app.add_option("--heads", options.heads, "attention heads of a block")->check(CLI::PositiveNumber);
  app.add_option("--width", options.width, "width of the embedding; a multiple of --heads")->check(CLI::PositiveNumber);
  app.add_option("--context", options.context, "characters before a prediction that the model sees")
      ->check(CLI::PositiveNumber);
  app.add_option("--dropout", options.dropout, "fraction of activations that are dropped")->check(CLI::Range(0.0, 0.99));
  app.add_option("--batch", options.batch, "sequences in a pass")->check(CLI::PositiveNumber);
  app.add_option("--accumulation", options.accumulation, "passes in a step")->check(CLI::PositiveNumber);
  app.add_option("--steps", options.steps, "steps of the optimizer")->check(CLI::PositiveNumber);
  app.add_option("--warmup", options.warmup, "steps until the full learning rate")->check(CLI::PositiveNumber);
  app.add_option("--lr", options.lr, "largest learning rate")->check(CLI::PositiveNumber);
  app.add_option("--min-lr", options.min_lr, "learning rate at the end of the cosine")->check(CLI::NonNegativeNumber);
  app.add_option("--weight-decay", options.weight_decay, "weight decay of matrices, including embeddings")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--clip", options.clip, "largest norm of the gradients")->check(CLI::PositiveNumber);
  app.add_option("--master-storage", options.master_storage,
                 "trains with FusedAdam, whose BF16 parameters at O5 have masters: float32, remainder16, remainder8, or none "
                 "(stochastic)")
      ->check(CLI::IsMember({"float32", "remainder16", "remainder8", "stochastic"}));
  app.add_option("--moment-storage", options.moment_storage,
                 "trains with FusedAdam, whose moments are float32, bfloat16 or int8")
      ->check(CLI::IsMember({"float32", "bfloat16", "int8"}));
  app.add_option("--report", options.report, "steps between two lines of output")->check(CLI::PositiveNumber);
  app.add_option("--sample", options.sample, "characters of the sample at the end")->check(CLI::NonNegativeNumber);
  app.add_option("--temperature", options.temperature, "temperature of the sample; below 1 prefers likely characters")
      ->check(CLI::PositiveNumber);
  app.add_option("--seed", options.seed, "seed of weights, batches, dropout and sample");
  app.add_option("--record", options.record,
                 "folder for the tables that tools/compare reads; no sample and no weights are written");
  try {
    app.parse(argc, argv);
    if (options.width % options.heads != 0) throw CLI::ValidationError("--width", "must be a multiple of --heads");
  } catch (const CLI::ParseError& error) {
    std::exit(app.exit(error));
  }
  return options;
}
