#include <csetjmp>
#include <cstdio>  // jpeglib.h needs it
#include <memory>
#include <stdexcept>

#include <jerror.h>
#include <jpeglib.h>

#include "image_file.h"

namespace {

// libjpeg expects `error_exit` not to return.
struct ErrorManager {
  jpeg_error_mgr base;
  std::jmp_buf where_to;
  char message[JMSG_LENGTH_MAX];
};

void leave(j_common_ptr jpeg) {
  auto* manager = reinterpret_cast<ErrorManager*>(jpeg->err);  // `base` is its first member
  jpeg->err->format_message(jpeg, manager->message);
  std::longjmp(manager->where_to, 1);
}

/// libjpeg only warns about a truncated file, and fills the rest with grey. Other warnings, about skipped bytes, are common and
/// harmless.
void take_note(j_common_ptr jpeg, int level) {
  if (level < 0 && jpeg->err->msg_code == JWRN_JPEG_EOF) leave(jpeg);
}

/// Destroys libjpeg's decompressor on every path out of the function.
struct Decompressor {
  Decompressor() {
    jpeg.err = jpeg_std_error(&errors.base);
    errors.base.error_exit = leave;
    errors.base.emit_message = take_note;
  }
  ~Decompressor() { jpeg_destroy_decompress(&jpeg); }

  jpeg_decompress_struct jpeg{};
  ErrorManager errors{};
};

// longjmp skips destructors, so every object that has one belongs to the caller.
bool decode(Decompressor& decompressor, std::FILE* file, Image& image, std::vector<uint8_t>& pixels) {
  auto& jpeg = decompressor.jpeg;
  if (setjmp(decompressor.errors.where_to)) return false;
  jpeg_create_decompress(&jpeg);
  jpeg_stdio_src(&jpeg, file);
  jpeg_read_header(&jpeg, TRUE);
  const bool four = jpeg.jpeg_color_space == JCS_CMYK || jpeg.jpeg_color_space == JCS_YCCK;
  jpeg.out_color_space = four ? JCS_CMYK : JCS_RGB;
  jpeg_start_decompress(&jpeg);
  image.height = jpeg.output_height;
  image.width = jpeg.output_width;
  const size_t row = static_cast<size_t>(jpeg.output_width) * static_cast<size_t>(jpeg.output_components);
  pixels.resize(row * jpeg.output_height);
  while (jpeg.output_scanline < jpeg.output_height) {
    JSAMPROW at = pixels.data() + row * jpeg.output_scanline;
    jpeg_read_scanlines(&jpeg, &at, 1);
  }
  jpeg_finish_decompress(&jpeg);
  return true;
}

/// Photoshop stores the four inks inverted: 255 means no ink.
std::vector<uint8_t> rgb_of_cmyk(const std::vector<uint8_t>& inks) {
  std::vector<uint8_t> rgb(inks.size() / 4 * 3);
  for (size_t i = 0; i < rgb.size(); ++i) rgb[i] = static_cast<uint8_t>(inks[i / 3 * 4 + i % 3] * inks[i / 3 * 4 + 3] / 255);
  return rgb;
}

}  // namespace

Image read_jpeg(const std::string& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  if (!file) throw std::runtime_error(path + ": cannot be read");
  Image image;
  std::vector<uint8_t> pixels;
  Decompressor decompressor;
  if (!decode(decompressor, file.get(), image, pixels)) throw std::runtime_error(path + ": " + decompressor.errors.message);
  image.rgb = decompressor.jpeg.out_color_space == JCS_CMYK ? rgb_of_cmyk(pixels) : std::move(pixels);
  return image;
}
