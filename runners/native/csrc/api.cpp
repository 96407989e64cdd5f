// The C interface. Nothing throws across it: a call that fails returns null or false, and hr_error() says why.
#include <exception>
#include <string>

#include "engine.h"
#include "rows.h"
#include "sampling.h"

namespace {

thread_local std::string last_error;

template <class Call>
auto guarded(Call&& call) -> decltype(call()) {
    try {
        return call();
    } catch (const std::exception& error) {
        last_error = error.what();
    } catch (...) {
        last_error = "unknown error";
    }
    return {};
}

}  // namespace

#pragma GCC visibility push(default)
extern "C" {

const char* hr_error() { return last_error.c_str(); }

hr::Team* hr_team_new(int32_t size, int32_t pin) {
    return guarded([&] { return new hr::Team(size, pin != 0); });
}
void hr_team_free(hr::Team* team) { delete team; }

// Rows of the source: (n, k) in the format `source`; order: see Matrix::pack.
hr::Matrix* hr_matrix_new(hr::Team* team, int32_t format, int32_t n, int32_t k, int32_t source, const uint8_t* rows,
                          const int32_t* order) {
    return guarded([&] {
        auto matrix = std::make_unique<hr::Matrix>(static_cast<hr::Format>(format), n, k);
        matrix->pack(*team, static_cast<hr::Format>(source), rows, order);
        return matrix.release();
    });
}
void hr_matrix_free(hr::Matrix* matrix) { delete matrix; }

hr::Engine* hr_engine_new(hr::Team* team, const hr_model* model, const hr_layer* layers) {
    return guarded([&] { return new hr::Engine(*team, *model, layers); });
}
void hr_engine_free(hr::Engine* engine) { delete engine; }

bool hr_step(hr::Engine* engine, const hr_batch* batch) {
    return guarded([&] {
        engine->step(*batch);
        return true;
    });
}

bool hr_logits(hr::Engine* engine, const int32_t* tokens, int32_t count, float* out) {
    return guarded([&] {
        engine->logits(tokens, count, out);
        return true;
    });
}

hr::PersistentBatch* hr_rows_new(hr::Team* team, hr::Engine* engine, const hr_rows* columns) {
    return guarded([&] { return new hr::PersistentBatch(*team, *engine, *columns); });
}
void hr_rows_free(hr::PersistentBatch* rows) { delete rows; }

bool hr_advance(hr::PersistentBatch* all, const int32_t* rows, const int32_t* asked, int32_t count, float* logits,
                int32_t* token_ids, int32_t* outcomes) {
    return guarded([&] {
        all->advance(rows, asked, count, logits, token_ids, outcomes);
        return true;
    });
}

// See sampling.h.
bool hr_sample(hr::Team* team, const float* logits, int32_t vocab, const hr_row_sampling* sampling, const int32_t* rows,
               int32_t count, int32_t* token_ids, int32_t* outcomes) {
    return guarded([&] {
        hr::sample(*team, logits, vocab, sampling, rows, count, token_ids, outcomes);
        return true;
    });
}

bool hr_report(hr::Team* team, const float* logits, int32_t vocab, const int32_t* token_ids, const int32_t* wanted,
               int32_t count, int32_t most, int32_t* widths, int32_t* ranks, int32_t* ids, float* values) {
    return guarded([&] {
        hr::report(*team, logits, vocab, token_ids, wanted, count, most, widths, ranks, ids, values);
        return true;
    });
}

// --- single parts, for tests and measurements ---

// out (rows, n) = x (rows, k) times the matrix.
bool hr_multiply(hr::Team* team, const hr::Matrix* matrix, int32_t mode, const float* x, int32_t rows, float* out) {
    return guarded([&] {
        const hr::Mode how = static_cast<hr::Mode>(mode);
        const int forms = hr::forms_of(*matrix, how);
        hr::ActivationBuffers buffers;
        const hr::Activations in = buffers.need(rows, matrix->k, forms, x);
        if (forms != hr::AS_FLOATS) {
            for (int row = 0; row < rows; ++row) {
                hr::quantise_row(x + static_cast<size_t>(row) * matrix->k, row, forms, in);
            }
        }
        const hr::Product product{matrix, nullptr, 0};
        team->run(1, [&](hr::Team::Member& me) { hr::multiply(me, how, &product, 1, in, rows, out, matrix->n); });
        return true;
    });
}

// Writes k elements of a file's row as floats.
void hr_read_row(int32_t format, const uint8_t* row, int32_t k, float* out) {
    hr::read_row(static_cast<hr::Format>(format), row, k, out);
}

}  // extern "C"
#pragma GCC visibility pop
