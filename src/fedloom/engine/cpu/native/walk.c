/* All steps of some clients: gather, forward, backward, step. `net.h` describes the layout of memory.
 *
 * With at least as many clients as threads, every thread trains clients of its own; else all threads share each client.
 * Sums are added in an order that does not depend on that.
 */
#include "net.h"
#include "move.h"
#include "dense.h"
#include "conv.h"
#include "room.h"
#include "head.h"

/* copy an image [channels][height][width] into its frame, channels last */
static void frame(const Layer *l, const float *from, float *to) {
    Given is = l->is;
    for (int64_t y = 0; y < is.height; y++)
        for (int64_t x = 0; x < is.width; x++)
            for (int64_t c = 0; c < is.inputs; c++)
                to[(y + is.down) * l->line + (x + is.right) * is.inputs + c] = from[(c * is.height + y) * is.width + x];
}

/* where a layer writes its results: the next layer's inputs of example n, and the distance of their rows */
static float *results(const Net *net, int64_t layer, int64_t n, int64_t *apart) {
    const Layer *l = &net->layer[layer], *next = l + 1;
    float *x = next->x + n * next->image;
    *apart = next->is.conv ? next->line : l->new_w * l->is.outputs;
    return next->is.conv ? x + next->is.down * next->line + next->is.right * next->is.inputs : x;
}

/* one example through all convolutions, forwards */
static void convs_up(Net *net, const float *x, int64_t features, int64_t n) {
    frame(&net->layer[0], x + net->which[n] * features, net->layer[0].x + n * net->layer[0].image);
    for (int64_t i = 0; i < net->convs; i++) {
        int64_t apart;
        float *to = results(net, i, n, &apart);
        conv_up(&net->layer[i], n, to, apart);
    }
}

/* one example through all convolutions, backwards: its gradients are added to the sums of its part */
static void convs_down(Net *net, int64_t n, int64_t part, float *own) {
    float *images[2] = {own, own + net->image_size}, *rest = own + 2 * net->image_size;
    const float *g = net->below + n * net->layer[net->convs].is.inputs;
    int64_t g_line = net->layer[net->convs - 1].new_w * net->layer[net->convs - 1].is.outputs;
    for (int64_t i = net->convs - 1; i >= 0; i--) {
        Layer *l = &net->layer[i];
        int64_t channels = i + 1 < net->convs ? (l + 1)->reach : l->is.outputs, out_line;
        const float *out = results(net, i, n, &out_line);
        int64_t room = l->new_h * l->new_w + 1;
        Left left = {room, (int64_t *)rest, (Entry *)rest + channels};
        int64_t listed = i && !l->window ? channels : l->is.moving_outputs;
        sift(l, n, g, g_line, channels, out, out_line, &left, listed);
        conv_gather(l, n, part, &left);
        if (!i) break;
        if (l->window) conv_windows(l, n, g, g_line, out, out_line, images[i & 1], rest);
        else conv_spread(l, images[i & 1], &left);
        g_line = l->line / l->is.inputs * l->reach;
        g = images[i & 1] + l->is.down * g_line + l->is.right * l->reach;
    }
}

/* point to the inputs of dense layers; without convolutions, the first layer's inputs are the examples themselves */
static void point(Net *net) {
    for (int64_t i = net->convs ? net->convs : 1; i < net->layers; i++)
        for (int64_t n = 0; n < net->batch; n++)
            net->rows[i * net->batch + n] = net->layer[i].x + n * net->layer[i].image;
}

/* the outputs of all dense layers; those of the last layer lie in its slope */
static void dense_all_up(Net *net, int64_t examples, Team team) {
    for (int64_t i = net->convs; i < net->layers; i++) {
        Layer *l = &net->layer[i];
        int last = i + 1 == net->layers;
        float *to = last ? l->slope : (l + 1)->x;
        int64_t apart = last ? l->panels * WIDE : l->is.outputs;
        dense_up(l, net->rows + i * net->batch, to, apart, l->is.outputs, examples, team);
        wait(team);
    }
}

/* one step of the first `examples` examples of `which` */
static double step(Net *net, const float *x, int64_t features, const Head *head, int64_t examples, Move how,
                   Team team) {
    int64_t convs = net->convs, last = net->layers - 1;
    for (int64_t part = team.me; convs && part < PARTS; part += team.all)
        for (int64_t n = part * examples / PARTS; n < (part + 1) * examples / PARTS; n++) convs_up(net, x, features, n);
    for (int64_t n = 0; !convs && !team.me && n < examples; n++) net->rows[n] = x + net->which[n] * features;
    wait(team);
    dense_all_up(net, examples, team);
    judge(net, head, examples, team);
    wait(team);
    double loss = 0;
    for (int64_t n = 0; !team.me && n < examples; n++) loss += net->losses[n];
    for (int64_t i = last; i >= convs; i--) {
        Layer *l = &net->layer[i];
        const float *const *rows = net->rows + i * net->batch;
        if (i > convs) {
            Layer *under = l - 1;
            dense_down(l, rows, under->slope, under->panels * WIDE, l->reach, under->is.relu, examples, team);
        } else if (convs) {
            dense_down(l, rows, net->below, l->is.inputs, l->is.inputs, 0, examples, team);
        }
        wait(team);
        dense_step(l, rows, examples, how, team);
    }
    if (convs) {
        for (int64_t part = team.me; part < PARTS; part += team.all) {
            for (int64_t i = 0; i < convs; i++) {
                Layer *l = &net->layer[i];
                int64_t each = l->is.outputs * l->is.rows * l->gathers * WIDE;
                memset(l->sums + part * each, 0, each * sizeof(float));
                memset(l->sums + PARTS * each + part * l->is.outputs, 0, l->is.outputs * sizeof(float));
            }
            for (int64_t n = part * examples / PARTS; n < (part + 1) * examples / PARTS; n++)
                convs_down(net, n, part, net->own + team.me * net->own_size);
        }
        wait(team);
        for (int64_t i = 0; i < convs; i++) conv_step(&net->layer[i], how, team);
    }
    wait(team);
    return loss;
}

/* reset the moments of the previous client */
static void forget(Net *net, int beside) {
    for (int64_t i = 0; i < net->layers; i++) {
        Layer *l = &net->layer[i];
        int64_t numbers = l->is.conv ? l->is.outputs * l->is.rows * l->stretch * WIDE : l->panels * l->apart;
        memset(l->beside[beside], 0, numbers * sizeof(float));
        memset(l->bias_beside[beside], 0, l->panels * WIDE * sizeof(float));
    }
}

/* all clients' steps, as the caller describes them */
typedef struct {
    int64_t most, numbers;   /* steps that a client may take, numbers of its vector */
    float *params;           /* [clients][numbers] */
    const int64_t *neurons;  /* [clients][all], or 0 */
    int64_t all;
    const float *x;
    int64_t features;
    const Head *head;
    const int64_t *order;    /* [clients][most][batch] */
    const uint8_t *real;
    const int64_t *steps;    /* [clients] */
    const Rule *rule;
} Walk;

/* all steps of one client */
static double walk(Net *net, const Walk *of, int64_t client, Team team) {
    const Rule *rule = of->rule;
    const int64_t *neurons = of->neurons ? of->neurons + client * of->all : 0;
    const int64_t *order = of->order + client * of->most * net->batch;
    const uint8_t *real = of->real + client * of->most * net->batch;
    int64_t place = client * of->numbers;
    float *params = of->params + place;
    Move how = move_of(rule, client);
    double loss = 0;
    for (int k = FIRST; k <= SECOND; k++) {
        if (!(rule->uses >> k & 1)) continue;
        if (rule->kept[k]) pack(net, rule->kept[k] + place, neurons, k, 0, team);
        else if (!team.me) forget(net, k);
    }
    if (rule->uses >> START & 1) pack(net, params, neurons, START, 0, team);
    if (rule->uses >> PUSH & 1) pack(net, (float *)rule->push + place, neurons, PUSH, 0, team);
    if (rule->uses >> FREE & 1) pack(net, (float *)rule->free + place, neurons, FREE, 0, team);
    pack(net, params, neurons, WEIGHTS, 0, team);
    for (int64_t s = 0; s < of->steps[client]; s++) {
        int64_t examples = 0;
        for (int64_t b = 0; b < net->batch; b++) examples += real[s * net->batch + b];
        if (!team.me)
            for (int64_t b = 0, n = 0; b < net->batch; b++)
                if (real[s * net->batch + b]) net->which[n++] = order[s * net->batch + b];
        wait(team);
        Move now = at_step(how, rule, client * of->most + s);
        if (examples) loss += step(net, of->x, of->features, of->head, examples, now, team);
    }
    pack(net, params, neurons, WEIGHTS, 1, team);
    for (int k = FIRST; k <= SECOND; k++)
        if (rule->kept[k]) pack(net, rule->kept[k] + place, neurons, k, 1, team);
    wait(team);
    return loss;
}

/* bytes that a team of `threads` threads needs; uses: bits of what lies beside the weights */
int64_t fedloom_room(const Given *given, int64_t layers, int64_t batch, int64_t uses, int64_t threads) {
    Net net;
    return lay_out(&net, given, layers, batch, uses, threads, 0);
}

/* All steps of clients, whose vectors [clients][numbers] change in place. Not 0 is returned if a label is not a class.
 *
 * neurons: all neurons of each layer in turn, trained ones first [clients][all]; 0: all are trained.
 * order, real: the examples of each batch, and which of them count [clients][most][batch].
 * room: room_size bytes for every thread that trains alone, or room_size bytes that all threads share. */
int64_t fedloom_walk(const Given *given, int64_t layers, int64_t batch, int64_t clients, int64_t most, float *params,
                     int64_t numbers, const int64_t *neurons, const float *x, int64_t features, const Head *head,
                     const int64_t *order, const uint8_t *real, const int64_t *steps, const Rule *rule, double *losses,
                     char *room, int64_t room_size, int64_t threads) {
    int alone = clients >= threads;  /* every thread trains clients of its own */
    int64_t wrong = 0, outputs = 0;
    for (int64_t i = 0; i < layers; i++) outputs += given[i].outputs;
    Walk of = {most, numbers, params, neurons, outputs, x, features, head, order, real, steps, rule};
#pragma omp parallel num_threads(threads) reduction(| : wrong)
    {
        int64_t me = omp_get_thread_num();
        Team team = alone ? (Team){0, 1} : (Team){me, omp_get_num_threads()};  /* perhaps fewer than asked for */
        char *base = room + (alone ? me * room_size : 0);
        Net net;
        lay_out(&net, given, layers, batch, rule->uses, team.all, base);
        int64_t begin = team.me * room_size / team.all;
        memset(base + begin, 0, (team.me + 1) * room_size / team.all - begin);  /* frames, and the padding of panels */
        wait(team);
        if (!team.me) point(&net);
#pragma omp for schedule(dynamic, 1)
        for (int64_t c = 0; c < (alone ? clients : 0); c++) losses[c] = walk(&net, &of, c, team);
        for (int64_t c = 0; c < (alone ? 0 : clients); c++) {
            double loss = walk(&net, &of, c, team);
            if (!me) losses[c] = loss;
        }
        wrong |= net.wrong;
    }
    return wrong;
}

/* Outputs of every client's network [clients][numbers] for its own examples [clients][count][features], written to
 * out [clients][count][classes]. Threads take pieces of at most `batch` examples; room: room_size bytes for each. */
void fedloom_outputs(const Given *given, int64_t layers, int64_t batch, int64_t clients, int64_t count, float *params,
                     int64_t numbers, const float *x, int64_t features, float *out, char *room, int64_t room_size,
                     int64_t threads) {
    int64_t classes = given[layers - 1].outputs, pieces = (count + batch - 1) / batch;
#pragma omp parallel num_threads(threads)
    {
        Team team = {0, 1};
        Net net;
        char *base = room + omp_get_thread_num() * room_size;
        int64_t packed = -1;
        memset(base, 0, room_size);
        lay_out(&net, given, layers, batch, 0, 1, base);
        point(&net);
        Layer *last = &net.layer[layers - 1];
#pragma omp for schedule(dynamic, 1)
        for (int64_t piece = 0; piece < clients * pieces; piece++) {
            int64_t client = piece / pieces, first = piece % pieces * batch, examples = least(batch, count - first);
            if (client != packed) pack(&net, params + client * numbers, 0, WEIGHTS, 0, team);
            packed = client;
            for (int64_t n = 0; n < examples; n++) {
                net.which[n] = client * count + first + n;
                net.rows[n] = x + net.which[n] * features;
                if (net.convs) convs_up(&net, x, features, n);
            }
            dense_all_up(&net, examples, team);
            for (int64_t n = 0; n < examples; n++)
                memcpy(out + net.which[n] * classes, last->slope + n * last->panels * WIDE, classes * sizeof(float));
        }
    }
}
