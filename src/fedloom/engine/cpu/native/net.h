/* The shape of a network, and the layout of its parts in a team's memory.
 *
 * Images have channels last and are framed by their padding, so that a filter reads one block of numbers per row.
 * Weights lie in panels of eight outputs: [outputs / 8][numbers an output reads][8].
 */
#include <math.h>
#include <stdint.h>
#include <string.h>
#include <omp.h>

#define WIDE 8    /* numbers of a vector */
#define PARTS 4   /* sums in which a batch's gradients are added up, whatever the number of threads */
#define MOST 32   /* layers of a network */
#define BESIDE 5  /* kinds of numbers that steps may keep beside the weights (move.h) */
#define INLINE static inline __attribute__((always_inline))

typedef float V __attribute__((vector_size(4 * WIDE)));
typedef float U __attribute__((vector_size(4 * WIDE), aligned(4)));  /* anywhere in memory */
typedef float H __attribute__((vector_size(16)));
typedef int8_t Bytes __attribute__((vector_size(WIDE)));
typedef int32_t I __attribute__((vector_size(4 * WIDE)));

/* a layer as the caller describes it: `native_steps.py` writes these numbers in this order */
typedef struct {
    int64_t conv, inputs, outputs, height, width, rows, columns, down, right, pool, relu, bias;
    int64_t at_weight, at_bias;        /* places in a client's vector */
    int64_t moving_outputs, moving_inputs;  /* the first of them are trained; the rest is frozen */
} Given;

typedef struct {
    Given is;
    int64_t fan;             /* places of an image that each of a dense layer's input channels has */
    int64_t reads, panels, apart;  /* numbers that an output reads; panels of outputs, and their distance */
    int64_t line, image;     /* numbers of a framed row, of a framed image (dense: of an example) */
    int64_t new_h, new_w;    /* of an image after the layer and its pooling */
    int64_t reach;           /* input channels whose gradients are needed */
    int64_t stretch;         /* vectors of a filter's row, backwards over all inputs */
    int64_t narrow;          /* vectors of a filter's row, backwards over the inputs in `reach` */
    int64_t window;          /* vectors of a row of all that a pooling window's filters touch, if few enough; else 0 */
    int64_t hop, gathers;    /* vectors of a row whose filters are trained: their distance and number */
    float *weight, *bias;    /* panels */
    float *filters;          /* of convolutions, as they are trained [outputs][rows][stretch] */
    float *beside[BESIDE], *bias_beside[BESIDE];  /* what steps keep for every weight, as weights lie; or 0 */
    float *back;             /* filters for gradients of inputs [outputs][rows][narrow], or as `windows` reads them */
    float *x;                /* inputs of all examples */
    float *slope;            /* dense: gradients of the outputs, in panels of eight [examples][8 * panels] */
    int8_t *place;           /* of the maximum of every window */
    float *sums;             /* gradients of weights [PARTS][outputs][rows][gathers] and of biases [PARTS][outputs] */
} Layer;

typedef struct {
    int64_t layers, convs, batch;
    int64_t wrong;           /* a label is not a class */
    Layer layer[MOST];
    const float **rows;      /* where the examples of a step lie, for networks without convolutions */
    int64_t *which;          /* their places in the data set */
    float *losses;           /* of the examples of a step */
    float *below;            /* gradients of the convolutions' outputs [examples][numbers] */
    float *own;              /* each thread's memory: two images, then lists */
    int64_t own_size, image_size;
} Net;

typedef struct {
    int64_t me, all;         /* this thread, and the number of threads that share a client */
} Team;

INLINE void wait(Team team) {
    if (team.all > 1) {
#pragma omp barrier
    }
}

INLINE int64_t up(int64_t n, int64_t by) { return (n + by - 1) / by * by; }
INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
INLINE V all(float value) { return (V){value, value, value, value, value, value, value, value}; }
INLINE V load(const float *at) { return (V)(*(const U *)at); }
INLINE void store(float *at, V value) { *(U *)at = (U)value; }
INLINE V choose(I which, V yes, V no) { return (V)((which & (I)yes) | (~which & (I)no)); }

INLINE float total(V v) {
    H four = __builtin_shufflevector(v, v, 0, 1, 2, 3) + __builtin_shufflevector(v, v, 4, 5, 6, 7);
    H two = four + __builtin_shufflevector(four, four, 2, 3, 0, 1);
    return two[0] + two[1];
}

/* a mask of the first `many` lanes */
INLINE I lanes(int64_t many) {
    I found;
    for (int i = 0; i < WIDE; i++) found[i] = i < many ? -1 : 0;
    return found;
}

INLINE void store_some(float *at, V value, int64_t many) {
    if (many >= WIDE) store(at, value);
    else for (int64_t i = 0; i < many; i++) at[i] = value[i];
}
