/* SPDX-License-Identifier: MIT */
/* See fit.h: order statistics and lines that outliers do not move. */
#include "collectives/fit.h"
#include <math.h>

uint64_t fit_random(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Bring the k-th smallest to its place (Hoare's selection). */
static double select_kth(double *v, int n, int k)
{
    int low = 0, high = n - 1;
    while (low < high) {
        double pivot = v[low + (high - low) / 2];
        int i = low, j = high;
        while (i <= j) {
            while (v[i] < pivot)
                i++;
            while (v[j] > pivot)
                j--;
            if (i <= j) {
                double t = v[i];
                v[i++] = v[j];
                v[j--] = t;
            }
        }
        if (k <= j)
            high = j;
        else if (k >= i)
            low = i;
        else
            break;
    }
    return v[k];
}

double fit_quantile(double *values, int n, double share)
{
    double place = share * (n - 1);
    int k = (int)place;
    double at = select_kth(values, n, k);
    if (k + 1 >= n || place == k)
        return at;
    double next = INFINITY; /* selection left all greater ones behind k */
    for (int i = k + 1; i < n; i++)
        next = fmin(next, values[i]);
    return at + (place - k) * (next - at);
}

static double line_error(const double *x, const double *y, int n, double a, double b)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += fabs(y[i] - a - b * x[i]) / y[i];
    return sum;
}

/* The optimum of a least-absolute-deviations line goes through two of the points: try all pairs.
 * A sweep has some twenty sizes, so that is cheap, exact and has no iteration to go astray. */
double fit_line(const double *x, const double *y, int n, double *a, double *b)
{
    double best = INFINITY;
    for (int i = 0; i < n; i++) {
        for (int j = i + 1; j < n; j++) {
            if (x[i] == x[j])
                continue;
            double slope = (y[j] - y[i]) / (x[j] - x[i]);
            double start = y[i] - slope * x[i];
            double error = line_error(x, y, n, start, slope);
            if (error < best) {
                best = error;
                *a = start;
                *b = slope;
            }
        }
    }
    return best;
}

static double corner_error(const double *x, const double *y, int n, double a, double b)
{
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += fabs(y[i] - fmax(a, b * x[i])) / y[i];
    return sum;
}

/* For the same reason the level and the ray each go through a point. */
double fit_corner(const double *x, const double *y, int n, double *a, double *b)
{
    double best = INFINITY;
    for (int i = 0; i < n; i++) {
        for (int j = 0; j < n; j++) {
            double error = corner_error(x, y, n, y[i], y[j] / x[j]);
            if (error < best) {
                best = error;
                *a = y[i];
                *b = y[j] / x[j];
            }
        }
    }
    return best;
}
