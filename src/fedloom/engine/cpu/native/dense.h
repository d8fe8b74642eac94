/* Dense layers: outputs, gradients of inputs, and the step of the weights. */

#ifdef __AVX512VL__
#define TALL 10  /* examples that are multiplied at once: as many as fit into registers */
#else
#define TALL 5
#endif

/* outputs of one panel or of two for `many` examples */
INLINE void rows_times_panels(const float *const *x, float *const *to, int64_t many, int tall, const Layer *l,
                              int64_t panel, int two, int64_t keep) {
    const float *w0 = l->weight + panel * l->apart, *w1 = two ? w0 + l->apart : w0;
    V first = load(l->bias + panel * WIDE), second = two ? load(l->bias + (panel + 1) * WIDE) : first;
    V a[TALL], b[TALL];
    for (int r = 0; r < tall; r++) a[r] = first, b[r] = second;
    for (int64_t k = 0; k < l->reads; k++) {
        V p = load(w0 + k * WIDE), q = two ? load(w1 + k * WIDE) : p;
#pragma GCC unroll 10
        for (int r = 0; r < tall; r++) {
            V value = all(x[r][k]);
            a[r] += value * p;
            if (two) b[r] += value * q;
        }
    }
    V zero = all(0);
    for (int64_t r = 0; r < many; r++) {
        if (l->is.relu) {  /* NaN stays NaN */
            a[r] = choose(a[r] < zero, zero, a[r]);
            if (two) b[r] = choose(b[r] < zero, zero, b[r]);
        }
        store_some(to[r] + panel * WIDE, a[r], keep - panel * WIDE);
        if (two) store_some(to[r] + (panel + 1) * WIDE, b[r], keep - (panel + 1) * WIDE);
    }
}

/* outputs of this thread's panels for all examples; `keep`: numbers of an example that are written */
static void dense_up(const Layer *l, const float *const *x, float *out, int64_t apart, int64_t keep, int64_t examples,
                     Team team) {
    int64_t pairs = (l->panels + 1) / 2;
    for (int64_t pair = team.me * pairs / team.all; pair < (team.me + 1) * pairs / team.all; pair++) {
        for (int64_t first = 0, many; first < examples; first += many) {
            const float *from[TALL];
            float *to[TALL];
            int tall = examples - first > 5;
            many = least(tall ? TALL : 5, examples - first);
            for (int64_t r = 0; r < TALL; r++) {
                from[r] = x[least(first + r, examples - 1)];
                to[r] = out + least(first + r, examples - 1) * apart;
            }
            if (2 * pair + 1 == l->panels) rows_times_panels(from, to, many, TALL, l, 2 * pair, 0, keep);
            else if (tall) rows_times_panels(from, to, many, TALL, l, 2 * pair, 1, keep);
            else rows_times_panels(from, to, many, 5, l, 2 * pair, 1, keep);
        }
    }
}

#define FOUR 4
#ifdef __AVX512VL__
#define ACROSS 4  /* inputs whose gradients are computed at once */
#else
#define ACROSS 3
#endif
#define SIX 6
#define SOON 32  /* numbers to prefetch ahead: examples lie far apart, and the processor cannot predict where */

#define BLOCK (3 * ACROSS)  /* inputs whose weights stay in the cache for all examples */

/* gradients of up to ACROSS inputs for up to FOUR examples */
INLINE void down_tile(const Layer *l, const float *const *x, float *to, int64_t apart, int through, int64_t examples,
                      int64_t n, int64_t k, int64_t end, int soon) {
    int64_t wide = l->panels * WIDE;
    const float *g[FOUR], *w[ACROSS];
    V a[FOUR][ACROSS];
    for (int64_t r = 0; r < FOUR; r++) g[r] = l->slope + least(n + r, examples - 1) * wide;
    for (int c = 0; c < ACROSS; c++) w[c] = l->weight + least(k + c, end - 1) * WIDE;
    for (int r = 0; r < FOUR; r++)
        for (int c = 0; c < ACROSS; c++) a[r][c] = all(0);
    for (int64_t panel = 0; panel < l->panels; panel++) {
        V v[ACROSS];
#pragma GCC unroll 4
        for (int c = 0; c < ACROSS; c++) v[c] = load(w[c] + panel * l->apart);
        if (soon) {
            __builtin_prefetch(w[0] + panel * l->apart + BLOCK * WIDE);
            __builtin_prefetch(w[0] + panel * l->apart + (BLOCK + 2) * WIDE);
        }
#pragma GCC unroll 4
        for (int r = 0; r < FOUR; r++) {
            V slope = load(g[r] + panel * WIDE);
#pragma GCC unroll 4
            for (int c = 0; c < ACROSS; c++) a[r][c] += slope * v[c];
        }
    }
    for (int64_t r = 0; r < least(FOUR, examples - n); r++)
        for (int64_t c = 0; c < least(ACROSS, end - k); c++)
            to[(n + r) * apart + k + c] = through && x[n + r][k + c] <= 0 ? 0 : total(a[r][c]);
}

/* gradients of inputs: to [examples][reach]; with `through`, 0 where ReLU gave 0 */
static void dense_down(const Layer *l, const float *const *x, float *to, int64_t apart, int64_t reach, int through,
                       int64_t examples, Team team) {
    int64_t end = (team.me + 1) * reach / team.all;
    for (int64_t first = team.me * reach / team.all; first < end; first += BLOCK)
        for (int64_t n = 0; n < examples; n += FOUR)
            for (int64_t k = first; k < least(first + BLOCK, end); k += ACROSS)
                if (n) down_tile(l, x, to, apart, through, examples, n, k, end, 0);
                else down_tile(l, x, to, apart, through, examples, n, k, end, 1);  /* prefetches the next weights */
}

#ifdef __AVX512VL__
#define ABREAST 4  /* panels that take the step at once: as many as fit into registers */
#else
#define ABREAST 2
#endif

/* the step of up to six inputs' weights of some panels */
INLINE void step_tile(Layer *l, const float *const *x, int64_t k, int64_t many, int64_t panel, int panels,
                      int64_t examples, Move how, int whole) {
    int64_t wide = l->panels * WIDE;
    V a[SIX][ABREAST];
    for (int c = 0; c < SIX; c++)
        for (int p = 0; p < panels; p++) a[c][p] = all(0);
    for (int64_t n = 0; n < examples; n++) {
        const float *row = x[n] + k, *g = l->slope + n * wide + panel * WIDE;
        __builtin_prefetch(row + SOON);
        V slope[ABREAST];
#pragma GCC unroll 4
        for (int p = 0; p < panels; p++) slope[p] = load(g + p * WIDE);
#pragma GCC unroll 6
        for (int c = 0; c < SIX; c++) {
            V value = all(row[whole ? c : least(c, many - 1)]);
#pragma GCC unroll 4
            for (int p = 0; p < panels; p++) a[c][p] += value * slope[p];
        }
    }
    for (int p = 0; p < panels; p++) {
        I which = lanes(l->is.moving_outputs - (panel + p) * WIDE);
        for (int64_t c = 0; c < many; c++) {
            int64_t at = (panel + p) * l->apart + (k + c) * WIDE;
            store(l->weight + at, moved(load(l->weight + at), a[c][p], l->beside, at, how, which));
        }
    }
}

INLINE void step_panels(Layer *l, const float *const *x, int64_t panel, int panels, int64_t examples, Move how) {
    int64_t channels = l->is.inputs / l->fan, run = l->is.moving_inputs / l->fan, places = l->fan;
    if (run == channels) channels = run = l->is.inputs, places = 1;
    for (int64_t f = 0; f < places; f++) {  /* at every place of a flattened image, the first `run` channels */
        int64_t k = f * channels, end = k + run;
        for (; k + SIX <= end; k += SIX) step_tile(l, x, k, SIX, panel, panels, examples, how, 1);
        if (k < end) step_tile(l, x, k, end - k, panel, panels, examples, how, 0);
    }
    for (int64_t p = panel; l->is.bias && p < panel + panels; p++) {
        V sum = all(0);
        for (int64_t n = 0; n < examples; n++) sum += load(l->slope + (n * l->panels + p) * WIDE);
        float *b = l->bias + p * WIDE;
        store(b, moved(load(b), sum, l->bias_beside, p * WIDE, how, lanes(l->is.moving_outputs - p * WIDE)));
    }
}

/* the step of the weights */
static void dense_step(Layer *l, const float *const *x, int64_t examples, Move how, Team team) {
    int64_t moving = (l->is.moving_outputs + WIDE - 1) / WIDE, end = (team.me + 1) * moving / team.all;
    int64_t panel = team.me * moving / team.all;
    for (; panel + ABREAST <= end; panel += ABREAST) step_panels(l, x, panel, ABREAST, examples, how);
    for (; panel + 2 <= end; panel += 2) step_panels(l, x, panel, 2, examples, how);
    if (panel < end) step_panels(l, x, panel, 1, examples, how);
}
