/* ot_min(a, b), ot_max(a, b): the smaller and the larger of two numbers. As with `a < b ? a : b`, the result
 * has the common type of both, and b is the result if one is a NaN. Each argument is evaluated once. They are
 * not constant expressions, and C++ (a header that a .cu file includes) does not have them. */
#ifndef OT_BASE_MINMAX_H
#define OT_BASE_MINMAX_H

#define OT_MINMAX(name, type)                                                                                \
    static inline type ot_min_##name(type a, type b) {                                                       \
        return a < b ? a : b;                                                                                \
    }                                                                                                        \
    static inline type ot_max_##name(type a, type b) {                                                       \
        return a > b ? a : b;                                                                                \
    }
OT_MINMAX(int, int)
OT_MINMAX(unsigned, unsigned)
OT_MINMAX(long, long)
OT_MINMAX(size, unsigned long)
OT_MINMAX(float, float)
OT_MINMAX(double, double)
#undef OT_MINMAX

/* The condition is not evaluated: its type is the common one. */
#define OT_MINMAX_OF(which, a, b)                                                                            \
    _Generic(0 ? (a) : (b), int                                                                              \
             : which##_int, unsigned                                                                         \
             : which##_unsigned, long                                                                        \
             : which##_long, unsigned long                                                                   \
             : which##_size, float                                                                           \
             : which##_float, double                                                                         \
             : which##_double)((a), (b))
#define ot_min(a, b) OT_MINMAX_OF(ot_min, a, b)
#define ot_max(a, b) OT_MINMAX_OF(ot_max, a, b)

#endif
