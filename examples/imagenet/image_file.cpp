#include "image_file.h"

#include <fstream>

namespace {

bool is_png(const std::string& path) {
  const std::string signature = "\x89PNG\r\n\x1a\n";
  std::string begin(signature.size(), '\0');
  std::ifstream(path, std::ios::binary).read(begin.data(), static_cast<std::streamsize>(begin.size()));
  return begin == signature;
}

}  // namespace

Image read_image(const std::string& path) { return is_png(path) ? read_png(path) : read_jpeg(path); }
