#pragma once

#include <apex_cpp/amp/checkpoint/content.h>
#include <apex_cpp/amp/checkpoint/parts.h>

#include <functional>
#include <string>
#include <vector>

namespace apex::amp::detail {

/// Loads the content that `read` returns into models and optimizers; `path` is the file that it came from. Returns notes, as
/// `LoadedCheckpoint` has them. Errors: c10::Error naming `caller` and `path`, for errors of `read` and for content that does
/// not fit, before anything is changed; and if memory runs out while models are written.
std::vector<std::string> load_content(const std::string& caller, const std::string& path, const LoadedParts& parts,
                                      const std::function<const CheckpointContent&()>& read);

}  // namespace apex::amp::detail
