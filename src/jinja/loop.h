/* A running for loop, and the variable `loop` that shows it to the template. As in jinja2, the loop looks one
 * item ahead only if the template asks for loop.last or loop.nextitem: the condition of a loop may depend on
 * variables that its body sets. */
#ifndef OT_JINJA_LOOP_H
#define OT_JINJA_LOOP_H

#include "src/jinja/call.h"

struct ot_jinja_loop {
    struct ot_jinja_reader reader;
    /* Tells whether an item belongs to the loop; NULL: all do. Returns 1, 0 or an error. */
    int (*accepts)(void *context, const struct ot_jinja_value *item);
    void *context;
    struct ot_jinja_value current, previous, next, seen; /* seen: of loop.changed; ABSENT: none */
    bool peeked, has_next;
    size_t count; /* items that were begun */
};

/* Moves to the next item. Returns 1, 0 at the end, or an error. */
int ot_jinja_loop_next(struct ot_jinja_heap *heap, struct ot_jinja_loop *loop);
int ot_jinja_loop_attribute(struct ot_jinja_heap *heap, struct ot_jinja_loop *loop,
                            const struct ot_jinja_string *name, bool *found, struct ot_jinja_value *out);

#endif
