package main

import (
	"cmp"
	"slices"
	"time"
)

// samples are durations of the same operation.
type samples []time.Duration

// quantile returns the element at the given part (0 to 1) of the sorted list, or zero if the list is empty.
func quantile[S ~[]E, E cmp.Ordered](list S, part float64) E {
	var none E
	if len(list) == 0 {
		return none
	}
	sorted := slices.Sorted(slices.Values(list))
	return sorted[min(len(sorted)-1, int(part*float64(len(sorted))))]
}

// pooled returns a quantile of the samples of all rounds.
func pooled(rounds []samples, part float64) time.Duration {
	return quantile(slices.Concat(rounds...), part)
}

// ratio returns the median over the rounds of the ratio of a's median to b's. Both are measured in each round, so a
// disturbance mostly affects both. It returns 0 if there are no samples.
func ratio(a, b []samples) float64 {
	var list []float64
	for i := range min(len(a), len(b)) {
		if under := quantile(b[i], 0.5); under > 0 {
			list = append(list, float64(quantile(a[i], 0.5))/float64(under))
		}
	}
	return quantile(list, 0.5)
}

// rateRatio is ratio for rates.
func rateRatio(a, b []float64) float64 {
	var list []float64
	for i := range min(len(a), len(b)) {
		if b[i] > 0 {
			list = append(list, a[i]/b[i])
		}
	}
	return quantile(list, 0.5)
}
