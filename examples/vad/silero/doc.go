// Package silero is Silero VAD, the 16 kHz voice-activity network of github.com/snakers4/silero-vad, in plain Go.
//
// The network processes 512 new samples (32 ms) at a time and returns the probability that they contain speech. Its
// weights stay in place, in this process or in shared memory of another one: [New] uses the tensors of a state dict
// without a copy.
//
// A chunk goes through these steps; shapes are channels × time.
//
//  1. The last 64 samples of the previous chunk are prepended (zeros at first) and 64 reflected ones appended: 640 samples.
//  2. stft_conv, kernel 256, stride 128: 258 × 4, the real and imaginary parts of 129 frequencies; their magnitude: 129 × 4.
//  3. conv1 to conv4, kernel 3, padding 1, strides 1, 2, 2, 1, each with ReLU: 128 × 4, 64 × 2, 64 × 1, 128 × 1.
//  4. One LSTM cell of 128 units, whose state is kept between chunks.
//  5. ReLU, a 1 × 1 convolution to one channel, sigmoid.
package silero
