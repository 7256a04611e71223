/* One position of causal linear attention: S += k' v^T, z += k', out = q' S / q' z. */

typedef struct {
    int64_t batch, heads, d, e, m, type, value_type, threads;
    feature_map of_queries, of_keys;
    view q, k, v, mixed;
    const REAL *sums, *norms, *peak; /* state before; NULL for an empty one */
    REAL *sums_after, *norms_after, *peak_after; /* may be the same memory */
    int64_t not_finite; /* set to 1 if the sum of a row of the result is NaN or infinite */
} step_call;

#define STEP_VECTORS 4

/* `vectors` columns of S, one row after the other: S is read and written once. */
INLINE void step_columns(const int vectors, int64_t m, int64_t e, const REAL *q, const REAL *k, const REAL *v, REAL fading,
                         const REAL *from, REAL *to, REAL factor, REAL *mixed) {
    vec sums[STEP_VECTORS], value[STEP_VECTORS];
#pragma GCC unroll 4
    for (int j = 0; j < vectors; j++) sums[j] = splat(0), value[j] = load(v + j * LANES);
    for (int64_t i = 0; i < m; i++) {
#pragma GCC unroll 4
        for (int j = 0; j < vectors; j++) {
            vec row = value[j] * k[i];
            if (from) row += load(from + i * e + j * LANES) * fading;
            store(to + i * e + j * LANES, row);
            sums[j] += row * q[i];
        }
    }
#pragma GCC unroll 4
    for (int j = 0; j < vectors; j++) store(mixed + j * LANES, sums[j] * factor);
}

static void step_last_columns(int64_t columns, int64_t m, int64_t e, const REAL *q, const REAL *k, const REAL *v, REAL fading,
                              const REAL *from, REAL *to, REAL factor, REAL *mixed) {
    for (int64_t j = 0; j < columns; j++) mixed[j] = 0;
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < columns; j++) {
            REAL sum = (from ? from[i * e + j] * fading : 0) + k[i] * v[j];
            to[i * e + j] = sum;
            mixed[j] += q[i] * sum;
        }
    for (int64_t j = 0; j < columns; j++) mixed[j] *= factor;
}

#define STEP_HEADS 8 /* heads whose queries and keys are multiplied by the same directions at once */

/* Heads that a task takes: one, or several that share their directions. */
INLINE int64_t step_group(const step_call *call) {
    return is_random(&call->of_keys) && !call->of_keys.omega_head ? STEP_HEADS : 1;
}

INLINE int64_t step_numbers(const step_call *call) {
    int64_t rows = 2 * step_group(call), values = row_length(call->e) + LANES;
    return rows * (row_length(call->m) + row_length(call->d) + 1) + 2 * values + LANES +
           2 * directions_size(&call->of_keys, rows, call->d);
}

/* Adds a key of features k to the norms, and returns 1 / (q . norms). */
static REAL step_norms(int64_t m, const REAL *q, const REAL *k, REAL fading, const REAL *from, REAL *to) {
    vec total = splat(0);
    REAL rest = 0;
    int64_t i = 0;
    for (; i + LANES <= m; i += LANES) {
        vec norm = load(k + i);
        if (from) norm += load(from + i) * fading;
        store(to + i, norm);
        total += norm * load(q + i);
    }
    for (; i < m; i++) {
        to[i] = k[i] + (from ? from[i] * fading : 0);
        rest += to[i] * q[i];
    }
    return reciprocal(lanes_sum(total) + rest);
}

/* One head, from the features of its query and key. */
static void step_head(step_call *call, int64_t index, const REAL *q, REAL *k, REAL exponent, REAL *v, REAL *mixed) {
    int64_t b = index / call->heads, h = index % call->heads, m = call->m, e = call->e;
    REAL peak = call->peak ? call->peak[index] : 0, fading = 1;
    if (has_exponent(&call->of_keys)) {
        REAL before = call->peak ? peak : -INFINITY;
        if (call->of_keys.exponents) exponent = call->of_keys.exponents[index];
        peak = exponent > before ? exponent : before;
        fading = exp2_of(before - or_zero(peak));
        scale(k, rounded_up(m, LANES), exp2_of(exponent - or_zero(peak)));
    }
    call->peak_after[index] = peak;
    read_row(v, row_of(call->v, b, h, 0, call->value_type), e, rounded_up(e, LANES), call->value_type);
    REAL factor = step_norms(m, q, k, fading, call->norms ? call->norms + index * m : NULL, call->norms_after + index * m);
    const REAL *from = call->sums ? call->sums + index * m * e : NULL;
    REAL *to = call->sums_after + index * m * e;
    int64_t j = 0;
    for (; j + STEP_VECTORS * LANES <= e; j += STEP_VECTORS * LANES)
        step_columns(STEP_VECTORS, m, e, q, k, v + j, fading, from ? from + j : NULL, to + j, factor, mixed + j);
    for (; j + LANES <= e; j += LANES)
        step_columns(1, m, e, q, k, v + j, fading, from ? from + j : NULL, to + j, factor, mixed + j);
    if (j < e) step_last_columns(e - j, m, e, q, k, v + j, fading, from ? from + j : NULL, to + j, factor, mixed + j);
    write_row(row_of(call->mixed, b, h, 0, call->value_type), mixed, 1, e, call->value_type);
    REAL total = 0;
    for (j = 0; j < e; j++) total += mixed[j];
    if (total - total != 0) __atomic_store_n(&call->not_finite, 1, __ATOMIC_RELAXED);
}

/* A few heads: features of their queries, then of their keys, then each head. */
static void step_task(void *context, void *memory, int64_t index) {
    step_call *call = context;
    int64_t group = step_group(call), first = index * group, count = least(group, call->batch * call->heads - first);
    int64_t m_row = row_length(call->m), d_row = row_length(call->d), e_row = row_length(call->e) + LANES;
    REAL *space = memory;
    REAL *features = take(&space, 2 * group * m_row), *x = take(&space, 2 * group * d_row), *v = take(&space, e_row);
    REAL *mixed = take(&space, e_row), *exponents = take(&space, rounded_up(2 * group, LANES));
    for (int side = 0; side < 2; side++) {
        const feature_map *map = side ? &call->of_keys : &call->of_queries;
        view from = side ? call->k : call->q;
        REAL *start = space;
        directions used = plain_directions(map, first % call->heads, call->d, 2 * group, &start);
        for (int64_t i = 0; i < count; i++)
            read_row(x + i * d_row, row_of(from, (first + i) / call->heads, (first + i) % call->heads, 0, call->type), call->d,
                     d_row, call->type);
        compute_features(map, &used, x, d_row, count, call->d, call->m, features + side * group * m_row, m_row,
                         exponents + side * group);
    }
    for (int64_t i = 0; i < count; i++)
        step_head(call, first + i, features + i * m_row, features + (group + i) * m_row, exponents[group + i], v, mixed);
}
