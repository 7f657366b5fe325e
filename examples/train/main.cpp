// Trains an image classifier at the opt level that a YAML file names. See `train --help`.
#include "program.h"

int main(int argc, char** argv) {
  train::Team alone;
  return train::run_program(argc, argv, alone);
}
