/* All steps of some clients: gather, forwards, backwards, move. See `net.h` for how things lie.
 *
 * With as many clients as threads or more, every thread takes clients of its own; else all threads share each client.
 * Sums are added in an order that does not depend on which.
 */
#include "net.h"
#include "dense.h"
#include "conv.h"

typedef struct {
    char *base;
    int64_t used;
} Room;

static void *take(Room *room, int64_t numbers, int64_t size) {
    char *found = room->base ? room->base + room->used : 0;
    room->used += up(numbers * size, 64);
    return found;
}

static float *floats(Room *room, int64_t numbers) { return take(room, numbers + WIDE, sizeof(float)); }

/* everything in its place; without a base only the size is found */
static int64_t lay_out(Net *net, const Given *given, int64_t layers, int64_t batch, int momentum, int64_t threads,
                       char *base) {
    Room room = {base, 0};
    int64_t own = 0, lists = 0;
    net->layers = layers, net->batch = batch, net->convs = net->wrong = 0;
    for (int64_t i = 0; i < layers; i++) {
        Layer *l = &net->layer[i];
        Given is = l->is = given[i];
        net->convs += is.conv;
        l->panels = (is.outputs + WIDE - 1) / WIDE;
        l->reads = is.inputs * is.rows * is.columns;
        l->apart = (l->reads | 1) * WIDE;  /* even ones would fall into few places of a cache */
        l->fan = is.conv ? 1 : is.height * is.width;
        l->line = is.conv ? (is.width + 2 * is.right) * is.inputs : is.inputs;
        l->image = is.conv ? (is.height + 2 * is.down) * l->line : is.inputs;
        l->out_h = is.height + 2 * is.down - is.rows + 1, l->out_w = is.width + 2 * is.right - is.columns + 1;
        l->new_h = is.pool ? l->out_h / 2 : l->out_h, l->new_w = is.pool ? l->out_w / 2 : l->out_w;
        /* below the first layer nothing moves, so that of its outputs only those that move need gradients */
        l->reach = i == 1 && l->fan == 1 ? is.moving_inputs : is.inputs;
        l->weight = floats(&room, l->panels * l->apart);
        l->bias = floats(&room, l->panels * WIDE);
        l->bias_speed = momentum ? floats(&room, l->panels * WIDE) : 0;
        if (i || is.conv) l->x = floats(&room, batch * l->image);
        if (is.conv) {
            l->stretch = (is.columns * is.inputs + WIDE - 1) / WIDE;
            l->narrow = (is.columns * l->reach + WIDE - 1) / WIDE;
            int few = is.moving_inputs < is.inputs && is.moving_inputs <= WIDE;  /* of every column one vector moves */
            l->hop = few ? is.inputs : WIDE, l->gathers = few ? is.columns : l->stretch;
            int64_t each = is.outputs * is.rows * WIDE;
            l->filters = floats(&room, each * l->stretch);
            l->speed = momentum ? floats(&room, each * l->stretch) : 0;
            l->back = l->reach == is.inputs ? l->filters : floats(&room, each * l->narrow);
            l->sums = floats(&room, PARTS * (each * l->gathers + is.outputs));
            l->place = take(&room, is.pool ? batch * l->new_h * l->new_w * is.outputs + WIDE : 0, 1);
            if (i) own = own > l->image ? own : l->image;
            int64_t most = is.outputs * (l->new_h * l->new_w + 2);
            lists = lists > most ? lists : most;
        } else {
            l->speed = momentum ? floats(&room, l->panels * l->apart) : 0;
            l->slope = floats(&room, batch * l->panels * WIDE);
        }
    }
    Layer *dense = &net->layer[net->convs];
    net->below = net->convs ? floats(&room, batch * dense->is.inputs) : 0;
    net->rows = take(&room, layers * batch, sizeof(float *));
    net->which = take(&room, batch, sizeof(int64_t));
    net->losses = floats(&room, batch);
    net->image_size = up(own + WIDE, 16);
    net->own_size = 2 * net->image_size + 2 * up(lists + WIDE, 16);
    net->own = floats(&room, net->convs ? threads * net->own_size : 0);
    return room.used;
}

/* a client's numbers into panels and filters, its neurons in the given order (0: their own), or back: all that moves */
static void pack(Net *net, float *params, const int64_t *order, int out, Team team) {
    const int64_t *before = 0;
    for (int64_t i = 0; i < net->layers; i++) {
        Layer *l = &net->layer[i];
        Given is = l->is;
        int64_t channels = is.inputs / l->fan, size = is.rows * is.columns;
        int64_t outputs = out ? is.moving_outputs : is.outputs, inputs = out ? is.moving_inputs / l->fan : channels;
        for (int64_t o = team.me * outputs / team.all; o < (team.me + 1) * outputs / team.all; o++) {
            int64_t row = order ? order[o] : o;
            float *w = params + is.at_weight + row * is.inputs * size;
            for (int64_t c = 0; c < inputs; c++) {
                float *there = w + (before ? before[c] : c) * size * l->fan, *here;
                if (is.conv)
                    for (int64_t y = 0; y < is.rows; y++)
                        for (int64_t x = 0; x < is.columns; x++, there++) {
                            here = l->filters + (o * is.rows + y) * l->stretch * WIDE + x * is.inputs + c;
                            *(out ? there : here) = *(out ? here : there);
                        }
                else
                    for (int64_t f = 0; f < l->fan; f++, there++) {  /* flattened by channels, ours by places */
                        here = l->weight + (o / WIDE) * l->apart + (f * channels + c) * WIDE + o % WIDE;
                        *(out ? there : here) = *(out ? here : there);
                    }
            }
            if (is.conv && !out) conv_lay(l, o);
            float *bias = params + is.at_bias + row;
            if (is.bias) *(out ? bias : l->bias + o) = *(out ? l->bias + o : bias);
        }
        before = order;
        order = order ? order + is.outputs : 0;
    }
}

/* an image [channels][height][width] into its frame, channels last */
static void frame(const Layer *l, const float *from, float *to) {
    Given is = l->is;
    for (int64_t y = 0; y < is.height; y++)
        for (int64_t x = 0; x < is.width; x++)
            for (int64_t c = 0; c < is.inputs; c++)
                to[(y + is.down) * l->line + (x + is.right) * is.inputs + c] = from[(c * is.height + y) * is.width + x];
}

/* where a layer's results go: the next layer's inputs of example n, and how far apart their rows are */
static float *results(const Net *net, int64_t layer, int64_t n, int64_t *apart) {
    const Layer *l = &net->layer[layer], *next = l + 1;
    float *x = next->x + n * next->image;
    *apart = next->is.conv ? next->line : l->new_w * l->is.outputs;
    return next->is.conv ? x + next->is.down * next->line + next->is.right * next->is.inputs : x;
}

static void convs_up(Net *net, const float *x, int64_t features, int64_t n) {
    frame(&net->layer[0], x + net->which[n] * features, net->layer[0].x + n * net->layer[0].image);
    for (int64_t i = 0; i < net->convs; i++) {
        int64_t apart;
        float *to = results(net, i, n, &apart);
        conv_up(&net->layer[i], n, to, apart);
    }
}

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
        sift(l, n, g, g_line, channels, out, out_line, &left);
        conv_gather(l, n, part, &left);
        if (!i) break;
        conv_spread(l, images[i & 1], &left);
        g_line = l->line / l->is.inputs * l->reach;
        g = images[i & 1] + l->is.down * g_line + l->is.right * l->reach;
    }
}

/* losses, and the gradients of the last layer's outputs in their place; a label that is no class has neither */
static void judge(Net *net, const int64_t *y, int64_t examples, Team team) {
    Layer *l = &net->layer[net->layers - 1];
    int64_t classes = l->is.outputs;
    float share = 1.0f / (float)examples;
    for (int64_t n = team.me * examples / team.all; n < (team.me + 1) * examples / team.all; n++) {
        int64_t label = y[net->which[n]];
        if (label < 0 || label >= classes) {
            net->wrong = 1;
            continue;
        }
        float *out = l->slope + n * l->panels * WIDE, most = out[0], sum = 0, right = out[label];
        for (int64_t c = 1; c < classes; c++) most = out[c] > most ? out[c] : most;
        for (int64_t c = 0; c < classes; c++) sum += out[c] = expf(out[c] - most);
        net->losses[n] = share * (most + logf(sum) - right);
        for (int64_t c = 0; c < classes; c++) out[c] = share * (out[c] / sum);
        out[label] -= share;
    }
}

/* one step of the first so many examples of `which` */
static double step(Net *net, const float *x, int64_t features, const int64_t *y, int64_t examples, Move how,
                   Team team) {
    int64_t convs = net->convs, last = net->layers - 1;
    for (int64_t part = team.me; convs && part < PARTS; part += team.all)
        for (int64_t n = part * examples / PARTS; n < (part + 1) * examples / PARTS; n++) convs_up(net, x, features, n);
    for (int64_t n = 0; !convs && !team.me && n < examples; n++) net->rows[n] = x + net->which[n] * features;
    wait(team);
    for (int64_t i = convs; i <= last; i++) {
        Layer *l = &net->layer[i];
        float *to = i < last ? (l + 1)->x : l->slope;
        int64_t apart = i < last ? l->is.outputs : l->panels * WIDE;
        dense_up(l, net->rows + i * net->batch, to, apart, l->is.outputs, examples, team);
        wait(team);
    }
    judge(net, y, examples, team);
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

/* velocities of the client before */
static void forget(Net *net) {
    for (int64_t i = 0; i < net->layers; i++) {
        Layer *l = &net->layer[i];
        int64_t numbers = l->is.conv ? l->is.outputs * l->is.rows * l->stretch * WIDE : l->panels * l->apart;
        if (l->speed) memset(l->speed, 0, numbers * sizeof(float));
        if (l->bias_speed) memset(l->bias_speed, 0, l->panels * WIDE * sizeof(float));
    }
}

static double walk(Net *net, float *params, const int64_t *neurons, const float *x, int64_t features,
                   const int64_t *y, const int64_t *order,
                   const uint8_t *real, int64_t steps, Move how, Team team) {
    double loss = 0;
    if (!team.me) forget(net);
    pack(net, params, neurons, 0, team);
    for (int64_t s = 0; s < steps; s++) {
        int64_t examples = 0;
        for (int64_t b = 0; b < net->batch; b++) examples += real[s * net->batch + b];
        if (!team.me)
            for (int64_t b = 0, n = 0; b < net->batch; b++)
                if (real[s * net->batch + b]) net->which[n++] = order[s * net->batch + b];
        wait(team);
        if (examples) loss += step(net, x, features, y, examples, how, team);
    }
    pack(net, params, neurons, 1, team);
    wait(team);
    return loss;
}

/* bytes that a team of so many threads needs */
int64_t fedloom_room(const Given *given, int64_t layers, int64_t batch, int64_t momentum, int64_t threads) {
    Net net;
    return lay_out(&net, given, layers, batch, momentum != 0, threads, 0);
}

/* All steps of clients whose vectors [clients][numbers] move in place. Not zero: a label is no class.
 *
 * neurons: of every layer in turn, all neurons, those that move first [clients][all]; 0: everything moves.
 * order, real: which examples make up a batch, and which of them count [clients][most][batch].
 * room: a part of room_size for every thread by itself, or one that all share. */
int64_t fedloom_walk(const Given *given, int64_t layers, int64_t batch, int64_t clients, int64_t most, float *params,
                     int64_t numbers, const int64_t *neurons, const float *x, int64_t features, const int64_t *y,
                     const int64_t *order, const uint8_t *real, const int64_t *steps, double rate, double shrink,
                     double momentum, double *losses, char *room, int64_t room_size, int64_t threads) {
    Move how = {(float)rate, (float)shrink, (float)momentum};
    int alone = clients >= threads;  /* every thread by itself */
    int64_t wrong = 0, outputs = 0;
    for (int64_t i = 0; i < layers; i++) outputs += given[i].outputs;
#pragma omp parallel num_threads(threads) reduction(| : wrong)
    {
        int64_t me = omp_get_thread_num();
        Team team = alone ? (Team){0, 1} : (Team){me, threads};
        char *base = room + (alone ? me * room_size : 0);
        Net net;
        lay_out(&net, given, layers, batch, momentum != 0, team.all, base);
        int64_t begin = team.me * room_size / team.all;
        memset(base + begin, 0, (team.me + 1) * room_size / team.all - begin);  /* frames, and what fills up panels */
        wait(team);
        for (int64_t i = net.convs ? 0 : 1; !team.me && i < layers; i++)
            for (int64_t n = 0; n < batch; n++) net.rows[i * batch + n] = net.layer[i].x + n * net.layer[i].image;
#pragma omp for schedule(dynamic, 1)
        for (int64_t c = 0; c < (alone ? clients : 0); c++)
            losses[c] = walk(&net, params + c * numbers, neurons ? neurons + c * outputs : 0, x, features, y,
                             order + c * most * batch, real + c * most * batch, steps[c], how, team);
        for (int64_t c = 0; c < (alone ? 0 : clients); c++) {
            double loss = walk(&net, params + c * numbers, neurons ? neurons + c * outputs : 0, x, features, y,
                               order + c * most * batch, real + c * most * batch, steps[c], how, team);
            if (!me) losses[c] = loss;
        }
        wrong |= net.wrong;
    }
    return wrong;
}
