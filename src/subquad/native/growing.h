/* Sums to which chunks of a sequence are added: the state of linear attention, and its gradient. */

#define LONG 16 /* chunks whose sums are added up before they are added to the sums of all */

/* A matrix and a vector to which chunks are added. A few chunks are summed apart and then added to the old ones, which keeps
   rounding errors small for long sequences. */
typedef struct {
    int64_t rows, columns, row, count; /* count: numbers in the vector */
    int64_t waiting;                   /* chunks that are summed apart */
    int live;                          /* whether all = old + apart is kept after every chunk, or only at the end */
    int empty;                         /* whether all is zero */
    int is_new;                        /* whether old is zero, and not yet written */
    REAL *all, *old, *apart, *spare; /* all is old where nothing is summed apart, and spare is then where all comes next */
    REAL *norms, *old_norms, *norms_apart;
    REAL peak;
    ahead *soon; /* what to ask for while a chunk is added, or NULL */
} growing;

INLINE int64_t growing_size(int64_t rows, int64_t columns, int64_t count) {
    return 3 * (rounded_up(rows, LANES) * row_length(columns) + rounded_up(count, LANES));
}

static growing new_growing(int64_t rows, int64_t columns, int64_t count, REAL **memory) {
    growing sums = {.rows = rows, .columns = columns, .row = row_length(columns), .count = count, .live = 1, .empty = 1};
    REAL **matrices[] = {&sums.all, &sums.old, &sums.apart}, **vectors[] = {&sums.norms, &sums.old_norms, &sums.norms_apart};
    for (int i = 0; i < 3; i++) {
        *matrices[i] = *memory;
        *memory += rounded_up(rows, LANES) * sums.row;
        *vectors[i] = *memory;
        *memory += rounded_up(count, LANES);
    }
    return sums;
}

/* A state as the caller holds it: m x e numbers, m numbers and one; NULL for zeros. */
typedef struct {
    const REAL *sums, *norms, *peak;
} held_state;

INLINE void add_into(REAL *to, const REAL *x, const REAL *y, int64_t count) {
    for (int64_t i = 0; i < count; i += LANES) store(to + i, load(x + i) + load(y + i));
}

/* Makes the chunks that are summed apart old ones. */
static void settle(growing *sums) {
    int64_t numbers = sums->rows * sums->row, count = rounded_up(sums->count, LANES);
    if (sums->live) {
        sums->spare = sums->old, sums->old = sums->all;
        memcpy(sums->old_norms, sums->norms, (size_t)count * sizeof(REAL));
    } else {
        if (sums->is_new) {
            REAL *unused = sums->old;
            sums->old = sums->apart, sums->apart = unused;
        } else {
            add_into(sums->old, sums->old, sums->apart, numbers);
        }
        add_into(sums->old_norms, sums->old_norms, sums->norms_apart, count);
    }
    sums->waiting = 0;
    sums->is_new = 0;
}

/* Starts from a state, with the matrix transposed if it has e rows. */
static void begin(growing *sums, held_state from, int64_t m, int64_t e, int turned, REAL empty_peak) {
    int whole = m % LANES == 0 && e % LANES == 0 && sums->row == sums->columns;
    int64_t numbers = sums->rows * sums->row, filled = rounded_up(sums->rows, LANES) * sums->row;
    memset(sums->old + numbers, 0, (size_t)(filled - numbers) * sizeof(REAL)); /* old may become all, whose whole vectors are read */
    sums->is_new = !from.sums && sums->rows % LANES == 0 && sums->row == sums->columns;
    if ((!from.sums || !whole) && !sums->is_new) memset(sums->all, 0, (size_t)filled * sizeof(REAL));
    memset(sums->norms, 0, (size_t)rounded_up(sums->count, LANES) * sizeof(REAL));
    if (from.sums && turned && whole)
        transpose(m, e, from.sums, e, sums->all, sums->row);
    else if (from.sums && turned)
        for (int64_t i = 0; i < m; i++)
            for (int64_t j = 0; j < e; j++) sums->all[j * sums->row + i] = from.sums[i * e + j];
    else if (from.sums)
        for (int64_t i = 0; i < m; i++) memcpy(sums->all + i * sums->row, from.sums + i * e, (size_t)e * sizeof(REAL));
    if (from.norms) memcpy(sums->norms, from.norms, (size_t)m * sizeof(REAL));
    sums->peak = from.peak ? *from.peak : empty_peak;
    sums->empty = !from.sums;
    if (sums->is_new)
        memset(sums->old_norms, 0, (size_t)rounded_up(sums->count, LANES) * sizeof(REAL));
    else
        settle(sums);
}

/* Lets new sums grow in the memory that `finish` writes them to, if it has whole vectors, so that they need not be copied. */
INLINE void grow_in_place(growing *sums, REAL *matrix) {
    if (!matrix || !sums->is_new) return;
    if (sums->live)
        sums->all = matrix;
    else
        sums->apart = matrix;
}

/* Makes the sums of all chunks available, of sums that were not kept up to date after every chunk. Nothing is added later. */
static void conclude(growing *sums) {
    if (sums->empty && sums->is_new)
        memset(sums->live ? sums->all : sums->old, 0, (size_t)(sums->rows * sums->row) * sizeof(REAL));
    if (sums->live) return;
    if (sums->waiting) settle(sums);
    sums->all = sums->old, sums->norms = sums->old_norms, sums->live = 1;
}

/* Writes a state of m rows for the caller. */
static void finish(growing *sums, REAL *matrix_to, REAL *norms_to, REAL *peak_to) {
    conclude(sums);
    const REAL *matrix_from = sums->all, *norms_from = sums->norms;
    if (matrix_to && matrix_to != matrix_from)
        for (int64_t i = 0; i < sums->rows; i++)
            memcpy(matrix_to + i * sums->columns, matrix_from + i * sums->row, (size_t)sums->columns * sizeof(REAL));
    if (norms_to) memcpy(norms_to, norms_from, (size_t)sums->count * sizeof(REAL));
    if (peak_to) *peak_to = sums->peak;
}

INLINE void scale(REAL *x, int64_t count, REAL factor) {
    for (int64_t i = 0; i < count; i += LANES) store(x + i, load(x + i) * factor);
}

INLINE void scale_rows(REAL *x, int64_t row, int64_t columns, int64_t count, const REAL *factors) {
    for (int64_t i = 0; i < count; i++) scale(x + i * row, rounded_up(columns, LANES), factors[i]);
}

/* Where chunks are summed apart: where the old sums are zero, sums of all that are kept after every chunk are the same. */
INLINE REAL *sums_apart(const growing *sums) { return sums->is_new && sums->live ? sums->all : sums->apart; }
INLINE REAL *norms_apart(const growing *sums) { return sums->is_new && sums->live ? sums->norms : sums->norms_apart; }

static void fade(growing *sums, REAL factor) {
    if (factor == 1 || sums->empty) return;
    if (!sums->is_new) scale(sums->old, sums->rows * sums->row, factor);
    scale(sums->old_norms, rounded_up(sums->count, LANES), factor);
    if (!sums->waiting) return;
    scale(sums_apart(sums), sums->rows * sums->row, factor);
    scale(norms_apart(sums), rounded_up(sums->count, LANES), factor);
}

/* The sum of `count` rows times `factors` (1 if NULL), by four sums, whose rounding errors are smaller than those of one. */
INLINE vec sum_rows(const REAL *rows, int64_t row, int64_t count, const REAL *factors) {
    vec sums[4] = {splat(0), splat(0), splat(0), splat(0)};
    int64_t i = 0;
    for (; i + 4 <= count; i += 4)
#pragma GCC unroll 4
        for (int part = 0; part < 4; part++) {
            vec x = load(rows + (i + part) * row);
            sums[part] += factors ? x * factors[i + part] : x;
        }
    for (; i < count; i++) sums[0] += factors ? load(rows + i * row) * factors[i] : load(rows + i * row);
    return (sums[0] + sums[1]) + (sums[2] + sums[3]);
}

/* Adds A B to the matrix, and to the vector the rows of `rows` times `factors` (1 if NULL). */
static void grow(growing *sums, int64_t depth, matrix a, const REAL *b, int64_t b_row, const REAL *rows, int64_t row,
                 const REAL *factors) {
    int add = sums->waiting > 0;
    if (sums->all == sums->old) sums->all = sums->spare;
    int both = sums->live && !sums->is_new; /* whether sums of all are another matrix */
    product_to to = {sums_apart(sums), sums->row, add, both ? sums->old : NULL, both ? sums->all : NULL, sums->soon};
    multiply_to(sums->rows, rounded_up(sums->columns, LANES), depth, a, b, b_row, TILE_COLUMNS, to);
    REAL *norms = norms_apart(sums);
    for (int64_t j = 0; j < sums->count; j += LANES) {
        vec total = sum_rows(rows + j, row, depth, factors);
        if (add) total += load(norms + j);
        store(norms + j, total);
        if (both) store(sums->norms + j, load(sums->old_norms + j) + total);
    }
    sums->empty = 0;
    if (++sums->waiting == LONG) settle(sums);
}
