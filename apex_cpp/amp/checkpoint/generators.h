#pragma once

#include <string>
#include <vector>

#include <apex_cpp/amp/checkpoint/content.h>

namespace apex::amp::detail {

/// The states of the default generators: the CPU's and, where there are GPUs, each one's. No synchronisation.
std::vector<GeneratorContent> generator_states();

/// Errors: c10::Error for a state that a generator of this process does not take. Changes nothing.
void check_generator_states(const std::vector<GeneratorContent>& states);

/// Puts checked states in force and notes which devices have none, here or in the file.
void restore_generator_states(const std::vector<GeneratorContent>& states, std::vector<std::string>& notes);

}  // namespace apex::amp::detail
