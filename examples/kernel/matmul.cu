// c = a times b, in row-major order: a has m rows and k columns, b k rows and n columns. One thread computes one element; x
// counts columns.
extern "C" __global__ void matmul(const float *a, const float *b, float *c, int m, int n, int k) {
	int column = blockIdx.x * blockDim.x + threadIdx.x, row = blockIdx.y * blockDim.y + threadIdx.y;
	if (column >= n || row >= m) return;
	float sum = 0;
	for (int i = 0; i < k; i++) sum = fmaf(a[(long long)row * k + i], b[(long long)i * n + column], sum);
	c[(long long)row * n + column] = sum;
}
