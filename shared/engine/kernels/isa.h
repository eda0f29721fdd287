// The primitives of the instruction set that is compiled for.
#pragma once

#if defined(__AVX512BF16__)
#include "avx512.h"
#else
#include "avx2.h"
#endif
