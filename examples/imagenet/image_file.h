#pragma once

#include <cstdint>
#include <string>
#include <vector>

struct Image {
  int64_t height = 0;
  int64_t width = 0;
  std::vector<uint8_t> rgb;  // (height, width, 3)
};

/// Reads a JPEG file, or a PNG file whatever its name: ImageNet has one PNG that is called JPEG. Errors: std::runtime_error
/// that names the file.
Image read_image(const std::string& path);

/// Colour, grey, or CMYK as Photoshop writes it. A file that ends too early is an error.
Image read_jpeg(const std::string& path);
/// Of any kind; what is transparent lies on black.
Image read_png(const std::string& path);
