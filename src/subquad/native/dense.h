/* y = W x + b for a few rows x: the weights are read once, from the first to the last, at the speed of memory. */

#define DENSE_ROWS 4
#define WORTH_SHARING 2000000 /* weights below which a thread costs more than it saves */

typedef struct {
    int64_t rows, inputs, outputs, threads;
    const REAL *x, *weight, *bias; /* rows x inputs, outputs x inputs, outputs or NULL */
    REAL *y;                       /* rows x outputs */
    int64_t share;                 /* outputs of a task */
} dense_call;

/* One output of `rows` rows, a constant at every call, with several sums so that they do not wait for each other. */
INLINE void dense_output(const int rows, const dense_call *call, int64_t row, int64_t output) {
    const int parts = 4 / rows;
    int64_t n = call->inputs, j = 0;
    const REAL *x = call->x + row * n, *weight = call->weight + output * n;
    vec sums[DENSE_ROWS][4];
#pragma GCC unroll 4
    for (int r = 0; r < rows; r++)
#pragma GCC unroll 4
        for (int p = 0; p < parts; p++) sums[r][p] = splat(0);
    for (; j + parts * LANES <= n; j += parts * LANES)
#pragma GCC unroll 4
        for (int p = 0; p < parts; p++) {
            vec w = load(weight + j + p * LANES);
#pragma GCC unroll 4
            for (int r = 0; r < rows; r++) sums[r][p] += w * load(x + r * n + j + p * LANES);
        }
    for (int r = 0; r < rows; r++) {
        vec whole = sums[r][0];
        for (int p = 1; p < parts; p++) whole += sums[r][p];
        REAL total = lanes_sum(whole);
        for (int64_t i = j; i < n; i++) total += weight[i] * x[r * n + i];
        call->y[(row + r) * call->outputs + output] = total + (call->bias ? call->bias[output] : 0);
    }
}

static void dense_task(void *context, void *memory, int64_t index) {
    const dense_call *call = context;
    int64_t from = index * call->share, to = least(call->outputs, from + call->share), r;
    (void)memory;
    for (int64_t output = from; output < to; output++) {
        for (r = 0; r + DENSE_ROWS <= call->rows; r += DENSE_ROWS) dense_output(DENSE_ROWS, call, r, output);
        for (; r + 2 <= call->rows; r += 2) dense_output(2, call, r, output);
        for (; r < call->rows; r++) dense_output(1, call, r, output);
    }
}
