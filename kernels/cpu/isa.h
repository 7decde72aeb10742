// Which instruction set the kernels use.
#pragma once

namespace mpk {

int isa();        // a value of mpk_isa
bool has_avx2();  // may AVX2 be used? Also where the products use AVX-512
int aes_level();  // as mpk_aes_level

}  // namespace mpk
