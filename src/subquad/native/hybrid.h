/* Exact attention to near keys and linear attention to far keys, with one normaliser:

     out_i = sum over j of w_ij v_j / sum over j of w_ij
     w_ij = exp(q_i . k_j / sqrt d) for near j, g phi(q_i) . phi(k_j) for others

   Positions are cut into blocks. Near keys are those of the own block and of its neighbours; in the causal form those of the
   block before and of the own block up to i. Far keys come as sums S of phi(k_j) v_j^T and z of phi(k_j), relative to
   2^peak. Weights of a row are relative to 2^top, with top the base-2 logarithm of about the largest weight in the row.

   The causal form walks through the blocks with S and z. The bidirectional form keeps sums over groups of blocks (around.h).
   Only the first `total` positions of a sequence are real; the others get zeros. */

#define HIGHEST 100 /* largest x of the far keys' factor 2^x: sums that need a larger one have underflowed */
#define HIGHEST_OF_NONE 60 /* largest x without far keys: only the gradient is multiplied, and must not overflow */

typedef struct {
    int64_t batch, heads, length, d, e, m, block;
    int64_t type;       /* of q and k */
    int64_t value_type; /* of v, the result and its gradient; gradients of q, k and v are REAL */
    int64_t threads;
    int64_t first, last; /* blocks that this call takes */
    feature_map of_queries, of_keys;
    view q, k, v, mixed, gradient, dq, dk, dv;
    view query_features, key_features, dq_features, dk_features; /* for given features, of some positions: */
    int64_t query_start, key_start;                              /* the first of them */
    int64_t query_count, key_count;                              /* and how many */
    const int64_t *total;                                        /* real positions of each sequence; NULL for all */
    const REAL *log_gain;                                        /* of each head */
    REAL *inverse;                   /* 1 / denominator of each position; NULL if nobody needs it */
    const REAL *sums, *norms, *peak; /* state before, or for gradients that of the state after */
    REAL *sums_after, *norms_after, *peak_after;
    REAL *far_factors, *errors;      /* for gradients: of each position */
    REAL *peaks;                     /* for gradients: of the sums that each block sees, and of two more */
    REAL *gain_slopes;               /* gradient of log_gain for each head of each sequence, added to */
    REAL *query_slopes, *key_slopes; /* gradient of learned directions for each head of each sequence, added to */
    int64_t group;                   /* blocks in a group */
    REAL *groups, *group_slopes;     /* sums over groups */
    void *last_keys, *last_values;   /* of the last block and the one before, in as many rows, then zeros; NULL if not needed */
    const REAL *d_sums, *d_norms;    /* for gradients: those of the state after; NULL for zeros */
    int64_t is_first;                /* 1 if dk and dv hold nothing yet, 0 to add to them */
    int64_t not_finite;              /* 1 if the sum of a head's results is NaN or infinite; 0 before the call */
    /* set below */
    int64_t kept, kept_at; /* positions, the last ones, whose features are kept for the second pass; where in a thread's memory */
    int64_t is_second;     /* whether this is the second pass */
} hybrid_call;

/* Blocks of keys and values that are near: a block is in slot `block % 3`. Rows of turned ones are filled up with zeros. */
typedef struct {
    int64_t block, count;
    const REAL *keys, *values;             /* c x d and c x e: copies, or where the caller has them, */
    int64_t key_row, value_row;            /* with these distances between rows */
    REAL *key_copy, *value_copy;
    REAL *turned_keys, *turned_values;     /* d x c, e x c */
    REAL *dk, *dv;                                     /* gradients, so far, through near weights */
} slot_of_keys;

/* Buffers of a thread. Rows are whole vectors. Rows of queries come in chunks of at most CHUNK. */
typedef struct {
    int64_t b, h, c, c_columns, c_row, d, e, m, d_row, e_row, m_row, s_row, total;
    slot_of_keys slots[3];
    int64_t parts;       /* near blocks of the current block, */
    int64_t part_of[3];  /* their slots, */
    int64_t own;         /* and which of them is the block itself */
    REAL *copy;          /* CHUNK x d: queries or keys */
    const REAL *x;       /* queries: a copy, or where the caller has them, */
    int64_t x_row;       /* with this distance between rows */
    int direct;          /* whether the caller's rows can be used where they are */
    REAL *q, *k;         /* CHUNK x m: features, in these buffers or where they are kept: */
    REAL *shared_q, *shared_k;
    REAL *kept_q, *kept_k, *kept_exponents; /* of positions from kept_from on; NULL if none are kept */
    int64_t kept_from;
    REAL *v, *mixed, *g; /* CHUNK x e: values as they enter the sums, results, gradients */
    REAL *d_features, *dx, *dx_far;
    REAL *scores, *pairs; /* CHUNK x near keys */
    REAL *turned;         /* e x m */
    REAL exponents[CHUNK], query_exponents[CHUNK], key_factors[CHUNK];
    REAL far_factors[CHUNK], inverse[CHUNK], is_held[CHUNK], errors[CHUNK];
    directions for_q, for_k;
    ahead soon;
    vec all; /* sum of all results, in lanes */
} hybrid_space;

/* Sums over far keys as a block sees them: m x e, or transposed. */
typedef struct {
    const REAL *sums, *norms;
    int64_t row;
    REAL peak;
    int empty;
} far_keys;

static hybrid_space new_hybrid_space(const hybrid_call *call, int back, REAL **memory) {
    hybrid_space w = {.c = call->block, .d = call->d, .e = call->e, .m = call->m};
    w.c_columns = rounded_up(w.c, LANES), w.c_row = row_length(w.c), w.s_row = row_length(3 * w.c_columns);
    w.d_row = row_length(w.d), w.e_row = row_length(w.e), w.m_row = row_length(w.m);
    int64_t d = rounded_up(w.d, LANES), e = rounded_up(w.e, LANES);
    for (int i = 0; i < 3; i++) {
        slot_of_keys *slot = &w.slots[i];
        *slot = (slot_of_keys){.block = -1};
        slot->key_copy = take(memory, w.c_columns * w.d_row), slot->value_copy = take(memory, w.c_columns * w.e_row);
        slot->turned_keys = take(memory, d * w.c_row);
        if (!back) continue;
        slot->turned_values = take(memory, e * w.c_row);
        slot->dk = take(memory, w.c_columns * w.d_row), slot->dv = take(memory, w.c_columns * w.e_row);
    }
    w.copy = take(memory, CHUNK * w.d_row), w.dx = take(memory, CHUNK * w.d_row), w.dx_far = take(memory, CHUNK * w.d_row);
    w.q = w.shared_q = take(memory, CHUNK * w.m_row), w.k = w.shared_k = take(memory, CHUNK * w.m_row), w.d_features = take(memory, CHUNK * w.m_row);
    w.v = take(memory, CHUNK * w.e_row), w.mixed = take(memory, CHUNK * w.e_row), w.g = take(memory, CHUNK * w.e_row);
    w.scores = take(memory, CHUNK * w.s_row), w.pairs = take(memory, CHUNK * w.s_row);
    w.turned = take(memory, e * row_length(rounded_up(w.m, LANES)));
    return w;
}

/* Numbers of memory for the buffers and for the directions of one head. */
static int64_t hybrid_numbers(const hybrid_call *call, int back) {
    REAL *end = NULL;
    new_hybrid_space(call, back, &end);
    return (int64_t)((uintptr_t)end / sizeof(REAL)) + directions_size(&call->of_queries, CHUNK, call->d) +
           directions_size(&call->of_keys, CHUNK, call->d);
}

static hybrid_space prepare_hybrid(const hybrid_call *call, int64_t index, int back, REAL **memory) {
    hybrid_space w = new_hybrid_space(call, back, memory);
    w.b = index / call->heads, w.h = index % call->heads;
    w.total = call->total ? call->total[w.b] : call->length;
    w.direct = call->type == SAME && call->value_type == SAME && w.d % LANES == 0 && w.e % LANES == 0 &&
               !has_exponent(&call->of_queries) && !has_exponent(&call->of_keys);
    w.for_q = pack_directions(&call->of_queries, w.h, w.d, CHUNK, back, memory);
    int same = call->of_queries.omega == call->of_keys.omega && call->of_queries.kind == call->of_keys.kind;
    w.for_k = same ? w.for_q : pack_directions(&call->of_keys, w.h, w.d, CHUNK, back, memory);
    return w;
}

/* Numbers that are kept of a position: features of its query and key, and the exponent of the key. */
INLINE int64_t kept_numbers(const hybrid_call *call) { return 2 * row_length(call->m) + 1; }

/* Finds the memory for features that the first pass keeps for the second. */
static void keep_features(const hybrid_call *call, hybrid_space *w, REAL *memory) {
    if (!call->kept) return;
    w->kept_from = call->length - call->kept;
    w->kept_q = memory + call->kept_at;
    w->kept_k = w->kept_q + call->kept * w->m_row, w->kept_exponents = w->kept_k + call->kept * w->m_row;
}

INLINE int64_t head_of(const hybrid_call *call, const hybrid_space *w) { return w->b * call->heads + w->h; }

/* Number of real positions in a block. */
INLINE int64_t count_in(const hybrid_space *w, int64_t block) {
    int64_t left = w->total - block * w->c;
    return left < 0 ? 0 : least(left, w->c);
}

/* ---- features ---------------------------------------------------------------------------------------------------------- */

/* Features of `count` queries, and the queries themselves, in w->q and w->x. */
static void hybrid_queries(const hybrid_call *call, hybrid_space *w, int64_t first, int64_t count) {
    const feature_map *map = &call->of_queries;
    int is_kept = w->kept_q && first >= w->kept_from;
    w->q = is_kept ? w->kept_q + (first - w->kept_from) * w->m_row : w->shared_q;
    if (is_kept && call->is_second) return; /* the second pass needs nothing else of queries */
    w->x = w->direct ? (const REAL *)row_of(call->q, w->b, w->h, first, SAME) : w->copy;
    w->x_row = w->direct ? call->q.row : w->d_row;
    if (!w->direct) read_rows(w->copy, w->d_row, call->q, w->b, w->h, first, count, w->d, call->type, NULL);
    memset(w->query_exponents, 0, sizeof w->query_exponents);
    if (map->kind != GIVEN) {
        compute_features(map, &w->for_q, w->x, w->x_row, count, w->d, w->m, w->q, w->m_row, w->query_exponents);
        return;
    }
    int64_t at = first - call->query_start;
    read_rows(w->q, w->m_row, call->query_features, w->b, w->h, at, count, w->m, SAME, NULL);
    if (map->exponents)
        memcpy(w->query_exponents, map->exponents + head_of(call, w) * call->query_count + at, (size_t)count * sizeof(REAL));
}

/* Features of `count` keys, which are in `keys`, in w->k. */
static void hybrid_keys(const hybrid_call *call, hybrid_space *w, const REAL *keys, int64_t row, int64_t first, int64_t count) {
    const feature_map *map = &call->of_keys;
    int64_t place = first - w->kept_from;
    int is_kept = w->kept_k && place >= 0;
    w->k = is_kept ? w->kept_k + place * w->m_row : w->shared_k;
    if (is_kept && call->is_second) {
        memcpy(w->exponents, w->kept_exponents + place, (size_t)count * sizeof(REAL));
        return;
    }
    if (map->kind != GIVEN) {
        compute_features(map, &w->for_k, keys, row, count, w->d, w->m, w->k, w->m_row, w->exponents);
        if (is_kept) memcpy(w->kept_exponents + place, w->exponents, (size_t)count * sizeof(REAL));
        return;
    }
    int64_t at = first - call->key_start;
    read_rows(w->k, w->m_row, call->key_features, w->b, w->h, at, count, w->m, SAME, NULL);
    if (map->exponents)
        memcpy(w->exponents, map->exponents + head_of(call, w) * call->key_count + at, (size_t)count * sizeof(REAL));
}

/* Values as they enter sums that are relative to 2^peak, and the factors of their keys; returns the factors, or NULL for 1. */
static const REAL *fade_values(const hybrid_call *call, hybrid_space *w, const REAL *values, int64_t count, REAL peak,
                               const REAL **faded) {
    *faded = values;
    if (!has_exponent(&call->of_keys)) return NULL;
    for (int64_t j = 0; j < count; j++) w->key_factors[j] = exp2_of(w->exponents[j] - or_zero(peak));
    memcpy(w->v, values, (size_t)(count * w->e_row) * sizeof(REAL));
    scale_rows(w->v, w->e_row, w->e, count, w->key_factors);
    *faded = w->v;
    return w->key_factors;
}

INLINE REAL highest_of(const REAL *exponents, int64_t count, REAL most) {
    for (int64_t j = 0; j < count; j++) most = exponents[j] > most ? exponents[j] : most;
    return most;
}
