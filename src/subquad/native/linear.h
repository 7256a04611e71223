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

#define NOWHERE ((place){0, 0, 0, 0})

/* Where the next head begins, whose rows are needed when those of this one are done; an empty place after the last head, and
   where a sequence is cut. */
INLINE place next_head(const linear_call *call, place at, int64_t length) {
    int64_t head = head_index(call, at) + 1;
    if (head == call->batch * call->heads || at.to - at.from < length) return NOWHERE;
    return (place){head / call->heads, head % call->heads, 0, length};
}

/* Adds a chunk of keys to S (m x e), or to its transpose. */
static void add_keys(const linear_call *call, workspace *w, growing *sums, int64_t count, REAL state_factor, REAL after,
                     int turned) {
    int64_t values_row;
    const REAL *values = faded_values(call, w, count, &values_row);
    const REAL *factors = has_exponent(&call->of_keys) ? w->key_factors : NULL;
    fade(sums, state_factor);
    if (turned)
        grow(sums, count, transposed(values, values_row), w->k, w->m_row, w->k, w->m_row, factors);
    else
        grow(sums, count, transposed(w->k, w->m_row), values, values_row, w->k, w->m_row, factors);
    sums->peak = after;
}

/* 1 / denominators of a chunk from its scores and the norms before it; either may be NULL. */
static void divide_rows(const workspace *w, const REAL *scores, const REAL *norms, int fading, int64_t count, REAL *inverse) {
    REAL square[LANE_COUNT * LANE_COUNT];
    for (int64_t first = 0; first < count; first += LANES) {
        int64_t rows = least(LANES, count - first);
        if (rows < LANES) memset(square, 0, sizeof square);
        for (int64_t i = 0; i < rows; i++) {
            int64_t row = first + i;
            vec total = splat(0);
            for (int64_t j = 0; norms && j < w->m; j += LANES) total += load(w->q + row * w->m_row + j) * load(norms + j);
            if (fading) total *= w->row_factors[row];
            for (int64_t j = 0; scores && j <= row; j += LANES) total += load(scores + row * w->c_row + j);
            store(square + i * LANES, total);
        }
        vec total = reduce_rows(square, 0);
        ivec small = (ivec)(total < splat(NOTHING)) & (ivec)(total > splat(-NOTHING));
        store(inverse + first, select_lanes(small, splat(0), 1 / total));
    }
}

/* A tile of the result, written once: (Q S times the rows' factors, if any, + T V) times `inverse`. Returns its sum. Without
   factors T V is summed first: it is the smaller part, and every addition to the larger one would be rounded to its size. */
static vec mix_tile(int64_t m, matrix q, const REAL *sums, int64_t sums_row, const REAL *factors, int64_t seen,
                     matrix scores, const REAL *v, int64_t v_row, const REAL *inverse, REAL *to, int64_t to_row) {
    vec tile_sums[MOST_ROWS][TILE_VECTORS];
    clear_sums(TILE_ROWS, TILE_VECTORS, tile_sums);
    if (!factors) add_product(TILE_ROWS, TILE_VECTORS, seen, scores, v, v_row, tile_sums);
    add_product(TILE_ROWS, TILE_VECTORS, m, q, sums, sums_row, tile_sums);
    if (factors) {
#pragma GCC unroll 8
        for (int i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 8
            for (int j = 0; j < TILE_VECTORS; j++) tile_sums[i][j] *= factors[i];
        add_product(TILE_ROWS, TILE_VECTORS, seen, scores, v, v_row, tile_sums);
    }
    vec total = splat(0);
#pragma GCC unroll 8
    for (int i = 0; i < TILE_ROWS; i++)
#pragma GCC unroll 8
        for (int j = 0; j < TILE_VECTORS; j++) {
            vec mixed = tile_sums[i][j] * inverse[i];
            store(to + i * to_row + j * LANES, mixed);
            total += mixed;
        }
    return total;
}

/* The result of a chunk. Without scores there is only Q S. Whole tiles go straight to the caller's memory. */
static void mix_rows_of_chunk(const linear_call *call, workspace *w, const growing *sums, const REAL *scores, place at,
                              int64_t first, int64_t count) {
    int64_t m = sums->empty ? 0 : w->m, columns = rounded_up(w->e, LANES), done = 0;
    const REAL *factors = scores && has_exponent(&call->of_keys) ? w->row_factors : NULL;
    int direct = call->value_type == SAME && w->e % TILE_COLUMNS == 0;
    for (; direct && done + TILE_ROWS <= count; done += TILE_ROWS) {
        fetch_some(&w->soon);
        for (int64_t j = 0; j < columns; j += TILE_COLUMNS)
            w->total += mix_tile(m, plain(w->q + done * w->m_row, w->m_row), sums->all + j, sums->row,
                                 factors ? factors + done : NULL, scores ? done + TILE_ROWS : 0,
                                 plain(scores ? scores + done * w->c_row : NULL, w->c_row), scores ? w->v + j : NULL, w->v_row,
                                 w->inverse + done, (REAL *)row_of(call->mixed, at.b, at.h, first + done, SAME) + j,
                                 call->mixed.row);
    }
    if (done == count) return;
    multiply(count - done, columns, m, plain(w->q + done * w->m_row, w->m_row), sums->all, sums->row, w->mixed + done * w->e_row,
             w->e_row, 0);
    if (factors && m) scale_rows(w->mixed + done * w->e_row, w->e_row, w->e, count - done, factors + done);
    for (int64_t i = done; scores && i < count; i += TILE_ROWS) {
        int64_t rows = least(TILE_ROWS, count - i);
        multiply(rows, columns, i + rows, plain(scores + i * w->c_row, w->c_row), w->v, w->v_row, w->mixed + i * w->e_row,
                 w->e_row, 1);
    }
    for (int64_t i = done; i < count; i++) {
        for (int64_t j = 0; j < w->e; j += LANES) w->total += load(w->mixed + i * w->e_row + j) * w->inverse[i];
        write_row(row_of(call->mixed, at.b, at.h, first + i, call->value_type), w->mixed + i * w->e_row, w->inverse[i], w->e,
                  call->value_type);
    }
}

/* Notes whether a result that was written is NaN or infinite. */
INLINE void note_finite(linear_call *call, const workspace *w) {
    REAL total = lanes_sum(w->total);
    if (total - total != 0) __atomic_store_n(&call->not_finite, 1, __ATOMIC_RELAXED);
}

INLINE void note_inverse(const linear_call *call, const workspace *w, place at, int64_t first, int64_t count) {
    if (call->inverse)
        memcpy(call->inverse + head_index(call, at) * call->queries + first, w->inverse, (size_t)count * sizeof(REAL));
}

/* Mixes a chunk, and writes the result. */
static void mix_chunk(const linear_call *call, workspace *w, const growing *sums, place at, int64_t first, int64_t count) {
    int fading = has_exponent(&call->of_keys) && !sums->empty;
    transpose(rounded_up(count, LANES), rounded_up(w->m, LANES), w->k, w->m_row, w->turned_k, w->c_row);
    multiply_to_triangle(count, w->m, plain(w->q, w->m_row), w->turned_k, w->c_row, w->scores, w->c_row);
    see(call, w, w->scores, count);
    divide_rows(w, w->scores, sums->empty ? NULL : sums->norms, fading, count, w->inverse);
    note_inverse(call, w, at, first, count);
    mix_rows_of_chunk(call, w, sums, w->scores, at, first, count);
}

/* The first chunk may be a large one (see causal_task); all others have CHUNK positions. */
static void causal_forward(const linear_call *call, workspace *w, growing *sums, place at) {
    for (int64_t first = at.from, count; first < at.to; first += count, set_chunk(w, CHUNK)) {
        count = least(w->c, at.to - first);
        REAL after;
        int is_last = first + w->c >= at.to;
        place then = is_last ? next_head(call, at, call->keys) : at;
        int64_t later = is_last ? 0 : first + w->c;
        sums->soon = look_from(w, then, later);
        look_at_queries(call, w, then, later, 0);
        look_at_keys(call, w, then, later);
        read_queries(call, w, at, first, count);
        read_keys(call, w, at, first, count);
        REAL state_factor = set_factors(call, w, count, sums->peak, &after);
        mix_chunk(call, w, sums, at, first, count);
        add_keys(call, w, sums, count, state_factor, after, 0);
    }
}

/* Only the sums over keys. What is needed after them are the queries at `then`. */
static void sum_keys(const linear_call *call, workspace *w, growing *sums, place at, place then) {
    for (int64_t first = at.from; first < at.to; first += w->c) {
        int64_t count = least(w->c, at.to - first);
        REAL after;
        if (first + w->c < at.to) {
            sums->soon = look_from(w, at, first + w->c);
            look_at_keys(call, w, at, first + w->c);
        } else {
            sums->soon = look_from(w, then, then.from);
            look_at_queries(call, w, then, then.from, 0);
        }
        read_keys(call, w, at, first, count);
        REAL state_factor = set_factors(call, w, count, sums->peak, &after);
        add_keys(call, w, sums, count, state_factor, after, 0);
    }
}

/* P of a chunk. */
static void pair(const linear_call *call, workspace *w, int64_t count) {
    transpose(rounded_up(count, LANES), rounded_up(w->e, LANES), w->v, w->v_row, w->turned_v, w->c_row);
    multiply_to_triangle(count, w->e, plain(w->g, w->e_row), w->turned_v, w->c_row, w->pairs, w->c_row);
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j <= i; j += LANES)
            store(w->pairs + i * w->c_row + j, load(w->pairs + i * w->c_row + j) + splat(w->errors[i]));
    see(call, w, w->pairs, count);
}

/* Writes dq of a chunk from the gradients of its features. */
static void write_query_gradients(const linear_call *call, workspace *w, place at, int64_t first, int64_t count) {
    int64_t row;
    REAL *dq = rows_to_write(call->dq, at, first, w->d, call->type, w->dx, w->d_row, &row);
    pull_back(&call->of_queries, &w->for_q, w->x_q, w->x_q_row, count, w->d, w->m, w->q, w->m_row, w->d_features, dq, row);
    if (dq == w->dx) write_rows(call->dq, dq, row, at.b, at.h, first, count, w->d, call->type);
}

/* dq, forwards in time, with the transpose of S. Notes the peaks before the chunks. */
static void causal_back_to_queries(const linear_call *call, workspace *w, growing *sums, place at) {
    int64_t columns = rounded_up(w->m, LANES), chunks = chunk_count(call->keys);
    REAL *peaks = call->peaks + head_index(call, at) * (chunks + 1), *q = w->q, *k = w->k, *pairs = w->pairs;
    for (int64_t first = at.from; first < at.to; first += w->c) {
        int64_t count = least(w->c, at.to - first);
        REAL after, *exponents = keep_chunk(w, q, k, pairs, first / w->c);
        sums->soon = look_from(w, at, first + w->c);
        look_at_queries(call, w, at, first + w->c, 1);
        look_at_keys(call, w, at, first + w->c);
        look_ahead(w, call->dq, at, first + w->c, w->d, call->type);
        read_queries(call, w, at, first, count);
        read_keys(call, w, at, first, count);
        read_gradients(call, w, at, first, count);
        if (exponents) memcpy(exponents, w->exponents, sizeof w->exponents);
        REAL state_factor = set_factors(call, w, count, sums->peak, &after);
        peaks[first / w->c] = sums->peak;
        peaks[first / w->c + 1] = after;
        for (int64_t i = 0; i < count; i++)
            for (int64_t j = 0; j < columns; j += LANES)
                store(w->d_features + i * w->m_row + j, load(sums->norms + j) * w->errors[i]);
        if (!sums->empty) {
            multiply_to(count, columns, w->e, plain(w->g, w->e_row), sums->all, sums->row, TILE_COLUMNS,
                        (product_to){w->d_features, w->m_row, 1, NULL, NULL, &w->soon});
            if (has_exponent(&call->of_keys)) scale_rows(w->d_features, w->m_row, w->m, count, w->row_factors);
        }
        pair(call, w, count);
        multiply_triangle(count, columns, w->pairs, w->c_row, w->k, w->m_row, w->d_features, w->m_row);
        write_query_gradients(call, w, at, first, count);
        if (first + count < at.to) add_keys(call, w, sums, count, state_factor, after, 1);
    }
    w->q = q, w->k = k, w->pairs = pairs;
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

/* Reads a chunk on the way back in time, and looks ahead to the one before it, and to its gradients if they are written. */
static REAL read_for_later(const linear_call *call, workspace *w, growing *later, place at, int64_t first, int64_t count,
                           int gradients, const uint8_t **keep) {
    const REAL *peaks = call->peaks + head_index(call, at) * (chunk_count(call->keys) + 1);
    REAL after;
    int is_last = gradients && first == 0; /* the next head begins with its first chunk and writes dq */
    place then = is_last ? next_head(call, at, call->keys) : at;
    int64_t before = is_last ? 0 : first - w->c;
    later->soon = look_from(w, then, before);
    look_at_queries(call, w, then, before, 1);
    look_at_keys(call, w, then, before);
    if (is_last) {
        look_ahead(w, call->dq, then, before, w->d, call->type);
    } else if (gradients) {
        look_ahead(w, call->dk, then, before, w->d, call->type);
        look_ahead(w, call->dv, then, before, w->e, call->value_type);
    }
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
        REAL state_factor = read_for_later(call, w, later, at, first, count, 0, &keep);
        add_later(call, w, later, count, state_factor);
    }
}

/* Writes dk and dv of a chunk from the gradients of its features and values. Padding has none. */
static void write_key_gradients(const linear_call *call, workspace *w, place at, int64_t first, int64_t count,
                                const uint8_t *keep) {
    int64_t row;
    REAL *dk = rows_to_write(call->dk, at, first, w->d, call->type, w->dx, w->d_row, &row);
    pull_back(&call->of_keys, &w->for_k, w->x_k, w->x_k_row, count, w->d, w->m, w->k, w->m_row, w->d_features, dk, row);
    for (int64_t i = 0; keep && i < count; i++)
        if (!keep[i]) {
            memset(dk + i * row, 0, (size_t)w->d * sizeof(REAL));
            memset(w->dv + i * w->dv_row, 0, (size_t)w->e * sizeof(REAL));
        }
    if (dk == w->dx) write_rows(call->dk, dk, row, at.b, at.h, first, count, w->d, call->type);
    if (w->dv == w->copied_dv) write_rows(call->dv, w->dv, w->dv_row, at.b, at.h, first, count, w->e, call->value_type);
}

/* d k' = V R^T + r and d v = K R, with the factors of the keys: what a chunk of keys gets through the state, d v in w->dv. R is
   transposed if it is new since the chunk before. */
static void back_through_state(const linear_call *call, workspace *w, const growing *later, place at, int64_t first,
                               int64_t count, int is_new) {
    int64_t columns_m = rounded_up(w->m, LANES), columns_e = rounded_up(w->e, LANES);
    w->dv = rows_to_write(call->dv, at, first, w->e, call->value_type, w->copied_dv, w->e_row, &w->dv_row);
    for (int64_t i = 0; i < count; i++) memcpy(w->d_features + i * w->m_row, later->norms, (size_t)columns_m * sizeof(REAL));
    if (later->empty) {
        for (int64_t i = 0; i < count; i++) memset(w->dv + i * w->dv_row, 0, (size_t)columns_e * sizeof(REAL));
        return;
    }
    multiply_to(count, columns_e, w->m, plain(w->k, w->m_row), later->all, later->row, TILE_COLUMNS,
                (product_to){w->dv, w->dv_row, 0, NULL, NULL, &w->soon});
    if (is_new) transpose(columns_m, columns_e, later->all, later->row, w->turned, w->m_row);
    multiply_to(count, columns_m, w->e, plain(w->v, w->v_row), w->turned, w->m_row, TILE_COLUMNS,
                (product_to){w->d_features, w->m_row, 1, NULL, NULL, &w->soon});
    if (!has_exponent(&call->of_keys)) return;
    scale_rows(w->d_features, w->m_row, w->m, count, w->key_factors);
    scale_rows(w->dv, w->dv_row, w->e, count, w->key_factors);
}

/* dk and dv, backwards in time. */
static void causal_back_to_keys(const linear_call *call, workspace *w, growing *later, place at) {
    if (at.to <= at.from) return;
    int64_t columns_m = rounded_up(w->m, LANES), columns_e = rounded_up(w->e, LANES);
    const uint8_t *keep;
    REAL *q = w->q, *k = w->k, *pairs = w->pairs;
    for (int64_t first = last_chunk(at, w->c); first >= at.from; first -= w->c) {
        int64_t count = least(w->c, at.to - first);
        const REAL *exponents = keep_chunk(w, q, k, pairs, first / w->c);
        w->is_known = exponents != NULL;
        if (exponents) memcpy(w->exponents, exponents, sizeof w->exponents);
        REAL state_factor = read_for_later(call, w, later, at, first, count, 1, &keep);
        back_through_state(call, w, later, at, first, count, 1);
        if (!w->is_known) pair(call, w, count);
        multiply_transposed_triangle(count, columns_m, w->pairs, w->c_row, w->q, w->m_row, w->d_features, w->m_row);
        transpose(rounded_up(count, LANES), columns_m, w->k, w->m_row, w->turned_k, w->c_row);
        multiply_to_triangle(count, w->m, plain(w->q, w->m_row), w->turned_k, w->c_row, w->scores, w->c_row);
        see(call, w, w->scores, count);
        multiply_transposed_triangle(count, columns_e, w->scores, w->c_row, w->g, w->e_row, w->dv, w->dv_row);
        write_key_gradients(call, w, at, first, count, keep);
        if (first > at.from || call->sums_after) add_later(call, w, later, count, state_factor);
    }
}

/* ---- the bidirectional form -------------------------------------------------------------------------------------------- */

/* What is needed after the queries are the keys at `then`. */
static void mix_queries(const linear_call *call, workspace *w, growing *sums, place at, place then) {
    for (int64_t first = at.from; first < at.to; first += w->c) {
        int64_t count = least(w->c, at.to - first);
        if (first + w->c < at.to) {
            look_from(w, at, first + w->c);
            look_at_queries(call, w, at, first + w->c, 0);
        } else {
            look_from(w, then, then.from);
            look_at_keys(call, w, then, then.from);
        }
        read_queries(call, w, at, first, count);
        divide_rows(w, NULL, sums->norms, 0, count, w->inverse);
        note_inverse(call, w, at, first, count);
        mix_rows_of_chunk(call, w, sums, NULL, at, first, count);
    }
}

/* Looks ahead to keys and values of a chunk, and to their gradients. */
INLINE void look_at_key_gradients(const linear_call *call, workspace *w, place at, int64_t first) {
    look_at_keys(call, w, at, first);
    look_ahead(w, call->dk, at, first, w->d, call->type);
    look_ahead(w, call->dv, at, first, w->e, call->value_type);
}

/* Looks ahead to queries, results and gradients of a chunk. */
INLINE void look_at_query_gradients(const linear_call *call, workspace *w, place at, int64_t first) {
    look_at_queries(call, w, at, first, 1);
    look_ahead(w, call->dq, at, first, w->d, call->type);
}

/* dq = G S^T + e z^T, with the transpose of S; and the gradients of S and z. What is needed after them are the keys at `then`. */
static void back_to_queries(const linear_call *call, workspace *w, growing *sums, growing *later, place at, place then) {
    int64_t columns = rounded_up(w->m, LANES);
    for (int64_t first = at.from; first < at.to; first += w->c) {
        int64_t count = least(w->c, at.to - first);
        if (first + w->c < at.to) {
            later->soon = look_from(w, at, first + w->c);
            look_at_query_gradients(call, w, at, first + w->c);
        } else {
            later->soon = look_from(w, then, then.from);
            look_at_key_gradients(call, w, then, then.from);
        }
        read_queries(call, w, at, first, count);
        read_gradients(call, w, at, first, count);
        for (int64_t i = 0; i < count; i++)
            for (int64_t j = 0; j < columns; j += LANES)
                store(w->d_features + i * w->m_row + j, load(sums->norms + j) * w->errors[i]);
        multiply_to(count, columns, w->e, plain(w->g, w->e_row), sums->all, sums->row, TILE_COLUMNS,
                    (product_to){w->d_features, w->m_row, 1, NULL, NULL, &w->soon});
        grow(later, count, transposed(w->q, w->m_row), w->g, w->e_row, w->q, w->m_row, w->errors);
        write_query_gradients(call, w, at, first, count);
    }
}

/* dk' = v dS^T + dz and dv = k' dS. What is needed after them are the queries at `then`. */
static void back_to_keys(const linear_call *call, workspace *w, growing *later, place at, place then) {
    REAL peak = or_zero(later->peak);
    for (int64_t first = at.from; first < at.to; first += w->c) {
        int64_t count = least(w->c, at.to - first);
        if (first + w->c < at.to) {
            look_from(w, at, first + w->c);
            look_at_key_gradients(call, w, at, first + w->c);
        } else {
            look_from(w, then, then.from);
            look_at_query_gradients(call, w, then, then.from);
        }
        const uint8_t *keep = read_keys(call, w, at, first, count);
        if (has_exponent(&call->of_keys))
            for (int64_t j = 0; j < count; j++) w->key_factors[j] = exp2_of(w->exponents[j] - peak);
        back_through_state(call, w, later, at, first, count, first == at.from);
        write_key_gradients(call, w, at, first, count, keep);
    }
}
