package main

import (
	"cmp"
	"slices"
	"time"
)

// samples are durations of the same thing.
type samples []time.Duration

// quantile is the element at the given part of a list in its order, zero of none.
func quantile[S ~[]E, E cmp.Ordered](list S, part float64) E {
	var none E
	if len(list) == 0 {
		return none
	}
	sorted := slices.Sorted(slices.Values(list))
	return sorted[min(len(sorted)-1, int(part*float64(len(sorted))))]
}

// pooled is a quantile of the samples of all rounds.
func pooled(rounds []samples, part float64) time.Duration {
	return quantile(slices.Concat(rounds...), part)
}

// ratio is how many times a is b: the median over the rounds of the ratio of their medians. The two were measured side
// by side in each round, so what disturbed one mostly disturbed the other too. 0 where there is nothing to compare.
func ratio(a, b []samples) float64 {
	var list []float64
	for i := range min(len(a), len(b)) {
		if under := quantile(b[i], 0.5); under > 0 {
			list = append(list, float64(quantile(a[i], 0.5))/float64(under))
		}
	}
	return quantile(list, 0.5)
}

// rateRatio is the same of rates.
func rateRatio(a, b []float64) float64 {
	var list []float64
	for i := range min(len(a), len(b)) {
		if b[i] > 0 {
			list = append(list, a[i]/b[i])
		}
	}
	return quantile(list, 0.5)
}
