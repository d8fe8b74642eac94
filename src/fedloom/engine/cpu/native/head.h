/* Losses, and the gradients that the last layer starts from.
 *
 * An example counts as much as its class's weight, or 1, divided by the sum over its batch.
 */
#include <float.h>

enum { SOFTMAX, SQUARED, BINARY };

/* a loss and the targets that it reads; `head.py` writes them in this order */
typedef struct {
    int64_t kind, width;     /* targets of an example: one class, or as many as there are outputs */
    const void *targets;     /* whole numbers (squared: float) of all examples */
    const float *weights;    /* softmax: of every output; binary: of targets 1; 0: there are none */
    double smoothing;        /* softmax: the part of a target that all classes share */
} Head;

/* softmax cross-entropy: the loss, and the gradient in place of the outputs */
INLINE float softmax(float *out, int64_t classes, int64_t label, float share) {
    float most = out[0], sum = 0, right = out[label];
    for (int64_t c = 1; c < classes; c++) most = out[c] > most ? out[c] : most;
    for (int64_t c = 0; c < classes; c++) sum += out[c] = expf(out[c] - most);
    for (int64_t c = 0; c < classes; c++) out[c] = share * (out[c] / sum);
    out[label] -= share;
    return share * (most + logf(sum) - right);
}

/* the same with class weights and smoothing; each class has a part in the target, and `parts` is their sum */
INLINE float weighed_softmax(float *out, int64_t classes, int64_t label, float share, const Head *head) {
    const float *weights = head->weights;
    float own = (float)(1 - head->smoothing) * (weights ? weights[label] : 1);
    float spread = (float)(head->smoothing / (double)classes), most = out[0], sum = 0, parts = 0, hits = 0;
    for (int64_t c = 1; c < classes; c++) most = out[c] > most ? out[c] : most;
    for (int64_t c = 0; c < classes; c++) {
        float part = spread * (weights ? weights[c] : 1) + (c == label ? own : 0), below = out[c] - most;
        parts += part;
        if (part) hits += part * below;
        sum += out[c] = expf(below);
    }
    for (int64_t c = 0; c < classes; c++) {
        float part = spread * (weights ? weights[c] : 1) + (c == label ? own : 0);
        out[c] = share * (out[c] / sum * parts - part);
    }
    return share * (parts * logf(sum) - hits);
}

/* the mean of squared errors */
INLINE float squared(float *out, int64_t outputs, const float *target, float share) {
    float loss = 0, each = share / (float)outputs;
    for (int64_t c = 0; c < outputs; c++) {
        float error = out[c] - target[c];
        loss += error * error;
        out[c] = 2 * each * error;
    }
    return each * loss;
}

/* the mean of binary cross-entropies of logits; `positive` multiplies the loss of targets 1 */
INLINE float binary(float *out, int64_t outputs, const int64_t *target, float share, float positive) {
    float loss = 0, each = share / (float)outputs;
    for (int64_t c = 0; c < outputs; c++) {
        float logit = out[c], y = (float)target[c], scale = 1 + (positive - 1) * y;
        loss += (1 - y) * logit + scale * (log1pf(expf(-fabsf(logit))) + (logit < 0 ? -logit : 0));
        out[c] = each * (1 - y - scale / (1 + expf(logit)));
    }
    return each * loss;
}

/* what one unit of weight counts for in this batch; 0 if nothing in it has any */
static float unit(const Net *net, const Head *head, int64_t classes, int64_t examples) {
    if (head->kind != SOFTMAX || !head->weights) return 1.0f / (float)examples;
    float sum = 0;
    for (int64_t n = 0; n < examples; n++) {
        int64_t label = ((const int64_t *)head->targets)[net->which[n]];
        if (label >= 0 && label < classes) sum += head->weights[label];
    }
    return sum < FLT_MIN ? 0 : 1 / sum;
}

/* losses, and the gradients of the last layer's outputs in place of these; labels that are not a class have neither */
static void judge(Net *net, const Head *head, int64_t examples, Team team) {
    Layer *l = &net->layer[net->layers - 1];
    int64_t outputs = l->is.outputs;
    float share = unit(net, head, outputs, examples);
    for (int64_t n = team.me * examples / team.all; n < (team.me + 1) * examples / team.all; n++) {
        float *out = l->slope + n * l->panels * WIDE, *loss = net->losses + n;
        int64_t target = net->which[n] * head->width;
        if (head->kind == SQUARED) {
            *loss = squared(out, outputs, (const float *)head->targets + target, share);
            continue;
        }
        const int64_t *classes = (const int64_t *)head->targets + target, label = *classes;
        if (head->kind == BINARY) *loss = binary(out, outputs, classes, share, head->weights ? *head->weights : 1);
        else if (label < 0 || label >= outputs) net->wrong = 1;
        else if (!head->weights && !head->smoothing) *loss = softmax(out, outputs, label, share);
        else if (!head->weights || head->weights[label] > 0) *loss = weighed_softmax(out, outputs, label, share, head);
        else memset(out, 0, outputs * sizeof(float)), *loss = 0;  /* it counts for nothing */
    }
}
