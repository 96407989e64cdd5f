// The inputs of a matrix product, in the forms the kernels multiply: floats as they are, or 16- or 8-bit numbers with a
// scale for every GROUP of depths. A row's numbers depend on that row only.
#pragma once

#include "formats.h"
#include "memory.h"

namespace hr {

enum Forms : int { AS_FLOATS = 1, AS_16_BIT = 2, AS_8_BIT = 4 };

// scale: of each group, so that value = scale * number. sum: scale times the sum of the group's numbers.
struct Activations {
    int k = 0;
    const float* floats = nullptr;  // (rows, k)
    int16_t* numbers16 = nullptr;   // (rows, k), the middle two of each four swapped
    float* scale16 = nullptr;       // (rows, k / GROUP)
    float* sum16 = nullptr;
    int8_t* numbers8 = nullptr;     // (rows, k)
    float* scale8 = nullptr;        // (rows, k / GROUP)
    float* sum8 = nullptr;
    int16_t* offsets8 = nullptr;    // (rows, k / 16, 2) sums of numbers, of places 0 and 1 of each four, and of 2 and 3
};

// Memory for the numbers of a step's rows. One at a time is in use.
class ActivationBuffers {
  public:
    // Makes room for so many rows of k floats (a multiple of GROUP where `forms` asks for numbers).
    Activations need(int rows, int k, int forms, const float* floats);

  private:
    Buffer<int16_t> numbers16_;
    Buffer<int8_t> numbers8_;
    Buffer<float> scale16_, sum16_, scale8_, sum8_;
    Buffer<int16_t> offsets8_;
};

// Fills in the numbers of one row. values: (k,). A row that holds NaN or infinity gets NaN for its scales, so that its
// outputs show it.
void quantise_row(const float* values, int row, int forms, const Activations& out);

}  // namespace hr
