/* The layout of a team's memory, and copies of a client's numbers into it and back. */

typedef struct {
    char *base;
    int64_t used;
} Room;

static void *take(Room *room, int64_t numbers, int64_t size) {
    char *found = room->base ? room->base + room->used : 0;
    room->used += up(numbers * size, 64);
    return found;
}

#define WEIGHTS (-1)

static float *floats(Room *room, int64_t numbers) { return take(room, numbers + WIDE, sizeof(float)); }

/* lay out the memory at `base`, and return its size; without a base, only the size */
static int64_t lay_out(Net *net, const Given *given, int64_t layers, int64_t batch, int64_t uses, int64_t threads,
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
        l->apart = (l->reads | 1) * WIDE;  /* even distances would share few cache sets */
        l->fan = is.conv ? 1 : is.height * is.width;
        l->line = is.conv ? (is.width + 2 * is.right) * is.inputs : is.inputs;
        l->image = is.conv ? (is.height + 2 * is.down) * l->line : is.inputs;
        l->new_h = (is.height + 2 * is.down - is.rows + 1) / (is.pool ? 2 : 1);
        l->new_w = (is.width + 2 * is.right - is.columns + 1) / (is.pool ? 2 : 1);
        /* nothing below the first layer is trained, so only its trained outputs need gradients */
        l->reach = i == 1 && l->fan == 1 ? is.moving_inputs : is.inputs;
        l->weight = floats(&room, l->panels * l->apart);
        l->bias = floats(&room, l->panels * WIDE);
        for (int k = 0; k < BESIDE; k++) l->bias_beside[k] = uses >> k & 1 ? floats(&room, l->panels * WIDE) : 0;
        if (i || is.conv) l->x = floats(&room, batch * l->image);
        if (is.conv) {
            l->stretch = (is.columns * is.inputs + WIDE - 1) / WIDE;
            l->narrow = (is.columns * l->reach + WIDE - 1) / WIDE;
            l->window = ((is.columns + 1) * l->reach + WIDE - 1) / WIDE;
            if (!i || !is.pool || is.rows != 3 || l->window > WINDOW) l->window = 0;
            int few = is.moving_inputs < is.inputs && is.moving_inputs <= WIDE;  /* one trained vector per column */
            l->hop = few ? is.inputs : WIDE, l->gathers = few ? is.columns : l->stretch;
            int64_t each = is.outputs * is.rows * WIDE;
            l->filters = floats(&room, each * l->stretch);
            for (int k = 0; k < BESIDE; k++) l->beside[k] = uses >> k & 1 ? floats(&room, each * l->stretch) : 0;
            if (l->window) l->back = floats(&room, is.outputs * 5 * (l->reach + l->window * WIDE));
            else l->back = l->reach == is.inputs ? l->filters : floats(&room, each * l->narrow);
            l->sums = floats(&room, PARTS * (each * l->gathers + is.outputs));
            l->place = take(&room, is.pool ? batch * l->new_h * l->new_w * is.outputs + WIDE : 0, 1);
            if (i) own = own > l->image ? own : l->image;
            int64_t most = is.outputs * (l->new_h * l->new_w + 2);
            lists = lists > most ? lists : most;
        } else {
            for (int k = 0; k < BESIDE; k++) l->beside[k] = uses >> k & 1 ? floats(&room, l->panels * l->apart) : 0;
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

/* One panel of a dense layer: eight rows of a client's vector side by side, or their trained numbers back.
 *
 * rows: where the weights of each of `many` outputs lie. before: the order of the input channels, or 0. */
INLINE void pack_panel(const Layer *l, float *const *rows, int64_t many, float *panel, const int64_t *before,
                       int64_t inputs, int out) {
    int64_t channels = l->is.inputs / l->fan;
    for (int64_t c = 0; c < inputs; c++) {
        int64_t from = (before ? before[c] : c) * l->fan;
        for (int64_t f = 0; f < l->fan; f++) {  /* flattened by channels, ours by places */
            float *here = panel + (f * channels + c) * WIDE;
            if (out) for (int64_t o = 0; o < many; o++) rows[o][from + f] = here[o];
            else for (int64_t o = 0; o < many; o++) here[o] = rows[o][from + f];
        }
    }
}

/* Copy a client's numbers into panels and filters, neurons in the given order (0: their own); or trained ones back.
 *
 * beside: the place of these numbers beside the weights; WEIGHTS: they are the weights. */
static void pack(Net *net, float *params, const int64_t *order, int beside, int out, Team team) {
    const int64_t *before = 0;
    int weights = beside == WEIGHTS;
    for (int64_t i = 0; i < net->layers; i++) {
        Layer *l = &net->layer[i];
        Given is = l->is;
        int64_t inputs = (out ? is.moving_inputs : is.inputs) / l->fan, size = is.rows * is.columns;
        int64_t outputs = out ? is.moving_outputs : is.outputs, each = is.conv ? 1 : WIDE;
        int64_t groups = (outputs + each - 1) / each;  /* filters, or panels */
        float *to = !weights ? l->beside[beside] : is.conv ? l->filters : l->weight;
        float *biases = weights ? l->bias : l->bias_beside[beside];
        for (int64_t g = team.me * groups / team.all; g < (team.me + 1) * groups / team.all; g++) {
            int64_t many = least(each, outputs - g * each);
            float *rows[WIDE];
            for (int64_t o = 0; o < many; o++) {
                int64_t here = g * each + o, row = order ? order[here] : here;
                float *bias = params + is.at_bias + row;
                rows[o] = params + is.at_weight + row * is.inputs * size;
                if (is.bias) *(out ? bias : biases + here) = *(out ? biases + here : bias);
            }
            if (!is.conv) {
                float *panel = to + g * l->apart;
                if (many == WIDE && !before) pack_panel(l, rows, WIDE, panel, 0, inputs, out);
                else pack_panel(l, rows, many, panel, before, inputs, out);
                continue;
            }
            for (int64_t c = 0; c < inputs; c++) {
                float *there = rows[0] + (before ? before[c] : c) * size;
                for (int64_t y = 0; y < is.rows; y++)
                    for (int64_t x = 0; x < is.columns; x++, there++) {
                        float *here = to + (g * is.rows + y) * l->stretch * WIDE + x * is.inputs + c;
                        *(out ? there : here) = *(out ? here : there);
                    }
            }
            if (weights && !out) conv_lay(l, g);
        }
        before = order;
        order = order ? order + is.outputs : 0;
    }
}
