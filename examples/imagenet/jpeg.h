#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct Image {
  int64_t height = 0;
  int64_t width = 0;
  std::vector<uint8_t> rgb;  // (height, width, 3)
};

/// Reads a JPEG file: colour, grey, or CMYK as Photoshop writes it. Errors: std::runtime_error that names the file.
Image read_jpeg(const std::string& path);
