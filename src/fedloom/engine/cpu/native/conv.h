/* Convolutions with ReLU and pooling of 2 x 2 in one pass, example by example.
 *
 * Numbers that pooling drops or ReLU cuts off have no gradient. Backwards, the other gradients of each channel are
 * listed with their places, and only these are multiplied: a quarter of all, or less.
 */

/* sums of products at `many` places of an image, with the filters of one panel or of two */
INLINE void spots(const float *const *at, int many, const Layer *l, int64_t panel, int two, V *a, V *b) {
    int64_t row = l->is.columns * l->is.inputs;
    const float *w0 = l->weight + panel * l->apart, *w1 = w0 + l->apart;
    for (int s = 0; s < many; s++) {
        a[s] = load(l->bias + panel * WIDE);
        if (two) b[s] = load(l->bias + (panel + 1) * WIDE);
    }
    for (int64_t y = 0; y < l->is.rows; y++) {
        int64_t here = y * l->line;
        for (int64_t k = 0; k < row; k++) {
            V p = load(w0 + (y * row + k) * WIDE), q = two ? load(w1 + (y * row + k) * WIDE) : p;
#pragma GCC unroll 8
            for (int s = 0; s < many; s++) {
                V value = all(at[s][here + k]);
                a[s] += value * p;
                if (two) b[s] += value * q;
            }
        }
    }
}

/* keep the larger of `v` and the best so far, with its place */
INLINE void larger(V v, int32_t place, V *best, I *where) {
    I better = (v > *best) | (v != v);  /* NaN is the larger; of equal numbers, the first */
    *best = choose(better, v, *best);
    *where = (better & place) | (~better & *where);
}

/* store a window's maximum and its place, or a number without pooling */
INLINE void settle(const Layer *l, V *of, int64_t many, float *to, int8_t *place) {
    V best = of[0];
    I where = {0};
    if (l->is.pool) {
        for (int s = 1; s < 4; s++) larger(of[s], s, &best, &where);
        Bytes small = __builtin_convertvector(where, Bytes);
        memcpy(place, &small, least(many, WIDE));
    }
    if (l->is.relu) best = choose(best < all(0), all(0), best);
    store_some(to, best, many);
}

#ifdef __AVX512VL__
#define SPOTS 8  /* places of the image at once for two panels: as many as fit into registers */
#else
#define SPOTS 4
#endif

/* one example, forwards: from its framed image to the next layer's inputs `to`, whose rows are `apart` numbers apart */
static void conv_up(const Layer *l, int64_t n, float *to, int64_t apart) {
    const float *image = l->x + n * l->image;
    int64_t outputs = l->is.outputs, inputs = l->is.inputs, step = l->is.pool ? 2 : 1, each = l->is.pool ? 4 : 1;
    for (int64_t panel = 0; panel < l->panels; panel += 2) {
        int two = panel + 1 < l->panels;
        int64_t spread = (two ? SPOTS : 8) / each;  /* places of the result at once */
        for (int64_t y = 0; y < l->new_h; y++)
            for (int64_t x = 0; x < l->new_w; x += spread) {
                const float *at[8];
                V a[8], b[8];
                for (int64_t s = 0; s < spread; s++) {
                    const float *corner = image + step * y * l->line + step * least(x + s, l->new_w - 1) * inputs;
                    for (int64_t c = 0; c < each; c++)
                        at[s * each + c] = corner + (c >> 1) * l->line + (c & 1) * inputs;
                }
                if (two) spots(at, SPOTS, l, panel, 1, a, b);
                else spots(at, 8, l, panel, 0, a, b);
                for (int64_t s = 0; s < least(spread, l->new_w - x); s++) {
                    float *here = to + y * apart + (x + s) * outputs + panel * WIDE;
                    int8_t *place = l->place + ((n * l->new_h + y) * l->new_w + x + s) * outputs + panel * WIDE;
                    settle(l, a + s * each, outputs - panel * WIDE, here, place);
                    if (two) settle(l, b + s * each, outputs - (panel + 1) * WIDE, here + WIDE, place + WIDE);
                }
            }
    }
}

/* gradients that are not zero, listed by channel: their places in the framed image, in pixels, and their values */
typedef struct {
    int32_t pixel;
    float value;
} Entry;

typedef struct {
    int64_t room, *count;
    Entry *entry;  /* [channels][room] */
} Left;

INLINE void sift_some(const Layer *l, int64_t n, const float *g, int64_t g_line, int64_t channels, const float *out,
                      int64_t out_line, Left *left, int64_t first, int64_t many, int pool, int relu) {
    int64_t outputs = l->is.outputs, new_h = l->new_h, new_w = l->new_w, step = pool ? 2 : 1;
    int32_t wide = (int32_t)(l->line / l->is.inputs);
    const int8_t *place = l->place + n * new_h * new_w * outputs + first;
    Entry *to[WIDE];
    for (int64_t c = 0; c < many; c++) to[c] = left->entry + (first + c) * left->room;
    for (int64_t y = 0; y < new_h; y++) {
        const float *slope = g + y * g_line + first, *seen = out + y * out_line + first;
        int32_t corner = (int32_t)(step * y) * wide;
        for (int64_t x = 0; x < new_w; x++) {
#pragma GCC unroll 8
            for (int64_t c = 0; c < many; c++) {  /* every entry is written, but overwritten if it does not count */
                int32_t which = pool ? place[c] : 0;
                *to[c] = (Entry){corner + (which >> 1) * wide + (which & 1), slope[c]};
                to[c] += (slope[c] != 0) & !(relu && seen[c] <= 0);
            }
            slope += channels, seen += outputs, place += outputs, corner += (int32_t)step;
        }
    }
    for (int64_t c = 0; c < many; c++) left->count[first + c] = to[c] - left->entry - (first + c) * left->room;
}

/* list the gradients of the first `count` channels */
static void sift(const Layer *l, int64_t n, const float *g, int64_t g_line, int64_t channels, const float *out,
                 int64_t out_line, Left *left, int64_t count) {
    for (int64_t first = 0; first < count; first += WIDE) {
        int64_t many = least(WIDE, count - first);
        if (many == WIDE && l->is.pool && l->is.relu)
            sift_some(l, n, g, g_line, channels, out, out_line, left, first, WIDE, 1, 1);
        else
            sift_some(l, n, g, g_line, channels, out, out_line, left, first, many, (int)l->is.pool, (int)l->is.relu);
    }
}

/* add the products of a channel's gradients and the inputs under its filter to the filter's sums */
INLINE void gather_rows(const float *image, const Layer *l, const Left *left, int64_t c, float *sums, int rows,
                        int many) {
    int64_t between = l->gathers * WIDE, line = l->line, hop = l->hop, inputs = l->is.inputs;
    V a[12];
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < many; j++) a[r * many + j] = load(sums + r * between + j * WIDE);
    const Entry *entry = left->entry + c * left->room;
    for (int64_t e = 0; e < left->count[c]; e++) {
        const float *from = image + entry[e].pixel * inputs;
        V slope = all(entry[e].value);
#pragma GCC unroll 5
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 12
            for (int j = 0; j < many; j++) a[r * many + j] += slope * load(from + r * line + j * hop);
    }
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < many; j++) store(sums + r * between + j * WIDE, a[r * many + j]);
}

/* add the products of a channel's gradients and its filter to the gradients of the inputs */
INLINE void spread_rows(float *image, int64_t line, int64_t reach, const Left *left, int64_t c, const float *filter,
                        int64_t between, int rows, int many) {
    V w[12];
    for (int r = 0; r < rows; r++)
        for (int j = 0; j < many; j++) w[r * many + j] = load(filter + r * between + j * WIDE);
    const Entry *entry = left->entry + c * left->room;
    for (int64_t e = 0; e < left->count[c]; e++) {
        float *to = image + entry[e].pixel * reach;
        V slope = all(entry[e].value);
#pragma GCC unroll 5
        for (int r = 0; r < rows; r++)
#pragma GCC unroll 12
            for (int j = 0; j < many; j++)
                store(to + r * line + j * WIDE, load(to + r * line + j * WIDE) + slope * w[r * many + j]);
    }
}

/* as many rows and vectors at once as fit into registers */
#define BY_SIZE(call, rows, many, ...)                                                                       \
    do {                                                                                                     \
        int64_t at_ = 0;                                                                                     \
        if ((rows) == 3 && (many) == 1) { call(0, 0, 3, 1, __VA_ARGS__); break; }                            \
        if ((rows) == 3 && (many) == 2) { call(0, 0, 3, 2, __VA_ARGS__); break; }                            \
        if ((rows) == 3 && (many) == 3) { call(0, 0, 3, 3, __VA_ARGS__); break; }                            \
        if ((rows) == 3 && (many) == 4) { call(0, 0, 3, 4, __VA_ARGS__); break; }                            \
        if ((rows) == 5 && (many) == 1) { call(0, 0, 5, 1, __VA_ARGS__); break; }                            \
        if ((rows) == 5 && (many) == 2) { call(0, 0, 5, 2, __VA_ARGS__); break; }                            \
        for (int64_t r_ = 0; r_ < (rows); r_++)                                                              \
            for (at_ = 0; at_ < (many);) {                                                                   \
                int64_t rest_ = (many) - at_;                                                                \
                if (rest_ >= 12) { call(r_, at_, 1, 12, __VA_ARGS__); at_ += 12; }                           \
                else if (rest_ >= 6) { call(r_, at_, 1, 6, __VA_ARGS__); at_ += 6; }                         \
                else if (rest_ >= 4) { call(r_, at_, 1, 4, __VA_ARGS__); at_ += 4; }                         \
                else if (rest_ >= 2) { call(r_, at_, 1, 2, __VA_ARGS__); at_ += 2; }                         \
                else { call(r_, at_, 1, 1, __VA_ARGS__); at_ += 1; }                                         \
            }                                                                                                \
    } while (0)

#define GATHER(r, j, rows, many, image, l, left, c, sums) \
    gather_rows((image) + (r) * (l)->line + (j) * (l)->hop, l, left, c, (sums) + ((r) * (l)->gathers + (j)) * WIDE,   \
                rows, many)
#define SPREAD(r, j, rows, many, image, line, reach, left, c, filter, between) \
    spread_rows((image) + (r) * (line) + (j) * WIDE, line, reach, left, c, (filter) + (r) * (between) + (j) * WIDE,   \
                between, rows, many)

/* add one example's gradients of filters and biases to the sums of its part of the batch */
static void conv_gather(const Layer *l, int64_t n, int64_t part, const Left *left) {
    int64_t each = l->is.rows * l->gathers * WIDE, outputs = l->is.outputs;
    const float *image = l->x + n * l->image;
    float *biases = l->sums + PARTS * outputs * each + part * outputs;
    for (int64_t c = 0; c < l->is.moving_outputs; c++) {
        float *sums = l->sums + (part * outputs + c) * each, sum[4] = {0};
        const Entry *entry = left->entry + c * left->room;
        BY_SIZE(GATHER, l->is.rows, l->gathers, image, l, left, c, sums);
        for (int64_t e = 0; e < left->count[c]; e++) sum[e & 3] += entry[e].value;  /* four sums: no waiting */
        biases[c] += (sum[0] + sum[1]) + (sum[2] + sum[3]);
    }
}

/* the gradients of one example's inputs, framed [height][width][reach] */
static void conv_spread(const Layer *l, float *to, const Left *left) {
    int64_t line = l->line / l->is.inputs * l->reach, each = l->is.rows * l->narrow * WIDE;
    memset(to, 0, (l->is.height + 2 * l->is.down) * line * sizeof(float));
    for (int64_t c = 0; c < l->is.outputs; c++)
        BY_SIZE(SPREAD, l->is.rows, l->narrow, to, line, l->reach, left, c, l->back + c * each, l->narrow * WIDE);
}

#ifdef __AVX512VL__
#define WINDOW 4
#else
#define WINDOW 2
#endif

/* The gradients of one example's inputs where few channels need them: the sum of all filters at a window of 2 x 2 is
 * added to the image at once. Filters lie between rows and pixels of zeros, so that shifted ones can be read too. */
INLINE void windows(const Layer *l, int64_t n, const float *g, int64_t g_line, const float *out, int64_t out_line,
                    float *to, float *values, int many) {
    int64_t outputs = l->is.outputs, reach = l->reach, line = l->line / l->is.inputs * reach;
    int64_t apart = reach + many * WIDE, shift[4] = {apart + reach, apart, reach, 0};
    const int8_t *place = l->place + n * l->new_h * l->new_w * outputs;
    memset(to, 0, (l->is.height + 2 * l->is.down) * line * sizeof(float));
    for (int64_t y = 0; y < l->new_h; y++)
        for (int64_t x = 0; x < l->new_w; x++, place += outputs) {
            const float *slope = g + y * g_line + x * outputs, *seen = out + y * out_line + x * outputs;
            for (int64_t c = 0; c < outputs; c += WIDE)  /* before the loop: no branches for ReLU in it */
                store(values + c, l->is.relu ? choose(load(seen + c) <= all(0), all(0), load(slope + c)) : load(slope + c));
            V a[4][WINDOW];
            for (int r = 0; r < 4; r++)
                for (int j = 0; j < many; j++) a[r][j] = all(0);
            for (int64_t c = 0; c < outputs; c++) {
                const float *filter = l->back + c * 5 * apart + shift[place[c]];
                V value = all(values[c]);
#pragma GCC unroll 4
                for (int r = 0; r < 4; r++)
#pragma GCC unroll 4
                    for (int j = 0; j < many; j++) a[r][j] += value * load(filter + r * apart + j * WIDE);
            }
            float *here = to + 2 * y * line + 2 * x * reach;
            for (int r = 0; r < 4; r++)
                for (int j = 0; j < many; j++) {
                    float *at = here + r * line + j * WIDE;
                    store(at, load(at) + a[r][j]);
                }
        }
}

static void conv_windows(const Layer *l, int64_t n, const float *g, int64_t g_line, const float *out, int64_t out_line,
                         float *to, float *values) {
    if (l->window == 1) windows(l, n, g, g_line, out, out_line, to, values, 1);
    else if (l->window == 2) windows(l, n, g, g_line, out, out_line, to, values, 2);
#if WINDOW == 4
    else if (l->window == 3) windows(l, n, g, g_line, out, out_line, to, values, 3);
    else windows(l, n, g, g_line, out, out_line, to, values, 4);
#endif
}

/* filters [outputs][rows][stretch] as panels for the forward pass, and without the inputs that need no gradients */
static void conv_lay(const Layer *l, int64_t c) {
    int64_t row = l->is.columns * l->is.inputs;
    for (int64_t y = 0; y < l->is.rows; y++) {
        const float *from = l->filters + (c * l->is.rows + y) * l->stretch * WIDE;
        float *to = l->weight + (c / WIDE) * l->apart + y * row * WIDE + c % WIDE;
        for (int64_t k = 0; k < row; k++) to[k * WIDE] = from[k];
        if (l->back == l->filters) continue;
        int64_t apart = l->reach + l->window * WIDE;
        float *narrow = l->window ? l->back + (c * 5 + y + 1) * apart + l->reach
                                  : l->back + (c * l->is.rows + y) * l->narrow * WIDE;
        for (int64_t x = 0; x < l->is.columns; x++)
            memcpy(narrow + x * l->reach, from + x * l->is.inputs, l->reach * sizeof(float));
    }
}

/* the step of the numbers of a filter's row that are trained; they begin at `sums` and at place `at` of the filters */
INLINE void row_step(Layer *l, const float *sums, int64_t apart, int64_t at, int64_t count, Move how) {
    for (int64_t k = 0; k < count; k++) {
        float g = sums[k];
        for (int part = 1; part < PARTS; part++) g += sums[k + part * apart];
        l->filters[at + k] = moved_one(l->filters[at + k], g, l->beside, at + k, how);
    }
}

/* the same for a whole row, which is padded to vectors */
INLINE void whole_row_step(Layer *l, const float *sums, int64_t apart, int64_t at, Move how) {
    int64_t count = l->is.columns * l->is.inputs;
    for (int64_t k = 0; k < count; k += WIDE) {
        V g = load(sums + k);
        for (int part = 1; part < PARTS; part++) g += load(sums + k + part * apart);
        float *w = l->filters + at + k;
        store(w, moved(load(w), g, l->beside, at + k, how, lanes(count - k)));
    }
}

/* the step of filters and biases, from the sums of all parts of the batch */
static void conv_step(Layer *l, Move how, Team team) {
    int64_t most = l->is.moving_outputs, apart = l->is.outputs * l->is.rows * l->gathers * WIDE;
    int64_t hop = l->hop == WIDE ? l->is.inputs : WIDE;  /* distance of columns in the sums */
    for (int64_t c = team.me * most / team.all; c < (team.me + 1) * most / team.all; c++) {
        for (int64_t y = 0; y < l->is.rows; y++) {
            const float *sums = l->sums + (c * l->is.rows + y) * l->gathers * WIDE;
            int64_t at = (c * l->is.rows + y) * l->stretch * WIDE;
            if (l->is.moving_inputs == l->is.inputs) whole_row_step(l, sums, apart, at, how);
            else
                for (int64_t x = 0; x < l->is.columns; x++)
                    row_step(l, sums + x * hop, apart, at + x * l->is.inputs, l->is.moving_inputs, how);
        }
        if (l->is.bias) {
            float *sums = l->sums + PARTS * apart + c, g = sums[0];
            for (int part = 1; part < PARTS; part++) g += sums[part * l->is.outputs];
            l->bias[c] = moved_one(l->bias[c], g, l->bias_beside, c, how);
        }
        conv_lay(l, c);
    }
}
