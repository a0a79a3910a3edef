package demonet

import "math"

// matvec sets out[r] to the dot product of x and row r of weight, for the len(weight)/len(x) rows.
func matvec(out, weight, x []float32) {
	width := len(x)
	for r := range len(weight) / width {
		out[r] = dot(weight[r*width:(r+1)*width], x)
	}
}

// dot returns the dot product of two slices of equal length. It uses four independent sums in a fixed order.
func dot(a, b []float32) float32 {
	b = b[:len(a)]
	var s0, s1, s2, s3 float32
	i := 0
	for ; i+4 <= len(a); i += 4 {
		v, w := a[i:i+4:i+4], b[i:i+4:i+4]
		s0 += v[0] * w[0]
		s1 += v[1] * w[1]
		s2 += v[2] * w[2]
		s3 += v[3] * w[3]
	}
	for ; i < len(a); i++ {
		s0 += a[i] * b[i]
	}
	return s0 + s1 + s2 + s3
}

// rmsNorm sets out to x scaled to a mean square of 1, times weight.
func rmsNorm(out, x, weight []float32) {
	scale := float32(1 / math.Sqrt(float64(dot(x, x))/float64(len(x))+1e-6))
	for i, v := range x {
		out[i] = v * scale * weight[i]
	}
}

// softmax replaces scores by weights that add up to 1.
func softmax(x []float32) {
	top := x[0]
	for _, v := range x {
		top = max(top, v)
	}
	sum := float32(0)
	for i, v := range x {
		x[i] = float32(math.Exp(float64(v - top)))
		sum += x[i]
	}
	for i := range x {
		x[i] /= sum
	}
}

func add(x, y []float32) {
	for i, v := range y {
		x[i] += v
	}
}
