/* How weights move by their gradients. Beside a weight may lie its moments, where it started, what is pushed, and
 * whether it moves at all. */

enum { PLAIN, HEAVY, ADAM };
enum { FIRST, SECOND, START, PUSH, FREE };  /* places in a layer's `beside`; as bits, what is in use */

/* the optimiser and what a local rule adds to gradients, for all clients; `move.py` writes it in this order */
typedef struct {
    int64_t kind, uses;            /* uses: bits of `beside` */
    double rate, shrink, decay;    /* plain steps shrink weights; others add the decay to gradients */
    double momentum, keep, eps;    /* keep: the part of adam's second moments that stays */
    double blend, fresh;            /* adam: the parts of a gradient, and of its square, that are new in its moments */
    float *kept[2];                /* moments that outlast the round [clients][numbers]; 0: they begin at zero */
    const float *pull;             /* [clients] towards the weights that a client started from */
    const float *push;             /* [clients][numbers] */
    const float *bias;             /* adam: what both moments are divided by [clients][most][2] */
    const float *free;             /* 1: the weight moves, 0: neither it nor its moments do [clients][numbers] */
} Rule;

/* the same for one client and one step */
typedef struct {
    int64_t kind, uses;
    float rate, shrink, decay, momentum, keep, eps, blend, fresh, pull, second;
} Move;

static Move move_of(const Rule *rule, int64_t client) {
    return (Move){rule->kind, rule->uses, (float)rule->rate, (float)rule->shrink, (float)rule->decay,
                  (float)rule->momentum, (float)rule->keep, (float)rule->eps, (float)rule->blend, (float)rule->fresh,
                  rule->pull ? rule->pull[client] : 0, 1};
}

/* the move of a step; `place` counts the steps of all clients */
INLINE Move at_step(Move how, const Rule *rule, int64_t place) {
    if (how.kind != ADAM) return how;
    how.rate = (float)rule->rate / rule->bias[2 * place];
    how.second = 1 / rule->bias[2 * place + 1];
    return how;
}

INLINE V root(V v) {
    V found = v;
    for (int i = 0; i < WIDE; i++) found[i] = __builtin_sqrtf(v[i]);
    return found;
}

/* weights after their step; where `which` is not set they stay */
INLINE V moved(V w, V g, float *const *beside, int64_t at, Move how, I which) {
    V next;
    int some = how.uses >> FREE & 1;  /* the others stay as they are, whatever the gradient */
    if (some) which &= load(beside[FREE] + at) > all(0);
    if (how.uses & 1 << START) g += how.pull * (w - load(beside[START] + at));
    if (how.uses & 1 << PUSH) g += load(beside[PUSH] + at);
    if (how.kind == PLAIN) {
        next = how.shrink * w - how.rate * g;
    } else {
        if (how.decay) g += how.decay * w;
        V old = load(beside[FIRST] + at), first = old;
        if (how.kind == HEAVY) {
            first = how.momentum * first + g;
            next = w - how.rate * first;
        } else {
            V before = load(beside[SECOND] + at), second = how.keep * before + how.fresh * (g * g);
            first += how.blend * (g - first);
            store(beside[SECOND] + at, some ? choose(which, second, before) : second);
            next = w - how.rate * (first / (root(how.second * second) + how.eps));
        }
        store(beside[FIRST] + at, some ? choose(which, first, old) : first);
    }
    return choose(which, next, w);
}

INLINE float moved_one(float w, float g, float *const *beside, int64_t at, Move how) {
    if (how.uses & 1 << FREE && beside[FREE][at] <= 0) return w;
    if (how.uses & 1 << START) g += how.pull * (w - beside[START][at]);
    if (how.uses & 1 << PUSH) g += beside[PUSH][at];
    if (how.kind == PLAIN) return how.shrink * w - how.rate * g;
    if (how.decay) g += how.decay * w;
    float *first = beside[FIRST] + at;
    if (how.kind == HEAVY) {
        *first = how.momentum * *first + g;
        return w - how.rate * *first;
    }
    float *second = beside[SECOND] + at;
    *second = how.keep * *second + how.fresh * (g * g);
    *first += how.blend * (g - *first);
    return w - how.rate * (*first / (__builtin_sqrtf(how.second * *second) + how.eps));
}
