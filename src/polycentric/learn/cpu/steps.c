/* Steps of small dense models on a processor with AVX-512: one client after another takes all its steps.

A step is a list of instructions: products, and what stands between them. Each says where its matrices lie; `take` goes
through the list, step after step, for every client, so that a client's model stays in the cache until it is done. The
numbers of a row lie side by side unless it says otherwise. In which order they are added up depends on shapes alone, never
on addresses: equal clients learn equal bits. */

#include <immintrin.h>
#include <math.h>
#include <stdint.h>

#define EACH(i, n) _Pragma("GCC unroll 8") for (int i = 0; i < (n); i++)
#define INLINE static inline __attribute__((always_inline))
#define LANES 16
#define ROWS 6    /* of a tile of `add_rows`: 6 x 4 vectors are summed in registers */
#define ACROSS 4
#define LEFT 5    /* of a tile of `dots`: 5 x 4 */
#define RIGHT 4

typedef struct {
    int64_t memory, client, row, column; /* which memory, and how far it is to the next of each; memory -1: nowhere */
} Operand;

typedef struct {
    int64_t kind, m, n, k, number; /* `number`: which of the numbers is its factor */
    Operand out, start, a, b;
} Instruction;

enum { PRODUCT, SUM, RELU, RELU_BACK, LOG_SOFTMAX, LOG_SOFTMAX_BACK, ADD, MULTIPLY, DIVIDE, ADD_PRODUCT, SHIFT, ROOT, POWER };

/* F(n) with n as the compiler knows it: tiles of every size are functions of their own. */
#define OF_4(n, F) switch (n) { case 4: F(4); break; case 3: F(3); break; case 2: F(2); break; default: F(1); }
#define OF_5(n, F) if ((n) == 5) F(5); else OF_4(n, F)
#define OF_6(n, F) if ((n) == 6) F(6); else OF_5(n, F)

INLINE __mmask16 up_to(int64_t n) { return n >= LANES ? 0xffff : (__mmask16)((1u << n) - 1); }

/* The sums of four vectors. */
INLINE __m128 sums(__m512 a, __m512 b, __m512 c, __m512 d) {
    __m512 ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    __m512 cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    __m512 all = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xee));
    __m256 half = _mm256_add_ps(_mm512_castps512_ps256(all),
                                _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(all), 1)));
    return _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
}

/* out[i, j] = start[i, j] + factor sum_p a[i, p] b[p, j], where neighbours p lie side by side in a and b. */
INLINE void dots_tile(const int I, const int J, int64_t k, const float *a, int64_t a_row, const float *b,
                      int64_t b_column, float *out, int64_t out_row, const float *start, int64_t start_row,
                      float factor) {
    __m512 sum[LEFT][RIGHT];
    EACH(i, I) EACH(j, RIGHT) sum[i][j] = _mm512_setzero_ps();
    int64_t p = 0;
    for (; p + LANES <= k; p += LANES) {
        __m512 x[LEFT];
        EACH(i, I) x[i] = _mm512_loadu_ps(a + i * a_row + p);
        EACH(j, J) {
            __m512 y = _mm512_loadu_ps(b + j * b_column + p);
            EACH(i, I) sum[i][j] = _mm512_fmadd_ps(x[i], y, sum[i][j]);
        }
    }
    if (p < k) {
        __mmask16 rest = up_to(k - p);
        __m512 x[LEFT];
        EACH(i, I) x[i] = _mm512_maskz_loadu_ps(rest, a + i * a_row + p);
        EACH(j, J) {
            __m512 y = _mm512_maskz_loadu_ps(rest, b + j * b_column + p);
            EACH(i, I) sum[i][j] = _mm512_fmadd_ps(x[i], y, sum[i][j]);
        }
    }
    EACH(i, I) {
        float found[RIGHT];
        _mm_storeu_ps(found, sums(sum[i][0], sum[i][1], sum[i][2], sum[i][3]));
        EACH(j, J) out[i * out_row + j] = (start ? start[i * start_row + j] : 0) + factor * found[j];
    }
}

INLINE void dots_across(const int I, int64_t n, int64_t k, const float *a, int64_t a_row, const float *b,
                        int64_t b_column, float *out, int64_t out_row, const float *start, int64_t start_row,
                        float factor) {
#define TILE(J) dots_tile(I, J, k, a, a_row, b, b_column, out, out_row, start, start_row, factor)
    OF_4(n, TILE)
#undef TILE
}

static void dots(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, const float *b, int64_t b_column,
                 float *out, int64_t out_row, const float *start, int64_t start_row, float factor) {
    int64_t tiles = (m + LEFT - 1) / LEFT;
    for (int64_t j = 0; j < n; j += RIGHT) {
        int64_t wide = n - j < RIGHT ? n - j : RIGHT;
        for (int64_t t = 0; t < tiles; t++) {
            int64_t i = t * m / tiles, high = (t + 1) * m / tiles - i;
#define ROW(I) dots_across(I, wide, k, a + i * a_row, a_row, b + j * b_column, b_column, out + i * out_row + j, \
                           out_row, start ? start + i * start_row + j : 0, start_row, factor)
            OF_5(high, ROW)
#undef ROW
        }
    }
}

/* out[i, :] = start[i, :] + factor sum_p a[i, p] b[p, :], where the columns of b lie side by side. */
INLINE void rows_tile(const int I, const int V, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_column,
                      const float *b, int64_t b_row, float *out, int64_t out_row, const float *start,
                      int64_t start_row, float factor) {
    __m512 sum[ROWS][ACROSS];
    __mmask16 last = up_to(n - (V - 1) * LANES);
    EACH(i, I) EACH(v, V) sum[i][v] = _mm512_setzero_ps();
    for (int64_t p = 0; p < k; p++) {
        __m512 y[ACROSS];
        EACH(v, V) y[v] = _mm512_maskz_loadu_ps(v + 1 < V ? 0xffff : last, b + p * b_row + v * LANES);
        EACH(i, I) {
            __m512 x = _mm512_set1_ps(a[i * a_row + p * a_column]);
            EACH(v, V) sum[i][v] = _mm512_fmadd_ps(x, y[v], sum[i][v]);
        }
    }
    __m512 times = _mm512_set1_ps(factor);
    EACH(i, I) EACH(v, V) {
        __mmask16 here = v + 1 < V ? 0xffff : last;
        __m512 begin = start ? _mm512_maskz_loadu_ps(here, start + i * start_row + v * LANES) : _mm512_setzero_ps();
        _mm512_mask_storeu_ps(out + i * out_row + v * LANES, here, _mm512_fmadd_ps(times, sum[i][v], begin));
    }
}

INLINE void rows_across(const int I, int64_t vectors, int64_t n, int64_t k, const float *a, int64_t a_row,
                        int64_t a_column, const float *b, int64_t b_row, float *out, int64_t out_row,
                        const float *start, int64_t start_row, float factor) {
#define TILE(V) rows_tile(I, V, n, k, a, a_row, a_column, b, b_row, out, out_row, start, start_row, factor)
    OF_4(vectors, TILE)
#undef TILE
}

static void add_rows(int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_column, const float *b,
                     int64_t b_row, float *out, int64_t out_row, const float *start, int64_t start_row, float factor) {
    int64_t vectors = (n + LANES - 1) / LANES, across = (vectors + ACROSS - 1) / ACROSS, tiles = (m + ROWS - 1) / ROWS;
    for (int64_t s = 0; s < across; s++) {
        int64_t from = s * vectors / across, wide = (s + 1) * vectors / across - from, j = from * LANES;
        for (int64_t t = 0; t < tiles; t++) {
            int64_t i = t * m / tiles, high = (t + 1) * m / tiles - i;
#define ROW(I) rows_across(I, wide, n - j < wide * LANES ? n - j : wide * LANES, k, a + i * a_row, a_row, a_column, \
                           b + j, b_row, out + i * out_row + j, out_row, start ? start + i * start_row + j : 0, \
                           start_row, factor)
            OF_6(high, ROW)
#undef ROW
        }
    }
}

/* out = max(a, 0); what is not a number stays so. */
static void relu(int64_t n, const float *a, float *out) {
    for (int64_t i = 0; i < n; i += LANES) {
        __mmask16 here = up_to(n - i);
        __m512 x = _mm512_maskz_loadu_ps(here, a + i);
        _mm512_mask_storeu_ps(out + i, here, _mm512_max_ps(_mm512_setzero_ps(), x));
    }
}

/* out = a where b is above zero. */
static void relu_back(int64_t n, const float *a, const float *b, float *out) {
    for (int64_t i = 0; i < n; i += LANES) {
        __mmask16 here = up_to(n - i);
        __m512 x = _mm512_maskz_loadu_ps(here, b + i);
        __mmask16 off = _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LE_OQ);
        _mm512_mask_storeu_ps(out + i, here, _mm512_maskz_loadu_ps(here & ~off, a + i));
    }
}

/* exp x = 2^k e^r with |r| <= log(2) / 2, whose series is cut after r^7 / 7!, where a float ends. */
INLINE __m512 exponential(__m512 x) {
    x = _mm512_min_ps(_mm512_set1_ps(89), _mm512_max_ps(_mm512_set1_ps(-104), x)); /* beyond: 0, or infinite */
    __m512 k = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(1.44269504f)), 0);
    __m512 r = _mm512_fnmadd_ps(k, _mm512_set1_ps(0.693359375f), x); /* log(2) in two parts, the first of few digits */
    r = _mm512_fnmadd_ps(k, _mm512_set1_ps(-2.12194440e-4f), r);
    const float terms[] = {1 / 720.f, 1 / 120.f, 1 / 24.f, 1 / 6.f, 1 / 2.f, 1, 1};
    __m512 sum = _mm512_set1_ps(1 / 5040.f);
    EACH(i, 7) sum = _mm512_fmadd_ps(sum, r, _mm512_set1_ps(terms[i]));
    return _mm512_scalef_ps(sum, k);
}

/* out[i, :] = a[i, :] - log sum_j exp a[i, j] */
static void log_softmax(int64_t m, int64_t n, const float *a, float *out) {
    for (int64_t i = 0; i < m; i++, a += n, out += n) {
        __m512 high = _mm512_set1_ps(-INFINITY), sum = _mm512_setzero_ps();
        for (int64_t j = 0; j < n; j += LANES)
            high = _mm512_mask_max_ps(high, up_to(n - j), high, _mm512_maskz_loadu_ps(up_to(n - j), a + j));
        __m512 most = _mm512_set1_ps(_mm512_reduce_max_ps(high));
        for (int64_t j = 0; j < n; j += LANES) {
            __m512 x = _mm512_sub_ps(_mm512_maskz_loadu_ps(up_to(n - j), a + j), most);
            sum = _mm512_mask_add_ps(sum, up_to(n - j), sum, exponential(x));
        }
        __m512 log_sum = _mm512_set1_ps(logf(_mm512_reduce_add_ps(sum)));
        for (int64_t j = 0; j < n; j += LANES) {
            __m512 x = _mm512_sub_ps(_mm512_maskz_loadu_ps(up_to(n - j), a + j), most);
            _mm512_mask_storeu_ps(out + j, up_to(n - j), _mm512_sub_ps(x, log_sum));
        }
    }
}

/* out[i, :] = a[i, :] - exp(b[i, :]) sum_j a[i, j], the gradient by what the log-softmax b was of */
static void log_softmax_back(int64_t m, int64_t n, const float *a, const float *b, float *out) {
    for (int64_t i = 0; i < m; i++, a += n, b += n, out += n) {
        __m512 sum = _mm512_setzero_ps();
        for (int64_t j = 0; j < n; j += LANES) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(up_to(n - j), a + j));
        sum = _mm512_set1_ps(_mm512_reduce_add_ps(sum));
        for (int64_t j = 0; j < n; j += LANES) {
            __mmask16 here = up_to(n - j);
            __m512 chance = exponential(_mm512_maskz_loadu_ps(here, b + j));
            _mm512_mask_storeu_ps(out + j, here, _mm512_fnmadd_ps(chance, sum, _mm512_maskz_loadu_ps(here, a + j)));
        }
    }
}

/* Every number by itself: out = a + factor b, factor a b, a / b, start + factor a b,
   a + by, root of a, base^a. A column of 0: one for all. */
INLINE __m512 seen(const float *p, int64_t column, int64_t i, __mmask16 here) {
    return column ? _mm512_maskz_loadu_ps(here, p + i) : _mm512_set1_ps(*p);
}
static void add(int64_t n, const float *a, int64_t ca, const float *b, int64_t cb, float *out, float factor) {
    __m512 times = _mm512_set1_ps(factor);
    for (int64_t i = 0; i < n; i += LANES) {
        __mmask16 here = up_to(n - i);
        _mm512_mask_storeu_ps(out + i, here, _mm512_fmadd_ps(times, seen(b, cb, i, here), seen(a, ca, i, here)));
    }
}
static void multiply(int64_t n, const float *a, int64_t ca, const float *b, int64_t cb, float *out, float factor) {
    __m512 times = _mm512_set1_ps(factor);
    for (int64_t i = 0; i < n; i += LANES) {
        __mmask16 here = up_to(n - i);
        __m512 x = seen(a, ca, i, here);
        if (b) x = _mm512_mul_ps(x, seen(b, cb, i, here));
        _mm512_mask_storeu_ps(out + i, here, _mm512_mul_ps(times, x));
    }
}
static void divide(int64_t n, const float *a, int64_t ca, const float *b, int64_t cb, float *out) {
    for (int64_t i = 0; i < n; i += LANES) {
        __mmask16 here = up_to(n - i);
        _mm512_mask_storeu_ps(out + i, here, _mm512_div_ps(seen(a, ca, i, here), seen(b, cb, i, here)));
    }
}
static void add_product(int64_t n, const float *start, int64_t cs, const float *a, int64_t ca, const float *b,
                        int64_t cb, float *out, float factor) {
    __m512 times = _mm512_set1_ps(factor);
    for (int64_t i = 0; i < n; i += LANES) {
        __mmask16 here = up_to(n - i);
        __m512 product = _mm512_mul_ps(_mm512_mul_ps(times, seen(a, ca, i, here)), seen(b, cb, i, here));
        _mm512_mask_storeu_ps(out + i, here, _mm512_add_ps(seen(start, cs, i, here), product));
    }
}

static void shift(int64_t n, const float *a, int64_t ca, float *out, float by) {
    for (int64_t i = 0; i < n; i += LANES) {
        __mmask16 here = up_to(n - i);
        _mm512_mask_storeu_ps(out + i, here, _mm512_add_ps(seen(a, ca, i, here), _mm512_set1_ps(by)));
    }
}
static void root(int64_t n, const float *a, int64_t ca, float *out) {
    for (int64_t i = 0; i < n; i += LANES) {
        __mmask16 here = up_to(n - i);
        _mm512_mask_storeu_ps(out + i, here, _mm512_sqrt_ps(seen(a, ca, i, here)));
    }
}
static void power(int64_t n, const float *a, int64_t ca, float *out, float base) {
    for (int64_t i = 0; i < n; i++) out[i] = powf(base, a[i * ca]);
}

/* out[j] = sum_i a[i, j] */
static void sum_rows(int64_t m, int64_t n, const float *a, int64_t a_row, float *out) {
    for (int64_t j = 0; j < n; j += LANES) {
        __m512 sum = _mm512_setzero_ps();
        for (int64_t i = 0; i < m; i++) sum = _mm512_add_ps(sum, _mm512_maskz_loadu_ps(up_to(n - j), a + i * a_row + j));
        _mm512_mask_storeu_ps(out + j, up_to(n - j), sum);
    }
}

const char *const polycentric_source = POLYCENTRIC_SOURCE; /* the digest of this file, given when it is compiled */

/* Whether this processor has what the rest needs. */
int polycentric_suits(void) { return __builtin_cpu_supports("avx512f") != 0; }

/* All steps of all clients. memory[i] moves on by moves[i] numbers from step to step. */
void polycentric_take(const Instruction *all, int64_t count, float *const *memory, const int64_t *moves,
                      const float *numbers, int64_t clients, int64_t steps) {
#define AT(place) ((place).memory < 0 ? 0 : memory[(place).memory] + s * moves[(place).memory] + c * (place).client)
    for (int64_t c = 0; c < clients; c++)
        for (int64_t s = 0; s < steps; s++)
            for (const Instruction *now = all; now < all + count; now++) {
                int64_t m = now->m, n = now->n, k = now->k;
                float *out = AT(now->out);
                const float *start = AT(now->start), *a = AT(now->a), *b = AT(now->b);
                float factor = numbers[now->number];
                switch (now->kind) {
                case PRODUCT:
                    if (now->b.column == 1)
                        add_rows(m, n, k, a, now->a.row, now->a.column, b, now->b.row, out, now->out.row, start,
                                 now->start.row, factor);
                    else
                        dots(m, n, k, a, now->a.row, b, now->b.column, out, now->out.row, start, now->start.row,
                             factor);
                    break;
                case RELU: relu(m * n, a, out); break;
                case RELU_BACK: relu_back(m * n, a, b, out); break;
                case LOG_SOFTMAX: log_softmax(m, n, a, out); break;
                case LOG_SOFTMAX_BACK: log_softmax_back(m, n, a, b, out); break;
                case ADD: add(m * n, a, now->a.column, b, now->b.column, out, factor); break;
                case MULTIPLY: multiply(m * n, a, now->a.column, b, now->b.column, out, factor); break;
                case DIVIDE: divide(m * n, a, now->a.column, b, now->b.column, out); break;
                case SUM: sum_rows(m, n, a, now->a.row, out); break;
                case SHIFT: shift(m * n, a, now->a.column, out, factor); break;
                case ROOT: root(m * n, a, now->a.column, out); break;
                case POWER: power(m * n, a, now->a.column, out, factor); break;
                case ADD_PRODUCT:
                    add_product(m * n, start, now->start.column, a, now->a.column, b, now->b.column, out, factor);
                    break;
                }
            }
#undef AT
}
