// A weight matrix in panels (see formats.h).
#pragma once

#include "formats.h"
#include "memory.h"
#include "team.h"

namespace hr {

struct Matrix {
    Matrix(Format format, int n, int k)
        : format(format),
          n(n),
          k(k),
          num_panels((n + COLUMNS - 1) / COLUMNS),
          bytes_per_panel(hr::panel_bytes(format, k)),
          region(bytes_per_panel * num_panels) {}

    const uint8_t* panel(int index) const { return region.get() + bytes_per_panel * index; }

    // Fills all panels from a file's rows. The source's format is the matrix's own, or any where the matrix's isn't
    // quantised. order: (n,) which row of the source becomes each column; null: as they come.
    void pack(Team& team, Format source, const uint8_t* rows, const int32_t* order);

    const Format format;
    const int n, k;  // columns (outputs), depth (inputs)
    const int num_panels;
    const size_t bytes_per_panel;
    const Region region;
};

}  // namespace hr
