/* Linear attention, chunk by chunk:

     out_i = sum over j of (q'_i . k'_j) v_j / sum over j of q'_i . k'_j        q' = phi(q), k' = phi(k)

   over all keys, or over j <= i in the causal form. S = sum of k'_j v_j^T and z = sum of k'_j are the state; both are
   relative to 2^peak, with peak the largest exponent of a key so far. The weights of row i are relative to the largest
   exponent that it sees, so that a large key does not change earlier rows.

   Gradients, with G and e those of numerator and denominator and P_ij = G_i . v_j + e_i:
     dq'_i = sum over j <= i of P_ij k'_j,  dk'_j = sum over i >= j of P_ij q'_i,  dv_j = sum over i >= j of (q'_i . k'_j) G_i.
   Features are computed again. R = sum of q'_i G_i^T and r = sum of e_i q'_i over later rows are the gradient of the state. */

/* ---- the causal form --------------------------------------------------------------------------------------------------- */

INLINE int64_t head_index(const linear_call *call, place at) { return at.b * call->heads + at.h; }

/* Adds a chunk of keys to S (m x e), or to its transpose. */
static void add_keys(const linear_call *call, workspace *w, growing *sums, int64_t count, REAL state_factor, REAL after,
                     int turned) {
    const REAL *values = faded_values(call, w, count);
    const REAL *factors = has_exponent(&call->of_keys) ? w->key_factors : NULL;
    fade(sums, state_factor);
    if (turned)
        grow(sums, count, transposed(values, w->e_row), w->k, w->m_row, w->k, w->m_row, factors);
    else
        grow(sums, count, transposed(w->k, w->m_row), values, w->e_row, w->k, w->m_row, factors);
    sums->peak = after;
}

/* Mixes a chunk into w->mixed, not yet divided, and writes the result. */
static void mix_chunk(const linear_call *call, workspace *w, const growing *sums, place at, int64_t first, int64_t count) {
    int fading = has_exponent(&call->of_keys);
    int64_t columns = rounded_up(w->e, LANES);
    REAL *inverse = call->inverse ? call->inverse + head_index(call, at) * call->queries + first : NULL;
    transpose(rounded_up(count, LANES), rounded_up(w->m, LANES), w->k, w->m_row, w->turned_k, w->c_row);
    multiply_to_triangle(count, w->m, plain(w->q, w->m_row), w->turned_k, w->c_row, w->scores, w->c_row);
    see(call, w, w->scores, count);
    multiply(count, columns, sums->empty ? 0 : w->m, plain(w->q, w->m_row), sums->all, sums->row, w->mixed, w->e_row, 0);
    if (fading && !sums->empty) scale_rows(w->mixed, w->e_row, w->e, count, w->row_factors);
    multiply_triangle(count, columns, w->scores, w->c_row, w->v, w->e_row, w->mixed, w->e_row);
    for (int64_t i = 0; i < count; i++) {
        vec past = splat(0), total = splat(0);
        for (int64_t j = 0; j < w->m && !sums->empty; j += LANES)
            past += load(w->q + i * w->m_row + j) * load(sums->norms + j);
        for (int64_t j = 0; j <= i; j += LANES) total += load(w->scores + i * w->c_row + j);
        REAL factor = reciprocal(lanes_sum(total + (fading ? past * w->row_factors[i] : past)));
        if (inverse) inverse[i] = factor;
        write_row(row_of(call->mixed, at.b, at.h, first + i, call->value_type), w->mixed + i * w->e_row, factor, w->e,
                  call->value_type);
    }
}

static void causal_forward(const linear_call *call, workspace *w, growing *sums, place at) {
    for (int64_t first = at.from; first < at.to; first += w->c) {
        int64_t count = least(w->c, at.to - first);
        REAL after;
        read_queries(call, w, at, first, count);
        read_keys(call, w, at, first, count);
        REAL state_factor = set_factors(call, w, count, sums->peak, &after);
        mix_chunk(call, w, sums, at, first, count);
        add_keys(call, w, sums, count, state_factor, after, 0);
    }
}

/* Only the sums over keys. */
static void sum_keys(const linear_call *call, workspace *w, growing *sums, place at) {
    for (int64_t first = at.from; first < at.to; first += w->c) {
        int64_t count = least(w->c, at.to - first);
        REAL after;
        read_keys(call, w, at, first, count);
        REAL state_factor = set_factors(call, w, count, sums->peak, &after);
        add_keys(call, w, sums, count, state_factor, after, 0);
    }
}

/* P of a chunk. */
static void pair(const linear_call *call, workspace *w, int64_t count) {
    transpose(rounded_up(count, LANES), rounded_up(w->e, LANES), w->v, w->e_row, w->turned_v, w->c_row);
    multiply_to_triangle(count, w->e, plain(w->g, w->e_row), w->turned_v, w->c_row, w->pairs, w->c_row);
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j <= i; j += LANES)
            store(w->pairs + i * w->c_row + j, load(w->pairs + i * w->c_row + j) + splat(w->errors[i]));
    see(call, w, w->pairs, count);
}

/* dq, forwards in time, with the transpose of S. Notes the peaks before the chunks. */
static void causal_back_to_queries(const linear_call *call, workspace *w, growing *sums, place at) {
    int64_t columns = rounded_up(w->m, LANES), chunks = chunk_count(call->keys);
    REAL *peaks = call->peaks + head_index(call, at) * (chunks + 1);
    for (int64_t first = at.from; first < at.to; first += w->c) {
        int64_t count = least(w->c, at.to - first);
        REAL after;
        read_queries(call, w, at, first, count);
        read_keys(call, w, at, first, count);
        read_gradients(call, w, at, first, count);
        REAL state_factor = set_factors(call, w, count, sums->peak, &after);
        peaks[first / w->c] = sums->peak;
        peaks[first / w->c + 1] = after;
        for (int64_t i = 0; i < count; i++)
            for (int64_t j = 0; j < columns; j += LANES)
                store(w->d_features + i * w->m_row + j, load(sums->norms + j) * w->errors[i]);
        if (!sums->empty) {
            multiply(count, columns, w->e, plain(w->g, w->e_row), sums->all, sums->row, w->d_features, w->m_row, 1);
            if (has_exponent(&call->of_keys)) scale_rows(w->d_features, w->m_row, w->m, count, w->row_factors);
        }
        pair(call, w, count);
        multiply_triangle(count, columns, w->pairs, w->c_row, w->k, w->m_row, w->d_features, w->m_row);
        pull_back(&call->of_queries, &w->for_q, w->x_q, w->d_row, count, w->d, w->m, w->q, w->m_row, w->d_features, w->dx,
                  w->d_row);
        write_rows(call->dq, w->dx, w->d_row, at.b, at.h, first, count, w->d, call->type);
        if (first + count < at.to) add_keys(call, w, sums, count, state_factor, after, 1);
    }
}

/* Adds a chunk of queries and gradients to R (m x e) and r, the gradient of the state before the chunk. */
static void add_later(const linear_call *call, workspace *w, growing *later, int64_t count, REAL state_factor) {
    if (has_exponent(&call->of_keys)) {
        scale_rows(w->g, w->e_row, w->e, count, w->row_factors);
        for (int64_t i = 0; i < count; i++) w->errors[i] *= w->row_factors[i];
    }
    fade(later, state_factor);
    grow(later, count, transposed(w->q, w->m_row), w->g, w->e_row, w->q, w->m_row, w->errors);
}

static REAL read_for_later(const linear_call *call, workspace *w, place at, int64_t first, int64_t count,
                           const uint8_t **keep) {
    const REAL *peaks = call->peaks + head_index(call, at) * (chunk_count(call->keys) + 1);
    REAL after;
    read_queries(call, w, at, first, count);
    *keep = read_keys(call, w, at, first, count);
    read_gradients(call, w, at, first, count);
    return set_factors(call, w, count, peaks[first / w->c], &after);
}

INLINE int64_t last_chunk(place at, int64_t c) { return at.from + (at.to - at.from - 1) / c * c; }

/* Only R and r, backwards in time. */
static void sum_later(const linear_call *call, workspace *w, growing *later, place at) {
    if (at.to <= at.from) return;
    const uint8_t *keep;
    for (int64_t first = last_chunk(at, w->c); first >= at.from; first -= w->c) {
        int64_t count = least(w->c, at.to - first);
        REAL state_factor = read_for_later(call, w, at, first, count, &keep);
        add_later(call, w, later, count, state_factor);
    }
}

/* Writes dk and dv of a chunk from the gradients of its features and values. */
static void write_key_gradients(const linear_call *call, workspace *w, place at, int64_t first, int64_t count,
                                const uint8_t *keep) {
    pull_back(&call->of_keys, &w->for_k, w->x_k, w->d_row, count, w->d, w->m, w->k, w->m_row, w->d_features, w->dx, w->d_row);
    for (int64_t i = 0; keep && i < count; i++)
        if (!keep[i]) {
            memset(w->dx + i * w->d_row, 0, (size_t)w->d_row * sizeof(REAL));
            memset(w->dv + i * w->e_row, 0, (size_t)w->e_row * sizeof(REAL));
        }
    write_rows(call->dk, w->dx, w->d_row, at.b, at.h, first, count, w->d, call->type);
    write_rows(call->dv, w->dv, w->e_row, at.b, at.h, first, count, w->e, call->value_type);
}

/* d k' = V R^T + r and d v = K R, with the factors of the keys: what a chunk of keys gets through the state. */
static void back_through_state(const linear_call *call, workspace *w, const growing *later, int64_t count) {
    int64_t columns_m = rounded_up(w->m, LANES), columns_e = rounded_up(w->e, LANES);
    for (int64_t i = 0; i < count; i++) memcpy(w->d_features + i * w->m_row, later->norms, (size_t)columns_m * sizeof(REAL));
    multiply(count, columns_e, later->empty ? 0 : w->m, plain(w->k, w->m_row), later->all, later->row, w->dv, w->e_row, 0);
    if (later->empty) return;
    transpose(columns_m, columns_e, later->all, later->row, w->turned, w->m_row);
    multiply(count, columns_m, w->e, plain(w->v, w->e_row), w->turned, w->m_row, w->d_features, w->m_row, 1);
    if (!has_exponent(&call->of_keys)) return;
    scale_rows(w->d_features, w->m_row, w->m, count, w->key_factors);
    scale_rows(w->dv, w->e_row, w->e, count, w->key_factors);
}

/* dk and dv, backwards in time. */
static void causal_back_to_keys(const linear_call *call, workspace *w, growing *later, place at) {
    if (at.to <= at.from) return;
    int64_t columns_m = rounded_up(w->m, LANES), columns_e = rounded_up(w->e, LANES);
    const uint8_t *keep;
    for (int64_t first = last_chunk(at, w->c); first >= at.from; first -= w->c) {
        int64_t count = least(w->c, at.to - first);
        REAL state_factor = read_for_later(call, w, at, first, count, &keep);
        back_through_state(call, w, later, count);
        pair(call, w, count);
        multiply_transposed_triangle(count, columns_m, w->pairs, w->c_row, w->q, w->m_row, w->d_features, w->m_row);
        transpose(rounded_up(count, LANES), columns_m, w->k, w->m_row, w->turned_k, w->c_row);
        multiply_to_triangle(count, w->m, plain(w->q, w->m_row), w->turned_k, w->c_row, w->scores, w->c_row);
        see(call, w, w->scores, count);
        multiply_transposed_triangle(count, columns_e, w->scores, w->c_row, w->g, w->e_row, w->dv, w->e_row);
        write_key_gradients(call, w, at, first, count, keep);
        if (first > at.from || call->sums_after) add_later(call, w, later, count, state_factor);
    }
}

/* ---- the bidirectional form -------------------------------------------------------------------------------------------- */

static void mix_queries(const linear_call *call, workspace *w, growing *sums, place at) {
    for (int64_t first = at.from; first < at.to; first += w->c) {
        int64_t count = least(w->c, at.to - first);
        REAL *inverse = call->inverse ? call->inverse + head_index(call, at) * call->queries + first : NULL;
        read_queries(call, w, at, first, count);
        multiply(count, rounded_up(w->e, LANES), w->m, plain(w->q, w->m_row), sums->all, sums->row, w->mixed, w->e_row, 0);
        for (int64_t i = 0; i < count; i++) {
            vec total = splat(0);
            for (int64_t j = 0; j < w->m; j += LANES) total += load(w->q + i * w->m_row + j) * load(sums->norms + j);
            REAL factor = reciprocal(lanes_sum(total));
            if (inverse) inverse[i] = factor;
            write_row(row_of(call->mixed, at.b, at.h, first + i, call->value_type), w->mixed + i * w->e_row, factor, w->e,
                      call->value_type);
        }
    }
}

/* dq = G S^T + e z^T, with the transpose of S; and the gradients of S and z. */
static void back_to_queries(const linear_call *call, workspace *w, growing *sums, growing *later, place at) {
    int64_t columns = rounded_up(w->m, LANES);
    for (int64_t first = at.from; first < at.to; first += w->c) {
        int64_t count = least(w->c, at.to - first);
        read_queries(call, w, at, first, count);
        read_gradients(call, w, at, first, count);
        for (int64_t i = 0; i < count; i++)
            for (int64_t j = 0; j < columns; j += LANES)
                store(w->d_features + i * w->m_row + j, load(sums->norms + j) * w->errors[i]);
        multiply(count, columns, w->e, plain(w->g, w->e_row), sums->all, sums->row, w->d_features, w->m_row, 1);
        grow(later, count, transposed(w->q, w->m_row), w->g, w->e_row, w->q, w->m_row, w->errors);
        pull_back(&call->of_queries, &w->for_q, w->x_q, w->d_row, count, w->d, w->m, w->q, w->m_row, w->d_features, w->dx,
                  w->d_row);
        write_rows(call->dq, w->dx, w->d_row, at.b, at.h, first, count, w->d, call->type);
    }
}

/* dk' = v dS^T + dz and dv = k' dS. */
static void back_to_keys(const linear_call *call, workspace *w, growing *later, place at) {
    REAL peak = or_zero(later->peak);
    for (int64_t first = at.from; first < at.to; first += w->c) {
        int64_t count = least(w->c, at.to - first);
        const uint8_t *keep = read_keys(call, w, at, first, count);
        if (has_exponent(&call->of_keys))
            for (int64_t j = 0; j < count; j++) w->key_factors[j] = exp2_of(w->exponents[j] - peak);
        back_through_state(call, w, later, count);
        write_key_gradients(call, w, at, first, count, keep);
    }
}
