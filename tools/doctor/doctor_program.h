#pragma once

namespace doctor {

/// Runs the program: parses the command line, examines, prints, and returns the exit code.
int run_program(int argc, char** argv);

}  // namespace doctor
