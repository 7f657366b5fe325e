#include "data/file_bytes.h"

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>

#include <zlib.h>

#include "errors.h"

namespace train {
namespace {

std::string present(const std::string& path) {
  for (const auto& candidate : {path, path + ".gz"}) {
    if (std::filesystem::is_regular_file(candidate)) {
      return candidate;
    }
  }
  throw UserError("cannot open '" + path + "' or '" + path + ".gz': No such file. tools/setup downloads the digits; put the " +
                  "files of other sets there, or name their folder by data.dir or APEX_CPP_DATA");
}

}  // namespace

std::vector<uint8_t> file_bytes(const std::string& path) {
  const auto name = present(path);
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> file(gzopen(name.c_str(), "rb"), gzclose);  // reads plain files as they are
  if (!file) {
    throw UserError("cannot open '" + name + "': " + std::strerror(errno));
  }
  std::vector<uint8_t> bytes;
  constexpr unsigned kPiece = 1 << 16;
  int got = 0;
  do {
    const auto filled = bytes.size();
    bytes.resize(filled + kPiece);
    got = gzread(file.get(), bytes.data() + filled, kPiece);
    bytes.resize(filled + static_cast<size_t>(got > 0 ? got : 0));
  } while (got > 0);
  int code = Z_OK;
  const char* reason = gzerror(file.get(), &code);
  if (got < 0 || code != Z_OK) {
    throw UserError("cannot unpack '" + name + "': " + (code == Z_BUF_ERROR ? "the file ends too early" : reason));
  }
  return bytes;
}

}  // namespace train
