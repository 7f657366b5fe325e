#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct Image {
  int64_t height = 0;
  int64_t width = 0;
  std::vector<uint8_t> rgb;  // (height, width, 3)
};

/// Reads a JPEG or PNG file, whatever its extension: ImageNet has one PNG file named .JPEG. Errors: std::runtime_error that
/// names the file.
Image read_image(const std::string& path);

/// Reads colour, grey, and CMYK as written by Photoshop. Throws if the file is truncated.
Image read_jpeg(const std::string& path);
/// Reads any PNG. Transparent pixels are blended with black.
Image read_png(const std::string& path);
