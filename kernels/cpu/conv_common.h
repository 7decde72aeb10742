// What the kernels of a convolution share: scratch tables, and how work is cut.
#pragma once

#include <algorithm>

#include "conv_shape.h"
#include "dispatch.h"
#include "gemm.h"
#include "threads.h"

namespace mpk {

constexpr Index kChunkBytes = Index(2) << 20;  // padded tensor that is worked on at a time: about a core's cache
constexpr Index kChunkColumns = 8192;          // and as many pixels, which bounds the offset tables

struct Range {
  Index begin, end;
  Index size() const { return end - begin; }
};

inline Range part_of(Index count, Index part, Index parts) {
  return {count * part / parts, count * (part + 1) / parts};
}

struct ConvTables {
  Scratch padded, rows_of_a, k_of_a, k_of_b, columns_of_b, rows_of_c, columns_of_c;
};

inline ConvTables& conv_tables() {
  static thread_local ConvTables tables;
  return tables;
}

inline Index images_per_chunk(Index batch, Index image_bytes, Index image_columns) {
  const Index by_bytes = kChunkBytes / std::max<Index>(image_bytes, 1);
  const Index by_columns = kChunkColumns / std::max<Index>(image_columns, 1);
  return std::max<Index>(1, std::min({batch, by_bytes, by_columns}));
}

// Runs body(micro, images, rows) on parts that write different images, or different rows (channels) of them.
template <class T, class Body>
void over_images_and_rows(Index batch, Index rows, double macs, int threads, Body&& body) {
  require(threads >= 1);
  if (batch == 0) return;
  threads = worthwhile_threads(threads, macs);
  const int image_parts = static_cast<int>(std::min<Index>(threads, batch)), row_parts = threads / image_parts;
  with_micro<T>([&](auto micro) {
    in_parallel(image_parts * row_parts, [&](int part) {
      body(micro, part_of(batch, part / row_parts, image_parts), part_of(rows, part % row_parts, row_parts));
    });
  });
}

}  // namespace mpk
