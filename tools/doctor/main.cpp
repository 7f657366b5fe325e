// Finds where training with a config diverges at an opt level, and which modules to keep in FP32. See `apex_doctor --help`.
#include "tools/doctor/doctor_program.h"

int main(int argc, char** argv) { return doctor::run_program(argc, argv); }
