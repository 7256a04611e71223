/* Feature maps phi: from a chunk of queries or keys to features, and gradients back.

   phi(x) = features * 2^exponent. Maps without exponents have exponent 0.

   LEARNED is [softmax(y W + b), softmax(-y W - b)] with y = x d^(-1/4) and W and b of each head. */

enum { GIVEN = 0, ELU = 1, RELU = 2, POSITIVE = 3, HYPERBOLIC = 4, LEARNED = 5 };

typedef struct {
    void *data;
    int64_t batch, head, row; /* distance in numbers from one sequence, head and position to the next */
} view;

typedef struct {
    int64_t kind;
    int64_t directions;        /* columns of omega */
    const REAL *omega;         /* d x directions; one for each head if omega_head is not 0 */
    int64_t omega_head;        /* numbers from the directions of one head to those of the next */
    const REAL *exponents;     /* for given features: one number for each position, contiguous; NULL for none;
                                  for learned features: b instead, `directions` numbers for each head */
} feature_map;

INLINE int has_exponent(const feature_map *map) {
    return map->kind == POSITIVE || map->kind == HYPERBOLIC || (map->kind == GIVEN && map->exponents);
}
INLINE int is_random(const feature_map *map) { return map->kind >= POSITIVE; } /* whether it has directions, or learned ones */

/* Directions of one head for products: packed and scaled by log2(e) d^(-1/4), and transposed for gradients. For a few rows
   they are used as they are, and the products are scaled. */
typedef struct {
    const REAL *forward;
    int64_t forward_row, panel;
    REAL scale; /* what products have to be multiplied by */
    REAL *back, *logits;
    const REAL *bias; /* of learned features, not scaled */
    int64_t logits_row;
} directions;

INLINE int64_t directions_size(const feature_map *map, int64_t chunk, int64_t d) {
    if (!is_random(map)) return 0;
    return packed_size(d, map->directions) + packed_size(map->directions, d) + chunk * row_length(map->directions);
}

INLINE double direction_scale(int64_t d) { return 1 / sqrt(sqrt((double)d)); } /* in double, to be rounded once */
#define LOG2_E 1.4426950408889634

static directions pack_directions(const feature_map *map, int64_t head, int64_t d, int64_t chunk, int back, REAL **memory) {
    directions packed = {.forward = *memory, .forward_row = TILE_COLUMNS, .panel = d * TILE_COLUMNS, .scale = 1};
    if (!is_random(map)) return packed;
    const REAL *omega = map->omega + head * map->omega_head;
    packed.bias = map->kind == LEARNED ? map->exponents + head * map->directions : NULL;
    pack(d, map->directions, plain(omega, map->directions), (REAL)(direction_scale(d) * LOG2_E), *memory);
    *memory += packed_size(d, map->directions);
    packed.back = *memory;
    *memory += packed_size(map->directions, d);
    if (back) pack(map->directions, d, transposed(omega, map->directions), (REAL)direction_scale(d), packed.back);
    packed.logits = *memory;
    packed.logits_row = row_length(map->directions);
    *memory += chunk * packed.logits_row;
    return packed;
}

/* Directions as they are, if their rows are whole vectors; else packed. */
static directions plain_directions(const feature_map *map, int64_t head, int64_t d, int64_t rows, REAL **memory) {
    if (!is_random(map) || map->kind == LEARNED || map->directions % LANES)
        return pack_directions(map, head, d, rows, 0, memory);
    directions given = {.forward = map->omega + head * map->omega_head, .forward_row = map->directions,
                        .panel = TILE_COLUMNS, .scale = (REAL)(direction_scale(d) * LOG2_E)};
    given.logits = *memory;
    given.logits_row = row_length(map->directions);
    *memory += rows * given.logits_row;
    return given;
}

/* 2^(logits - largest) of a row, and behind them 2^(-logits - largest) if they are paired. */
INLINE void powers_of_logits(const REAL *logits, REAL largest, int64_t r, int paired, int64_t m, REAL *to, int64_t row) {
    for (int64_t j = 0; j < r; j += LANES) store(to + j, exp2_of_negative(load(logits + j) - splat(largest)));
    for (int64_t j = 0; paired && j < r; j += LANES) {
        vec negative = exp2_of_negative(-load(logits + j) - splat(largest));
        if (r + j + LANES <= row)
            store(to + r + j, negative);
        else
            for (int64_t lane = 0; r + j + lane < row; lane++) to[r + j + lane] = negative[lane];
    }
    for (int64_t j = m; j < row; j++) to[j] = 0;
}

/* Features of x (count x d, rows of whole vectors) in rows of whole vectors, zeros behind the last feature. */
static void exponential_features(const feature_map *map, const directions *packed, const REAL *x, int64_t x_row, int64_t count,
                                 int64_t d, int64_t m, REAL *features, int64_t row, REAL *exponents) {
    int64_t r = map->directions, filled = rounded_up(r, LANES), paired = map->kind == HYPERBOLIC;
    multiply_panels(count, filled, d, plain(x, x_row), packed->forward, packed->forward_row, packed->panel,
                    packed->logits, packed->logits_row, 0);
    REAL half_log = (REAL)(log2((double)m) / 2), square_factor = (REAL)(LOG2_E / 2 / sqrt((double)d));
    for (int64_t first = 0; first < count; first += LANES) {
        int64_t rows = least(LANES, count - first);
        REAL square[2][LANE_COUNT * LANE_COUNT];
        if (rows < LANES) memset(square, 0, sizeof square);
        for (int64_t i = 0; i < rows; i++) {
            REAL *logits = packed->logits + (first + i) * packed->logits_row;
            const REAL *from = x + (first + i) * x_row;
            vec most = splat(-INFINITY), squares = splat(0);
            for (int64_t j = 0; j < filled && packed->scale != 1; j += LANES)
                store(logits + j, load(logits + j) * packed->scale);
            for (int64_t j = r; j < filled; j++) logits[j] = paired ? logits[0] : -INFINITY;
            for (int64_t j = 0; j < filled; j += LANES) {
                vec x_j = load(logits + j);
                most = larger(most, paired ? larger(x_j, -x_j) : x_j);
            }
            for (int64_t j = 0; j < d; j += LANES) squares += load(from + j) * load(from + j);
            store(square[0] + i * LANES, most);
            store(square[1] + i * LANES, squares);
        }
        vec largest = reduce_rows(square[0], 1), height = largest - reduce_rows(square[1], 0) * square_factor - half_log;
        for (int64_t i = 0; i < rows; i++) {
            exponents[first + i] = height[i];
            powers_of_logits(packed->logits + (first + i) * packed->logits_row, largest[i], r, paired, m,
                             features + (first + i) * row, row);
        }
    }
}

/* Lane by lane: all ones in the first `count` lanes. */
INLINE ivec first_lanes(int64_t count) {
    ivec mask;
    for (int64_t lane = 0; lane < LANES; lane++) mask[lane] = lane < count ? -1 : 0;
    return mask;
}

/* 2^(sign * logits - largest) of a row; returns their sum, still in lanes. Writes up to `end`, over what is there. */
INLINE vec powers_of_row(const REAL *logits, REAL sign, REAL largest, int64_t r, REAL *to, const REAL *end) {
    vec total = splat(0);
    int64_t j = 0;
    for (; j + LANES <= r; j += LANES) {
        vec power = exp2_of_negative(load(logits + j) * sign - splat(largest));
        total += power;
        store(to + j, power);
    }
    if (j == r) return total;
    vec power = select_lanes(first_lanes(r - j), exp2_of_negative(load(logits + j) * sign - splat(largest)), splat(0));
    for (int64_t lane = 0; lane < LANES && to + j + lane < end; lane++) to[j + lane] = power[lane];
    return total + power;
}

/* Learned features of at most LANES rows from their logits, whose rows are filled up to whole vectors. */
static void softmax_rows(const REAL *logits, int64_t logits_row, int64_t count, int64_t r, REAL *features, int64_t row) {
    REAL first[LANE_COUNT * LANE_COUNT], second[LANE_COUNT * LANE_COUNT];
    memset(first, 0, sizeof first);
    memset(second, 0, sizeof second);
    for (int64_t i = 0; i < count; i++) {
        vec most = load(logits + i * logits_row), minus_least = -most;
        for (int64_t j = LANES; j < r; j += LANES) {
            vec x = load(logits + i * logits_row + j);
            most = larger(x, most);
            minus_least = larger(-x, minus_least);
        }
        store(first + i * LANES, most);
        store(second + i * LANES, minus_least);
    }
    vec largest = reduce_rows(first, 1), of_negative = reduce_rows(second, 1);
    for (int64_t i = 0; i < count; i++) {
        REAL *to = features + i * row;
        const REAL *from = logits + i * logits_row;
        store(first + i * LANES, powers_of_row(from, 1, largest[i], r, to, to + row));
        store(second + i * LANES, powers_of_row(from, -1, of_negative[i], r, to + r, to + row));
    }
    vec inverse = 1 / reduce_rows(first, 0), of_second = 1 / reduce_rows(second, 0);
    for (int64_t i = 0; i < count; i++) {
        REAL *to = features + i * row;
        int64_t j = 0;
        for (; j + LANES <= r; j += LANES) {
            store(to + j, load(to + j) * inverse[i]);
            store(to + r + j, load(to + r + j) * of_second[i]);
        }
        for (; j < r; j++) to[j] *= inverse[i], to[r + j] *= of_second[i];
    }
}

static void learned_features(const feature_map *map, const directions *packed, const REAL *x, int64_t x_row, int64_t count,
                             int64_t d, int64_t m, REAL *features, int64_t row) {
    int64_t r = map->directions, filled = rounded_up(r, LANES);
    for (int64_t i = 0; i < count; i++) {
        REAL *to = packed->logits + i * packed->logits_row;
        int64_t j = 0;
        for (; j + LANES <= r; j += LANES) store(to + j, load(packed->bias + j) * (REAL)LOG2_E);
        for (; j < r; j++) to[j] = packed->bias[j] * (REAL)LOG2_E;
    }
    multiply_panels(count, filled, d, plain(x, x_row), packed->forward, packed->forward_row, packed->panel, packed->logits,
                    packed->logits_row, 1);
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = r; j < filled; j++) packed->logits[i * packed->logits_row + j] = packed->logits[i * packed->logits_row];
    for (int64_t i = 0; i < count; i += LANES)
        softmax_rows(packed->logits + i * packed->logits_row, packed->logits_row, least(LANES, count - i), r,
                     features + i * row, row);
    for (int64_t i = 0; i < count; i++)
        for (int64_t j = m; j < row; j++) features[i * row + j] = 0;
}

/* Turns the gradient of learned features into that of y W + b, in packed->logits. For each half s it is s (g - s . g). */
static void pull_back_to_logits(const feature_map *map, const directions *packed, int64_t count, const REAL *features,
                                int64_t row, const REAL *gradient) {
    int64_t r = map->directions, filled = rounded_up(r, LANES);
    for (int64_t i = 0; i < count; i++) {
        const REAL *g = gradient + i * row, *s = features + i * row;
        REAL *to = packed->logits + i * packed->logits_row;
        vec first = splat(0), second = splat(0);
        int64_t j = 0;
        for (; j + LANES <= r; j += LANES) {
            first += load(g + j) * load(s + j);
            second += load(g + r + j) * load(s + r + j);
        }
        REAL of_first = lanes_sum(first), of_second = lanes_sum(second);
        for (int64_t rest = j; rest < r; rest++) {
            of_first += g[rest] * s[rest];
            of_second += g[r + rest] * s[r + rest];
        }
        for (j = 0; j + LANES <= r; j += LANES)
            store(to + j, load(s + j) * (load(g + j) - splat(of_first)) -
                              load(s + r + j) * (load(g + r + j) - splat(of_second)));
        for (; j < r; j++) to[j] = s[j] * (g[j] - of_first) - s[r + j] * (g[r + j] - of_second);
        for (; j < filled; j++) to[j] = 0;
    }
}

/* Features of a chunk that was read into x. For given features x is them already, and is copied. */
static void compute_features(const feature_map *map, const directions *packed, const REAL *x, int64_t x_row, int64_t count,
                             int64_t d, int64_t m, REAL *features, int64_t row, REAL *exponents) {
    if (map->kind == LEARNED) {
        learned_features(map, packed, x, x_row, count, d, m, features, row);
        return;
    }
    if (is_random(map)) {
        exponential_features(map, packed, x, x_row, count, d, m, features, row, exponents);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        const REAL *from = x + i * x_row;
        REAL *to = features + i * row;
        int64_t whole = rounded_up(m, LANES);
        for (int64_t j = 0; j < whole; j += LANES) {
            vec x_j = load(from + j);
            if (map->kind == ELU)
                x_j = elu_plus_1(x_j);
            else if (map->kind == RELU)
                x_j = larger(splat(0), x_j);
            store(to + j, x_j);
        }
        for (int64_t j = m; j < whole; j++) to[j] = 0;
    }
}

/* Turns the gradient of features, in place or into `to`, into the gradient of x. Exponents count as constants that the
   features are relative to: e^f has the derivative e^f f'. For learned features, packed->logits then holds the gradient of
   y W + b, from which those of W and b follow. */
static void pull_back(const feature_map *map, const directions *packed, const REAL *x, int64_t x_row, int64_t count, int64_t d,
                      int64_t m, const REAL *features, int64_t row, REAL *gradient, REAL *to, int64_t to_row) {
    if (!is_random(map)) {
        int64_t whole = rounded_up(m, LANES);
        for (int64_t i = 0; i < count; i++)
            for (int64_t j = 0; j < whole; j += LANES) {
                vec slope = load(gradient + i * row + j), feature = load(features + i * row + j);
                if (map->kind == ELU)
                    slope *= smaller(splat(1), feature);
                else if (map->kind == RELU)
                    slope = select_lanes((ivec)(feature > splat(0)), slope, splat(0));
                store(to + i * to_row + j, slope);
            }
        return;
    }
    int64_t r = map->directions, whole = rounded_up(d, LANES), paired = map->kind == HYPERBOLIC;
    if (map->kind == LEARNED) pull_back_to_logits(map, packed, count, features, row, gradient);
    for (int64_t i = 0; i < count && map->kind != LEARNED; i++) {
        REAL *slopes = paired ? gradient + i * row : packed->logits + i * packed->logits_row;
        REAL *signed_slopes = packed->logits + i * packed->logits_row;
        const REAL *values = features + i * row, *from = gradient + i * row;
        vec total = splat(0);
        for (int64_t j = 0; j < rounded_up(m, LANES); j += LANES) {
            vec slope = load(from + j) * load(values + j);
            total += slope;
            store(slopes + j, slope);
        }
        int64_t done = 0;
        for (; paired && done + LANES <= r; done += LANES)
            store(signed_slopes + done, load(slopes + done) - load(slopes + r + done));
        for (; paired && done < r; done++) signed_slopes[done] = slopes[done] - slopes[r + done];
        REAL factor = -lanes_sum(total) / (REAL)sqrt((double)d);
        for (int64_t j = 0; j < whole; j += LANES) store(to + i * to_row + j, load(x + i * x_row + j) * factor);
    }
    multiply_panels(count, whole, r, plain(packed->logits, packed->logits_row), packed->back, TILE_COLUMNS, r * TILE_COLUMNS,
                    to, to_row, map->kind != LEARNED);
}
