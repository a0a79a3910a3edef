package silero

// unfold arranges the inputs of a convolution with kernel 3 and padding 1, one patch after another: patches[t] is
// channels × 3, the elements of in (channels × time) around time step t*stride, zeros outside. A convolution is then
// the product of its weights with each patch, and both are read sequentially.
func unfold(patches, in []float32, channels, stride int) {
	steps := len(in) / channels
	width := 3 * channels
	for t := range len(patches) / width {
		patch := patches[t*width : (t+1)*width]
		for c := range channels {
			row := in[c*steps : (c+1)*steps]
			for k := range 3 {
				v := float32(0)
				if at := t*stride + k - 1; at >= 0 && at < steps {
					v = row[at]
				}
				patch[3*c+k] = v
			}
		}
	}
}

// matmul sets out[r][t] to the dot product of row r of weight and the width elements of x from t*step on, for all rows
// and all count values of t: 4, 2 or 1. The steps of t are computed together so that the weights, which are most of the
// input, pass through the cache once.
func matmul(out, weight, x []float32, width, step, count int) {
	for r := range len(weight) / width {
		row := weight[r*width : (r+1)*width]
		switch count {
		case 4:
			dot4(out[4*r:4*r+4], row, x, step)
		case 2:
			out[2*r] = dot(row, x)
			out[2*r+1] = dot(row, x[step:])
		default:
			out[r] = dot(row, x)
		}
	}
}

// dot4 returns four dot products of row, with the elements of x from 0, step, 2*step and 3*step on.
func dot4(out, row, x []float32, step int) {
	x0, x1 := x[:len(row)], x[step:][:len(row)]
	x2, x3 := x[2*step:][:len(row)], x[3*step:][:len(row)]
	var s0, s1, s2, s3 float32
	for i, w := range row {
		s0 += w * x0[i]
		s1 += w * x1[i]
		s2 += w * x2[i]
		s3 += w * x3[i]
	}
	out[0], out[1], out[2], out[3] = s0, s1, s2, s3
}

// dot returns the dot product of row and the first elements of x. Its four sums are independent.
func dot(row, x []float32) float32 {
	x = x[:len(row)]
	var s0, s1, s2, s3 float32
	i := 0
	for ; i+4 <= len(row); i += 4 {
		w, v := row[i:i+4:i+4], x[i:i+4:i+4]
		s0 += w[0] * v[0]
		s1 += w[1] * v[1]
		s2 += w[2] * v[2]
		s3 += w[3] * v[3]
	}
	for ; i < len(row); i++ {
		s0 += row[i] * x[i]
	}
	return s0 + s1 + s2 + s3
}
