// What is done to one row at a time: norms, gates, rotary positions. A row's result depends on that row only.
#pragma once

#include "gemm.h"

namespace hr {

// out = x / sqrt(mean(x^2) + eps) * weight; x and out (n,) may be the same.
void rms_norm(const float* x, const float* weight, int n, float eps, float* out);

// x += y, both (n,).
void add_to(float* x, const float* y, int n);

// gate = act(gate) * up, n a multiple of LANES.
void apply_gate(Gate kind, float* gate, const float* up, int n);

// Cosines and sines of one position, times `scale`: angle i is position * frequencies[i].
void rotary_angles(int position, const float* frequencies, int count, float scale, float* cosines, float* sines);

// Rotates the pairs (x[i], x[i + count]) of one head.
void rotate(float* x, const float* cosines, const float* sines, int count);

}  // namespace hr
