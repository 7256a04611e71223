/* One position of the causal hybrid, whose state holds the keys and values of the current block and the one before it. Once
   both blocks are full, the first is added to the sums and leaves. */

typedef struct {
    int64_t batch, heads, d, e, m, block, type, value_type, threads;
    feature_map of_queries, of_keys;
    view q, k, v, mixed;
    view keys, values; /* 2 blocks for each head, written to */
    const int64_t *filled;
    int64_t *filled_after;
    const REAL *log_gain;
    REAL *sums, *norms, *peak; /* written to when a block leaves */
    int64_t not_finite; /* set to 1 if the sum of a row of the result is NaN or infinite */
} hybrid_step_call;

typedef struct {
    int64_t b, h, d_row, e_row, m_row, s_row;
    REAL *x, *features, *scores, *row, *mixed; /* the query, its features, near weights, a key or value, the result */
    REAL *keys, *values, *key_features;        /* a chunk of a block that leaves */
    directions for_q, for_k;
    growing sums;
} step_space;

static step_space new_step_space(const hybrid_step_call *call, REAL **memory) {
    step_space w = {.d_row = row_length(call->d), .e_row = row_length(call->e) + LANES, .m_row = row_length(call->m)};
    w.s_row = rounded_up(2 * call->block, LANES);
    w.x = take(memory, w.d_row), w.features = take(memory, w.m_row), w.scores = take(memory, w.s_row);
    w.row = take(memory, w.d_row + w.e_row), w.mixed = take(memory, w.e_row);
    w.keys = take(memory, CHUNK * w.d_row), w.values = take(memory, CHUNK * w.e_row);
    w.key_features = take(memory, CHUNK * w.m_row);
    w.sums = new_growing(call->m, call->e, call->m, memory);
    return w;
}

static int64_t hybrid_step_numbers(const hybrid_step_call *call) {
    REAL *end = NULL;
    new_step_space(call, &end);
    return (int64_t)((uintptr_t)end / sizeof(REAL)) + directions_size(&call->of_queries, 1, call->d) +
           directions_size(&call->of_keys, CHUNK, call->d);
}

/* A row of the caller's as REAL: where it is if possible, else a copy. Rows are read as whole vectors. */
INLINE const REAL *row_as_real(const char *from, int64_t columns, int64_t filled, int64_t type, REAL *copy) {
    if (type == SAME && columns % LANES == 0) return (const REAL *)from;
    read_row(copy, from, columns, filled, type);
    return copy;
}

/* Weights of near keys, relative to 2^0: their base-2 logarithms, -inf behind the last. */
static void step_scores(const hybrid_step_call *call, step_space *w, int64_t seen) {
    REAL factor = (REAL)(LOG2_E / sqrt((double)call->d));
    int64_t j = 0;
    int direct = call->type == SAME && call->d % LANES == 0;
    for (; direct && j + LANES <= seen; j += LANES) {
        REAL square[LANE_COUNT * LANE_COUNT];
        for (int64_t row = 0; row < LANES; row++) {
            const REAL *key = (const REAL *)row_of(call->keys, w->b, w->h, j + row, SAME);
            vec total = splat(0);
            for (int64_t i = 0; i < call->d; i += LANES) total += load(w->x + i) * load(key + i);
            store(square + row * LANES, total);
        }
        store(w->scores + j, reduce_rows(square, 0) * factor);
    }
    for (; j < seen; j++) {
        const REAL *key = row_as_real(row_of(call->keys, w->b, w->h, j, call->type), call->d, w->d_row, call->type, w->row);
        vec total = splat(0);
        for (int64_t i = 0; i < call->d; i += LANES) total += load(w->x + i) * load(key + i);
        w->scores[j] = lanes_sum(total) * factor;
    }
    for (; j < rounded_up(seen, LANES); j++) w->scores[j] = -INFINITY;
}

/* to += factor times a row. */
INLINE void add_weighted(REAL *to, const REAL *row, REAL factor, int64_t columns) {
    int64_t j = 0;
    for (; j + LANES <= columns; j += LANES) store(to + j, load(to + j) + load(row + j) * factor);
    for (; j < columns; j++) to[j] += row[j] * factor;
}

/* `vectors` columns of the product of a row and a matrix of m rows, kept in registers. */
INLINE void row_product(const int vectors, int64_t m, const REAL *x, const REAL *rows, int64_t row, REAL *to) {
    vec sums[STEP_VECTORS];
#pragma GCC unroll 4
    for (int j = 0; j < vectors; j++) sums[j] = splat(0);
    for (int64_t i = 0; i < m; i++)
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) sums[j] += x[i] * load(rows + i * row + j * LANES);
#pragma GCC unroll 4
    for (int j = 0; j < vectors; j++) store(to + j * LANES, sums[j]);
}

/* The product of m numbers and a matrix of m x e. */
static void step_product(int64_t m, int64_t e, const REAL *x, const REAL *rows, int64_t row, REAL *to) {
    int64_t j = 0;
    for (; j + STEP_VECTORS * LANES <= e; j += STEP_VECTORS * LANES) row_product(STEP_VECTORS, m, x, rows + j, row, to + j);
    for (; j + LANES <= e; j += LANES) row_product(1, m, x, rows + j, row, to + j);
    for (; j < e; j++) {
        to[j] = 0;
        for (int64_t i = 0; i < m; i++) to[j] += x[i] * rows[i * row + j];
    }
}

/* w->mixed += weights times values. */
static void step_near(const hybrid_step_call *call, step_space *w, int64_t seen) {
    if (call->value_type == SAME) {
        step_product(seen, call->e, w->scores, (const REAL *)row_of(call->values, w->b, w->h, 0, SAME), call->values.row, w->row);
        add_weighted(w->mixed, w->row, 1, call->e);
        return;
    }
    for (int64_t j = 0; j < seen; j++) {
        read_row(w->row, row_of(call->values, w->b, w->h, j, call->value_type), call->e, w->e_row, call->value_type);
        add_weighted(w->mixed, w->row, w->scores[j], call->e);
    }
}

/* phi(q) . z */
static REAL step_norm(int64_t m, const REAL *features, const REAL *norms) {
    vec total = splat(0);
    REAL rest = 0;
    int64_t i = 0;
    for (; i + LANES <= m; i += LANES) total += load(features + i) * load(norms + i);
    for (; i < m; i++) rest += features[i] * norms[i];
    return lanes_sum(total) + rest;
}

static void mix_step(hybrid_step_call *call, step_space *w, int64_t index, int64_t seen) {
    REAL query_exponent = 0, total = 0, top;
    read_row(w->x, row_of(call->q, w->b, w->h, 0, call->type), call->d, w->d_row, call->type);
    compute_features(&call->of_queries, &w->for_q, w->x, w->d_row, 1, call->d, call->m, w->features, w->m_row, &query_exponent);
    step_scores(call, w, seen);
    REAL norm = step_norm(call->m, w->features, call->norms + index * call->m);
    REAL level = or_zero(call->peak[index]) + call->log_gain[w->h] * (REAL)LOG2_E + query_exponent;
    REAL height = level + rough_log2(splat(norm))[0];
    vec most = splat(-INFINITY), sum = splat(0);
    for (int64_t j = 0; j < seen; j += LANES) most = larger(load(w->scores + j), most);
    top = lanes_max(most);
    top = or_zero(height > top ? height : top);
    for (int64_t j = 0; j < seen; j += LANES) {
        vec weight = exp2_lanes(load(w->scores + j) - splat(top));
        store(w->scores + j, weight);
        sum += weight;
    }
    REAL limit = height == -INFINITY ? HIGHEST_OF_NONE : HIGHEST;
    REAL factor = exp2_of(level - top > limit ? limit : level - top);
    total = lanes_sum(sum) + factor * norm;
    memset(w->mixed, 0, (size_t)w->e_row * sizeof(REAL));
    if (height != -INFINITY)
        step_product(call->m, call->e, w->features, call->sums + index * call->m * call->e, call->e, w->mixed);
    scale(w->mixed, rounded_up(call->e, LANES), factor);
    step_near(call, w, seen);
    scale(w->mixed, rounded_up(call->e, LANES), reciprocal(total));
    write_row(row_of(call->mixed, w->b, w->h, 0, call->value_type), w->mixed, 1, call->e, call->value_type);
    vec sum_of_mixed = splat(0);
    for (int64_t j = 0; j < call->e; j += LANES) sum_of_mixed += load(w->mixed + j);
    REAL result = lanes_sum(sum_of_mixed);
    if (result - result != 0) __atomic_store_n(&call->not_finite, 1, __ATOMIC_RELAXED);
}

/* Adds the first block to the sums. */
static void fold_first_block(const hybrid_step_call *call, step_space *w, int64_t index) {
    REAL *sums_of = call->sums + index * call->m * call->e, *norms = call->norms + index * call->m;
    REAL *peak_of_head = call->peak + index, exponents[CHUNK], factors[CHUNK];
    held_state before = {sums_of, norms, peak_of_head};
    growing *sums = &w->sums;
    int fading = has_exponent(&call->of_keys);
    begin(sums, before, call->m, call->e, 0, 0);
    for (int64_t j = 0; j < call->block; j += CHUNK) {
        int64_t count = least(CHUNK, call->block - j);
        read_rows(w->keys, w->d_row, call->keys, w->b, w->h, j, count, call->d, call->type, NULL);
        read_rows(w->values, w->e_row, call->values, w->b, w->h, j, count, call->e, call->value_type, NULL);
        compute_features(&call->of_keys, &w->for_k, w->keys, w->d_row, count, call->d, call->m, w->key_features, w->m_row,
                         exponents);
        if (fading) {
            REAL peak = highest_of(exponents, count, sums->peak);
            for (int64_t i = 0; i < count; i++) factors[i] = exp2_of(exponents[i] - or_zero(peak));
            scale_rows(w->values, w->e_row, call->e, count, factors);
            fade(sums, exp2_of(sums->peak - or_zero(peak)));
            sums->peak = peak;
        }
        grow(sums, count, transposed(w->key_features, w->m_row), w->values, w->e_row, w->key_features, w->m_row,
             fading ? factors : NULL);
    }
    finish(sums, sums_of, norms, peak_of_head);
}

/* Moves the second block to the place of the first, and clears its own. */
static void move_block(view x, const step_space *w, int64_t block, int64_t columns, int64_t type) {
    for (int64_t j = 0; j < 2 * block; j++) {
        size_t bytes = (size_t)columns * type_bytes(type);
        if (j < block)
            memcpy(row_of(x, w->b, w->h, j, type), row_of(x, w->b, w->h, block + j, type), bytes);
        else
            memset(row_of(x, w->b, w->h, j, type), 0, bytes);
    }
}

static void hybrid_step_task(void *context, void *memory, int64_t index) {
    hybrid_step_call *call = context;
    REAL *space = memory;
    step_space w = new_step_space(call, &space);
    w.b = index / call->heads, w.h = index % call->heads;
    int64_t filled = call->filled[w.b], leaves = filled + 1 == 2 * call->block;
    w.for_q = pack_directions(&call->of_queries, w.h, call->d, 1, 0, &space);
    memcpy(row_of(call->keys, w.b, w.h, filled, call->type), row_of(call->k, w.b, w.h, 0, call->type),
           (size_t)call->d * type_bytes(call->type));
    memcpy(row_of(call->values, w.b, w.h, filled, call->value_type), row_of(call->v, w.b, w.h, 0, call->value_type),
           (size_t)call->e * type_bytes(call->value_type));
    mix_step(call, &w, index, filled + 1);
    if (w.h == 0) call->filled_after[w.b] = leaves ? call->block : filled + 1;
    if (!leaves) return;
    w.for_k = pack_directions(&call->of_keys, w.h, call->d, CHUNK, 0, &space);
    fold_first_block(call, &w, index);
    move_block(call->keys, &w, call->block, call->d, call->type);
    move_block(call->values, &w, call->block, call->e, call->value_type);
}
