// Package silero is Silero VAD, the 16 kHz voice-activity network of github.com/snakers4/silero-vad, in plain Go.
//
// The network looks at 512 new samples (32 ms) at a time and gives the probability that somebody speaks in them. Its
// weights stay where they are, in this process or in shared memory of another one: [New] takes the addresses of a state
// dict's tensors and copies nothing.
//
// A chunk goes through these steps; shapes are channels × time.
//
//  1. The last 64 samples of the chunk before are put in front (zeros at first) and 64 reflected ones behind: 640 samples.
//  2. stft_conv, kernel 256, stride 128: 258 × 4, the real and imaginary parts of 129 frequencies; their magnitude: 129 × 4.
//  3. conv1 to conv4, kernel 3, padding 1, strides 1, 2, 2, 1, each with ReLU: 128 × 4, 64 × 2, 64 × 1, 128 × 1.
//  4. One LSTM cell of 128 units, whose state carries over from chunk to chunk.
//  5. ReLU, a 1 × 1 convolution to one channel, sigmoid.
package silero
