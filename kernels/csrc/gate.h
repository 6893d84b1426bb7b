// The gated activation, by itself (elementwise.cpp) and at the end of a product (product.h).
#pragma once

#include "common.h"

namespace aril {

// silu(gate) * up of numbers of type T, each function rounded to it.
template <class T>
ARIL_INLINE vf gated(vf gate, vf up) {
    return rounded<T>(gate / (exp(-gate) + 1.0f)) * up;
}

}  // namespace aril
