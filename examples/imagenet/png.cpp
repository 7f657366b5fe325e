#include <memory>
#include <stdexcept>

#include <png.h>

#include "image_file.h"

Image read_png(const std::string& path) {
  png_image png{};
  png.version = PNG_IMAGE_VERSION;
  const std::unique_ptr<png_image, void (*)(png_image*)> freed(&png, png_image_free);
  Image image;
  if (png_image_begin_read_from_file(&png, path.c_str())) {
    png.format = PNG_FORMAT_RGB;
    image.height = png.height;
    image.width = png.width;
    image.rgb.resize(PNG_IMAGE_SIZE(png));
    const png_color black{};
    png_image_finish_read(&png, &black, image.rgb.data(), /*row_stride=*/0, /*colormap=*/nullptr);
  }
  if (PNG_IMAGE_FAILED(png)) throw std::runtime_error(path + ": " + png.message);
  return image;
}
