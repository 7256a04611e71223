/* A chunk of a sequence for linear attention: the call, buffers, reading rows and features, factors of exponents. */

#define CHUNK 32       /* positions in a chunk of the causal form, where every pair of them has a score */
#define LARGE_CHUNK 64 /* positions in a chunk where there are no scores */
/* A denominator below this is zero or underflowed: the smallest normal number to the power of .8, as in or_infinite of
   ops/linear/sums.py. A row between two different limits would be zero in one form and right in the other. */
#if DOUBLE
#define NOTHING 7.548758734497557e-247
#else
#define NOTHING 4.530816120744224e-31f
#endif

typedef struct {
    int64_t batch, heads, queries, keys, d, e, m;
    int64_t type;       /* of q, k and their gradients */
    int64_t value_type; /* of v, the result and their gradients */
    int64_t threads;
    feature_map of_queries, of_keys;
    view q, k, v, mixed, gradient, dq, dk, dv;
    const uint8_t *keep; /* batch x keys, 0 for padding; NULL for none */
    int64_t keep_batch;
    REAL *inverse;                  /* 1 / denominator of each query; NULL if nobody needs it */
    const REAL *sums, *norms, *peak; /* state before; NULL for an empty one */
    REAL *sums_after, *norms_after, *peak_after;
    REAL *peaks; /* for gradients: the peak before each chunk of each head, and after the last */
    const REAL *d_sums, *d_norms; /* for gradients: those of the state after; NULL for zeros */
    /* set below */
    int64_t segments;
    REAL *starts; /* states before the segments of each head */
    int64_t not_finite; /* 1 if the sum of a head's results is NaN or infinite; 0 before the call */
} linear_call;

INLINE int64_t chunk_count(int64_t n) { return (n + CHUNK - 1) / CHUNK; }

/* Buffers of a thread. Rows are whole vectors; c is the length of a chunk. */
typedef struct {
    int64_t c, d, e, m, d_row, e_row, m_row, c_row;
    const REAL *x_q, *x_k;              /* c x d: queries and keys as given, copies or where the caller has them, */
    int64_t x_q_row, x_k_row;           /* with these distances between rows */
    REAL *copied_q, *copied_k;
    REAL *q, *k;                        /* c x m: their features */
    const REAL *v;                      /* c x e: values, a copy or where the caller has them, */
    int64_t v_row;                      /* with this distance between rows */
    REAL *copied_v, *faded_v;           /* c x e: the copy, and values as they enter the sums */
    REAL *g, *mixed, *copied_dv;        /* c x e */
    REAL *dv;                           /* c x e: gradients of values, in copied_dv or where the caller wants them, */
    int64_t dv_row;                     /* with this distance between rows */
    REAL *d_features, *dx;              /* c x m, c x d */
    REAL *turned_k, *turned_v, *turned; /* m x c, e x c, e x m */
    REAL *scores, *pairs;               /* c x c */
    REAL exponents[LARGE_CHUNK], query_exponents[LARGE_CHUNK], highest[LARGE_CHUNK];
    REAL row_factors[LARGE_CHUNK], key_factors[LARGE_CHUNK], errors[LARGE_CHUNK], inverse[LARGE_CHUNK];
    directions for_q, for_k;
    ahead soon;
    vec total; /* of all results, in lanes */
    REAL *kept; /* for gradients: what the first pass over a sequence computes for the second; see keep_chunk */
    int64_t kept_from;
    int is_known; /* whether the features of the current chunk, and its pairs, are there already */
} workspace;

INLINE REAL *take(REAL **memory, int64_t count) {
    REAL *taken = *memory;
    *memory += count;
    return taken;
}

/* Sets the length of chunks. */
INLINE void set_chunk(workspace *w, int64_t c) { w->c = c, w->c_row = row_length(c); }

static workspace new_workspace(const linear_call *call, int64_t c, REAL **memory) {
    workspace w = {.c = c, .d = call->d, .e = call->e, .m = call->m};
    w.d_row = row_length(w.d), w.e_row = row_length(w.e), w.m_row = row_length(w.m), w.c_row = row_length(w.c);
    int64_t m = rounded_up(w.m, LANES), e = rounded_up(w.e, LANES);
    w.q = take(memory, w.c * w.m_row), w.k = take(memory, w.c * w.m_row);
    /* only random features need x once they are computed */
    w.copied_q = is_random(&call->of_queries) ? take(memory, w.c * w.d_row) : w.q;
    w.copied_k = is_random(&call->of_keys) ? take(memory, w.c * w.d_row) : w.k;
    w.copied_v = take(memory, w.c * w.e_row), w.faded_v = take(memory, w.c * w.e_row);
    w.g = take(memory, w.c * w.e_row), w.mixed = take(memory, w.c * w.e_row), w.copied_dv = take(memory, w.c * w.e_row);
    w.d_features = take(memory, w.c * w.m_row), w.dx = take(memory, w.c * w.d_row);
    w.turned_k = take(memory, m * w.c_row), w.turned_v = take(memory, e * w.c_row), w.turned = take(memory, e * w.m_row);
    w.scores = take(memory, w.c * w.c_row), w.pairs = take(memory, w.c * w.c_row);
    return w;
}

#define MOST_KEPT ((int64_t)1 << 20) /* numbers that a thread keeps between passes: what is computed again takes no memory */

/* Numbers that are kept of a chunk: features of queries and keys, pairs, exponents. */
INLINE int64_t kept_size(const workspace *w) { return w->c * (2 * w->m_row + w->c_row) + LARGE_CHUNK; }

/* Where the current chunk keeps its features and pairs: chunks from kept_from on have a place of their own until the second
   pass, others share one. Returns where its exponents are kept; NULL if they are not. */
static REAL *keep_chunk(workspace *w, REAL *shared_q, REAL *shared_k, REAL *shared_pairs, int64_t chunk) {
    int is_kept = w->kept && chunk >= w->kept_from;
    REAL *at = is_kept ? w->kept + (chunk - w->kept_from) * kept_size(w) : NULL;
    w->q = is_kept ? at : shared_q;
    w->k = is_kept ? at + w->c * w->m_row : shared_k;
    w->pairs = is_kept ? at + 2 * w->c * w->m_row : shared_pairs;
    return is_kept ? at + w->c * (2 * w->m_row + w->c_row) : NULL;
}

static size_t workspace_bytes(const linear_call *call) {
    REAL *end = NULL;
    workspace w = new_workspace(call, LARGE_CHUNK, &end);
    int64_t numbers = (int64_t)((uintptr_t)end / sizeof(REAL));
    numbers += growing_size(w.m, w.e, w.m) + growing_size(w.e, w.m, w.m);
    numbers += directions_size(&call->of_queries, w.c, w.d) + directions_size(&call->of_keys, w.c, w.d);
    return (size_t)numbers * sizeof(REAL);
}

INLINE size_t type_bytes(int64_t type) { return type == SAME ? sizeof(REAL) : 2; }

INLINE char *row_of(view x, int64_t b, int64_t h, int64_t position, int64_t type) {
    return (char *)x.data + (x.batch * b + x.head * h + x.row * position) * (int64_t)type_bytes(type);
}

static void read_rows(REAL *to, int64_t row, view from, int64_t b, int64_t h, int64_t first, int64_t count, int64_t columns,
                      int64_t type, const uint8_t *keep) {
    for (int64_t i = 0; i < count; i++)
        if (keep && !keep[i])
            memset(to + i * row, 0, (size_t)row * sizeof(REAL));
        else
            read_row(to + i * row, row_of(from, b, h, first + i, type), columns, row, type);
}

static void write_rows(view to, const REAL *from, int64_t row, int64_t b, int64_t h, int64_t first, int64_t count,
                       int64_t columns, int64_t type) {
    for (int64_t i = 0; i < count; i++) write_row(row_of(to, b, h, first + i, type), from + i * row, 1, columns, type);
}

/* Where a task is: a head of a sequence, and a range of positions. */
typedef struct {
    int64_t b, h, from, to;
} place;

/* Where rows of a result are computed: in the caller's memory if they are whole vectors there, else in a buffer, from which
   write_rows copies them. */
INLINE REAL *rows_to_write(view to, place at, int64_t first, int64_t columns, int64_t type, REAL *buffer, int64_t buffer_row,
                           int64_t *row) {
    int direct = type == SAME && columns % LANES == 0;
    *row = direct ? to.row : buffer_row;
    return direct ? (REAL *)row_of(to, at.b, at.h, first, SAME) : buffer;
}

/* Computes the features of rows, which are copied if they cannot be used where they are. Returns the rows, and how far they are
   from each other. */
static const REAL *read_features(const feature_map *map, const directions *packed, const workspace *w, view from, place at,
                                 int64_t first, int64_t count, int64_t type, const uint8_t *keep, REAL *copy, REAL *features,
                                 REAL *exponents, int64_t *row) {
    const REAL *x = copy;
    *row = w->d_row;
    if (type == SAME && w->d % LANES == 0 && (!keep || !is_random(map))) {
        x = (const REAL *)row_of(from, at.b, at.h, first, type);
        *row = from.row;
    } else {
        read_rows(copy, w->d_row, from, at.b, at.h, first, count, w->d, type, keep);
    }
    if (!w->is_known) compute_features(map, packed, x, *row, count, w->d, w->m, features, w->m_row, exponents);
    return x;
}

/* Adds rows of the chunk ahead to those that are needed soon. */
static void look_ahead(workspace *w, view rows, place at, int64_t first, int64_t columns, int64_t type) {
    int64_t bytes = (int64_t)type_bytes(type), i = w->soon.matrices;
    if (!w->soon.count) return;
    w->soon.matrices++;
    w->soon.of[i].data = row_of(rows, at.b, at.h, first, type);
    w->soon.of[i].row = rows.row * bytes, w->soon.of[i].bytes = columns * bytes;
}

/* Looks ahead to the queries of a chunk and to its result, on the way back with its gradient. */
static void look_at_queries(const linear_call *call, workspace *w, place at, int64_t first, int back) {
    look_ahead(w, call->q, at, first, w->d, call->type);
    look_ahead(w, call->mixed, at, first, w->e, call->value_type);
    if (back) look_ahead(w, call->gradient, at, first, w->e, call->value_type);
}

static void look_at_keys(const linear_call *call, workspace *w, place at, int64_t first) {
    look_ahead(w, call->k, at, first, w->d, call->type);
    look_ahead(w, call->v, at, first, w->e, call->value_type);
}

/* Begins to look ahead to the chunk whose first position is `first`, if there is one. */
INLINE ahead *look_from(workspace *w, place at, int64_t first) {
    w->soon.next = w->soon.matrices = 0;
    w->soon.count = first < at.from ? 0 : least(w->c, at.to - first);
    return &w->soon;
}

static void read_queries(const linear_call *call, workspace *w, place at, int64_t first, int64_t count) {
    w->x_q = read_features(&call->of_queries, &w->for_q, w, call->q, at, first, count, call->type, NULL, w->copied_q, w->q,
                           w->query_exponents, &w->x_q_row);
}

/* Reads keys and values; padding has neither features nor values. */
static const uint8_t *read_keys(const linear_call *call, workspace *w, place at, int64_t first, int64_t count) {
    const uint8_t *keep = call->keep ? call->keep + at.b * call->keep_batch + first : NULL;
    const REAL *exponents = call->of_keys.exponents;
    w->x_k = read_features(&call->of_keys, &w->for_k, w, call->k, at, first, count, call->type, keep, w->copied_k, w->k,
                           w->exponents, &w->x_k_row);
    if (!keep && call->value_type == SAME && w->e % LANES == 0 && count % LANES == 0) {
        w->v = (const REAL *)row_of(call->v, at.b, at.h, first, SAME), w->v_row = call->v.row;
    } else {
        read_rows(w->copied_v, w->e_row, call->v, at.b, at.h, first, count, w->e, call->value_type, keep);
        w->v = w->copied_v, w->v_row = w->e_row;
    }
    if (exponents)
        memcpy(w->exponents, exponents + (at.b * call->heads + at.h) * call->keys + first, (size_t)count * sizeof(REAL));
    for (int64_t i = 0; keep && i < count; i++)
        if (!keep[i]) {
            memset(w->k + i * w->m_row, 0, (size_t)w->m_row * sizeof(REAL));
            w->exponents[i] = -INFINITY;
        }
    return keep;
}

INLINE REAL or_zero(REAL exponent) { return exponent == -INFINITY ? 0 : exponent; }

/* The factors of a chunk's parts, powers of 2 at most 1, and the factor of the state before it in the state after it.
   Without exponents all factors are 1 and not used. */
static REAL set_factors(const linear_call *call, workspace *w, int64_t count, REAL before, REAL *after) {
    REAL peak = before;
    *after = before;
    if (!has_exponent(&call->of_keys)) return 1;
    for (int64_t i = 0; i < count; i++) {
        peak = w->exponents[i] > peak ? w->exponents[i] : peak;
        w->highest[i] = or_zero(peak);
        w->row_factors[i] = exp2_of(before - w->highest[i]);
    }
    *after = peak;
    for (int64_t j = 0; j < count; j++) w->key_factors[j] = exp2_of(w->exponents[j] - or_zero(peak));
    return exp2_of(before - or_zero(peak));
}

/* Numbers of the lanes. */
INLINE vec lane_numbers(void) {
    vec numbers;
    for (int64_t lane = 0; lane < LANES; lane++) numbers[lane] = (REAL)lane;
    return numbers;
}

/* Sets numbers of a row from column `begin` to `end`, a whole vector, to x. */
INLINE void set_from(REAL *row, int64_t begin, int64_t end, REAL x) {
    int64_t j = begin / LANES * LANES;
    if (begin >= end) return;
    store(row + j, select_lanes((ivec)(lane_numbers() < splat((REAL)(begin - j))), load(row + j), splat(x)));
    for (j += LANES; j < end; j += LANES) store(row + j, splat(x));
}

/* Hides the future in a triangle of scores, and applies the factor of each key for each row. */
static void see(const linear_call *call, const workspace *w, REAL *scores, int64_t count) {
    int fading = has_exponent(&call->of_keys);
    for (int64_t i = 0; i < count; i++) {
        REAL *row = scores + i * w->c_row;
        int64_t end = least(rounded_up(i + TILE_ROWS, LANES), w->c_row);
        set_from(row, i + 1, end, 0);
        if (!fading) continue;
        for (int64_t j = 0; j <= i; j += LANES) {
            vec factor = exp2_lanes(load(w->exponents + j) - splat(w->highest[i]));
            store(row + j, load(row + j) * factor);
        }
        set_from(row, i + 1, end, 0); /* the factor of a later key may be infinite */
    }
}

/* The values as they enter the sums, and the distance between their rows. */
static const REAL *faded_values(const linear_call *call, workspace *w, int64_t count, int64_t *row) {
    *row = w->v_row;
    if (!has_exponent(&call->of_keys)) return w->v;
    *row = w->e_row;
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = 0; j < w->e; j += LANES)
            store(w->faded_v + i * w->e_row + j, load(w->v + i * w->v_row + j) * w->key_factors[i]);
    return w->faded_v;
}

INLINE REAL reciprocal(REAL total) { return total < NOTHING && total > -NOTHING ? 0 : 1 / total; }

/* G = inverse * gradient and e = -G . mixed, the gradients of numerators and denominators. */
static void read_gradients(const linear_call *call, workspace *w, place at, int64_t first, int64_t count) {
    const REAL *inverse = call->inverse + (at.b * call->heads + at.h) * call->queries + first;
    read_rows(w->g, w->e_row, call->gradient, at.b, at.h, first, count, w->e, call->value_type, NULL);
    read_rows(w->mixed, w->e_row, call->mixed, at.b, at.h, first, count, w->e, call->value_type, NULL);
    for (int64_t i = 0; i < count; i++) {
        vec total = splat(0);
        for (int64_t j = 0; j < w->e; j += LANES) {
            vec g = load(w->g + i * w->e_row + j) * inverse[i];
            store(w->g + i * w->e_row + j, g);
            total += g * load(w->mixed + i * w->e_row + j);
        }
        w->errors[i] = -lanes_sum(total);
    }
}
