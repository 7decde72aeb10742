// Rectangles of several planes, padded, in LDS.
#pragma once

#include "device.h"

namespace mpg {

// One plane's rectangle of `rows` by `columns`, cut out of planes of height by width; zeros outside of them.
//
// With columns STEP apart read together, a row lies in LDS as STEP phases of `phase` elements, so that neighbouring
// threads read neighbouring words: column c is element (c % STEP) * phase + c / STEP.
struct Patch {
  int rows, columns;
  int height, width;
  int phase, pitch, plane_size;  // elements: of a phase, a row, a plane
  Divider by_columns, by_rows;
};

inline Patch make_patch(int64_t rows, int64_t columns, int64_t step, int64_t height, int64_t width) {
  Patch patch{};
  patch.rows = static_cast<int>(rows);
  patch.columns = static_cast<int>(columns);
  patch.height = static_cast<int>(height);
  patch.width = static_cast<int>(width);
  patch.phase = static_cast<int>((columns + step - 1) / step);
  patch.pitch = patch.phase * static_cast<int>(step);
  patch.plane_size = patch.pitch * patch.rows;
  patch.by_columns = divider(columns);
  patch.by_rows = divider(rows);
  return patch;
}

// Fills LDS with `group` patches whose upper left corner is (top, left), which may lie outside. plane_of(g) is the
// number of a patch's plane, -1 for a patch of zeros.
template <int STEP, class T, class PlaneOf>
DEVICE void stage(const Patch& p, const T* planes, int top, int left, T* to, int group, PlaneOf plane_of) {
  const int64_t plane_elements = static_cast<int64_t>(p.height) * p.width;
  for (int e = thread(); e < group * p.rows * p.columns; e += THREADS) {
    const int line = p.by_columns.quotient(e), c = e - line * p.columns;
    const int g = p.by_rows.quotient(line), r = line - g * p.rows;
    const int y = top + r, x = left + c, plane = plane_of(g);
    T value = T(0);
    if (plane >= 0 && y >= 0 && y < p.height && x >= 0 && x < p.width) {
      value = planes[plane * plane_elements + static_cast<int64_t>(y) * p.width + x];
    }
    to[g * p.plane_size + r * p.pitch + (c % STEP) * p.phase + c / STEP] = value;
  }
}

}  // namespace mpg
