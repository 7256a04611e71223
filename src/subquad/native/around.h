/* Sums over all blocks except a block and its neighbours, for each block of a sequence.

   Blocks come in groups. For each group, `before` sums all blocks up to two before its first and `after` those from two after
   its last on. Within a group, sums of single blocks are added to these. Nothing is subtracted, so that nothing cancels.

   A pile is a matrix of m x e and a vector of m, both relative to 2^peak. A source writes the pile of one block. */

typedef struct {
    int64_t m, e_row, m_row, size;
} pile_shape;

INLINE pile_shape shape_of_piles(int64_t m, int64_t e) {
    pile_shape shape = {m, row_length(e), row_length(m), 0};
    shape.size = rounded_up(m, LANES) * shape.e_row + shape.m_row + LANES;
    return shape;
}
INLINE REAL *norms_of(const pile_shape *shape, REAL *pile) { return pile + rounded_up(shape->m, LANES) * shape->e_row; }
INLINE REAL *peak_of(const pile_shape *shape, REAL *pile) { return pile + shape->size - LANES; }

static void clear_pile(const pile_shape *shape, REAL *pile, REAL peak) {
    memset(pile, 0, (size_t)shape->size * sizeof(REAL));
    *peak_of(shape, pile) = peak;
}

INLINE void copy_pile(const pile_shape *shape, REAL *to, const REAL *from) {
    memcpy(to, from, (size_t)shape->size * sizeof(REAL));
}

/* to = x + y; `to` may be one of them. */
static void add_piles(const pile_shape *shape, REAL *to, REAL *x, REAL *y) {
    REAL of_x = *peak_of(shape, x), of_y = *peak_of(shape, y), peak = of_x > of_y ? of_x : of_y;
    REAL x_factor = exp2_of(of_x - or_zero(peak)), y_factor = exp2_of(of_y - or_zero(peak));
    int64_t numbers = shape->size - LANES;
    if (x_factor == 1 && y_factor == 1)
        add_into(to, x, y, numbers);
    else
        for (int64_t i = 0; i < numbers; i += LANES) store(to + i, load(x + i) * x_factor + load(y + i) * y_factor);
    *peak_of(shape, to) = peak;
}

/* Writes the pile of a block. */
typedef void (*pile_source)(const hybrid_call *call, hybrid_space *w, int64_t block, const pile_shape *shape, REAL *pile,
                            REAL *space);

typedef struct {
    pile_shape shape;
    pile_source source;
    REAL *groups;                   /* of this head: before and after each group */
    REAL *single, *after;           /* of the blocks of a group and their neighbours; sums after each block */
    REAL *before, *far, *part;      /* sums before the current block, and around it; space for sources */
    int64_t group, blocks;          /* blocks in a group, and real blocks */
    REAL lowest;                    /* peak of an empty pile */
} around;

INLINE int64_t around_numbers(const hybrid_call *call) {
    pile_shape shape = shape_of_piles(call->m, call->e);
    return shape.size * (2 * call->group + 5);
}

static around new_around(const hybrid_call *call, const hybrid_space *w, REAL *groups, pile_source source, REAL **memory) {
    around sums = {.shape = shape_of_piles(call->m, call->e), .source = source, .group = call->group};
    int64_t size = sums.shape.size, blocks = (call->length + w->c - 1) / w->c, count = (blocks + call->group - 1) / call->group;
    sums.groups = groups + head_of(call, w) * 2 * count * size;
    sums.blocks = (w->total + w->c - 1) / w->c;
    sums.lowest = has_exponent(&call->of_keys) ? -INFINITY : 0;
    sums.single = take(memory, (call->group + 2) * size), sums.after = take(memory, call->group * size);
    sums.before = take(memory, size), sums.far = take(memory, size), sums.part = take(memory, size);
    return sums;
}

INLINE REAL *before_group(const around *sums, int64_t group) { return sums->groups + 2 * group * sums->shape.size; }
INLINE REAL *after_group(const around *sums, int64_t group) { return before_group(sums, group) + sums->shape.size; }
INLINE int64_t group_count(const hybrid_call *call) {
    int64_t blocks = (call->length + call->block - 1) / call->block;
    return (blocks + call->group - 1) / call->group;
}

/* Adds the blocks of this call to the first group that is after them, and to the last that is before them. */
static void add_to_groups(const hybrid_call *call, hybrid_space *w, around *sums) {
    int64_t count = group_count(call), end = least(call->last, sums->blocks);
    if (call->first == 0)
        for (int64_t i = 0; i < 2 * count; i++) clear_pile(&sums->shape, sums->groups + i * sums->shape.size, sums->lowest);
    for (int64_t block = call->first; block < end; block++) {
        int64_t later = (block + 2 + sums->group - 1) / sums->group, earlier = (block + sums->group - 1) / sums->group - 2;
        if (later >= count && earlier < 0) continue;
        sums->source(call, w, block, &sums->shape, sums->far, sums->part);
        if (later < count) add_piles(&sums->shape, before_group(sums, later), before_group(sums, later), sums->far);
        if (earlier >= 0) add_piles(&sums->shape, after_group(sums, earlier), after_group(sums, earlier), sums->far);
    }
}

/* Adds up the groups, once all blocks were added to them. */
static void join_groups(const hybrid_call *call, around *sums) {
    int64_t count = group_count(call);
    for (int64_t i = 1; i < count; i++)
        add_piles(&sums->shape, before_group(sums, i), before_group(sums, i), before_group(sums, i - 1));
    for (int64_t i = count - 2; i >= 0; i--)
        add_piles(&sums->shape, after_group(sums, i), after_group(sums, i), after_group(sums, i + 1));
}

/* Starts a group: sums of its single blocks, and the sums after each. */
static void start_group(const hybrid_call *call, hybrid_space *w, around *sums, int64_t group) {
    int64_t first = group * sums->group, end = least(first + sums->group, sums->blocks), size = sums->shape.size;
    for (int64_t block = first > 0 ? first - 1 : 0; block <= end && block < sums->blocks; block++)
        sums->source(call, w, block, &sums->shape, sums->single + (block - first + 1) * size, sums->part);
    for (int64_t block = end - 1; block >= first; block--) {
        REAL *to = sums->after + (block - first) * size;
        int64_t added = block + 2;
        copy_pile(&sums->shape, to, block == end - 1 ? after_group(sums, group) : to + size);
        if (added <= end && added < sums->blocks) add_piles(&sums->shape, to, to, sums->single + (added - first + 1) * size);
    }
    copy_pile(&sums->shape, sums->before, before_group(sums, group));
}

/* The sums around a block. Blocks of a group are asked for in order. */
static far_keys sums_around(around *sums, int64_t block) {
    int64_t first = block / sums->group * sums->group, size = sums->shape.size;
    int empty = block < 2 && block + 2 >= sums->blocks;
    if (block - 2 >= first - 1 && block >= 2)
        add_piles(&sums->shape, sums->before, sums->before, sums->single + (block - 2 - first + 1) * size);
    if (!empty) add_piles(&sums->shape, sums->far, sums->before, sums->after + (block - first) * size);
    REAL *norms = norms_of(&sums->shape, sums->far);
    return (far_keys){sums->far, norms, sums->shape.e_row, empty ? sums->lowest : *peak_of(&sums->shape, sums->far), empty};
}

/* ---- the bidirectional form --------------------------------------------------------------------------------------------- */

/* Writes to a pile the sum over i of factor_i a_i b_i^T, with b_i scaled already and factor_i for the vector. */
static void write_part(const pile_shape *shape, REAL *pile, REAL peak, int64_t columns, int64_t count, const REAL *a,
                       const REAL *b, const REAL *factors) {
    REAL *norms = norms_of(shape, pile);
    multiply(shape->m, rounded_up(columns, LANES), count, transposed(a, shape->m_row), b, shape->e_row, pile, shape->e_row, 0);
    for (int64_t j = 0; j < shape->m_row; j += LANES) {
        vec total = splat(0);
        for (int64_t i = 0; i < count && j < shape->m; i++) {
            vec part = load(a + i * shape->m_row + j);
            total += factors ? part * factors[i] : part;
        }
        store(norms + j, total);
    }
    *peak_of(shape, pile) = peak;
}

/* Writes a part as the pile, or adds it in `space` if there is one already. */
static void put_part(const pile_shape *shape, REAL *pile, REAL *space, REAL peak, int64_t columns, int64_t count, const REAL *a,
                     const REAL *b, const REAL *factors, int add) {
    if (add) clear_pile(shape, space, peak);
    write_part(shape, add ? space : pile, peak, columns, count, a, b, factors);
    if (add) add_piles(shape, pile, pile, space);
}

static void pile_of_keys(const hybrid_call *call, hybrid_space *w, int64_t block, const pile_shape *shape, REAL *pile,
                         REAL *space) {
    int64_t whole = count_in(w, block);
    clear_pile(shape, pile, lowest_peak(call));
    for (int64_t j = 0; j < whole; j += CHUNK) {
        int64_t count = least(CHUNK, whole - j), first = block * w->c + j;
        const REAL *values;
        read_rows(w->copy, w->d_row, call->k, w->b, w->h, first, count, w->d, call->type, NULL);
        read_rows(w->mixed, w->e_row, call->v, w->b, w->h, first, count, w->e, call->value_type, NULL);
        hybrid_keys(call, w, w->copy, w->d_row, first, count);
        REAL peak = has_exponent(&call->of_keys) ? highest_of(w->exponents, count, -INFINITY) : 0;
        const REAL *factors = fade_values(call, w, w->mixed, count, peak, &values);
        put_part(shape, pile, space, peak, w->e, count, w->k, values, factors, j > 0);
    }
}

static int64_t hybrid_around_numbers(const hybrid_call *call, int back) {
    return hybrid_numbers(call, back) + around_numbers(call);
}

static void hybrid_groups_task(void *context, void *memory, int64_t index) {
    const hybrid_call *call = context;
    REAL *space = memory;
    hybrid_space w = prepare_hybrid(call, index, 0, &space);
    around sums = new_around(call, &w, call->groups, pile_of_keys, &space);
    add_to_groups(call, &w, &sums);
    if (call->last * w.c >= call->length) join_groups(call, &sums);
}

static void hybrid_both_task(void *context, void *memory, int64_t index) {
    const hybrid_call *call = context;
    REAL *space = memory;
    hybrid_space w = prepare_hybrid(call, index, 0, &space);
    around sums = new_around(call, &w, call->groups, pile_of_keys, &space);
    for (int64_t block = call->first; block < call->last; block++) {
        far_keys none = {NULL, NULL, 0, 0, 1};
        if (block < sums.blocks && block % sums.group == 0) start_group(call, &w, &sums, block / sums.group);
        far_keys far = block < sums.blocks ? sums_around(&sums, block) : none;
        mix_block(call, &w, block, &far, 0);
    }
}
