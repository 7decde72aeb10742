// The tiles of products that are compiled. From many results to few: the first four are plain register tiles, in the
// others 4, 8, 16 and 32 lanes share the terms of a sum. mpg_product_tile() tells the chooser. The largest would not
// fit into registers with elements of 8 bytes.
#pragma once

#include "product.h"

//             TN TM  CG PG ACROSS DEPTH
#define MPG_TILES_4(F) F(0, Tile<8, 8, 1, 8, 2, 8>)
#define MPG_TILES(F) \
  F(1, Tile<8, 4, 1, 8, 2, 8>)   \
  F(2, Tile<4, 4, 1, 8, 2, 16>)  \
  F(3, Tile<4, 2, 1, 8, 2, 16>)  \
  F(4, Tile<4, 4, 4, 4, 2, 16>)  \
  F(5, Tile<8, 4, 8, 1, 2, 16>)  \
  F(6, Tile<4, 4, 16, 1, 2, 32>) \
  F(7, Tile<4, 8, 32, 1, 1, 32>)
