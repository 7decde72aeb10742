// Which instruction set the kernels use.
#pragma once

namespace mpk {

int isa();        // a value of mpk_isa
int aes_level();  // as mpk_aes_level

}  // namespace mpk
