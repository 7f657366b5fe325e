#pragma once

namespace doctor {

/// The whole program: reads the command line, examines, prints, and returns the exit code.
int run_program(int argc, char** argv);

}  // namespace doctor
