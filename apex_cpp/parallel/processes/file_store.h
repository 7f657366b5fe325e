#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <string>

namespace apex::parallel::detail {

/// A store of `world_size` ranks in a file, which the last rank to leave removes. Errors: those of c10d::FileStore.
c10::intrusive_ptr<c10d::Store> make_file_store(const std::string& path, int world_size);

}  // namespace apex::parallel::detail
