// Matrix products: inputs (rows, k) times weights (k, n).
#pragma once

#include "activations.h"
#include "matrix.h"

namespace hr {

enum class Mode : int32_t { ACCURATE = 0, FAST = 1 };
enum class Gate : int32_t { SILU = 0, GELU = 1 };

// Which forms of its inputs a product with this matrix reads.
int forms_of(const Matrix& matrix, Mode mode);

// One of the matrices that a product's inputs meet.
struct Product {
    const Matrix* matrix;
    const float* bias;  // (n,) or null
    int column;         // where its outputs begin in a row of `out`
};

// Called by all members of a region alike: out[row, column + j] = inputs[row] . matrix[j] + bias[j].
// out: rows of `stride` floats.
void multiply(Team::Member& me, Mode mode, const Product* products, int count, const Activations& inputs, int rows, float* out,
              int stride);

// out[row, j] = gate(inputs[row] . gates[j]) * (inputs[row] . ups[j]); both matrices have the same shape.
void multiply_gated(Team::Member& me, Mode mode, Gate gate, const Matrix& gates, const Matrix& ups, const Activations& inputs,
                    int rows, float* out);

}  // namespace hr
