package silero

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/examples/vad/internal/vadtest"
	"github.com/sharedtensor/sharedtensor/examples/vad/wav"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

func openHost(t testing.TB) driver.Device {
	dev, err := host.Open()
	if errors.Is(err, errors.ErrUnsupported) {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, dev.Close()) })
	return dev
}

// loaded returns the published model in shared memory.
func loaded(t testing.TB) *module.StateDict {
	path := vadtest.File(t, "silero_vad_16k.safetensors")
	sd, err := module.Load(context.Background(), openHost(t), path, module.LoadOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, sd.Close()) })
	return sd
}

// zeros returns a state dict with the network's names and shapes; change may alter the shapes and dtypes before.
func zeros(t testing.TB, change func(map[string]tensor.Spec)) *module.StateDict {
	dev := openHost(t)
	specs := map[string]tensor.Spec{}
	for _, w := range new(weights).layout() {
		specs[w.name] = tensor.Spec{DType: tensor.Float32, Shape: w.shape}
	}
	if change != nil {
		change(specs)
	}
	sd := module.NewStateDict()
	t.Cleanup(func() { require.NoError(t, sd.Close()) })
	for name, s := range specs {
		x, err := tensor.Zeros(dev, s.DType, s.Shape)
		require.NoError(t, err)
		require.NoError(t, sd.Set(name, x))
	}
	return sd
}

// probabilities runs the whole clip.
func probabilities(t testing.TB, n *Network, clip *wav.Clip) []float32 {
	var out []float32
	chunk := make([]float32, ChunkSamples)
	for at := 0; at < len(clip.Samples); at += ChunkSamples {
		clip.Chunk(chunk, at)
		p, err := n.Process(chunk)
		require.NoError(t, err)
		out = append(out, p)
	}
	return out
}

func TestSpeech(t *testing.T) {
	t.Parallel()
	want := vadtest.Expected(t)
	clip, err := wav.ReadFile(vadtest.File(t, "speech.wav"), SampleRate)
	require.NoError(t, err)
	n, err := New(loaded(t))
	require.NoError(t, err)

	got := probabilities(t, n, clip)
	require.Len(t, got, len(want))
	worst := 0.0
	for i := range want {
		require.InDelta(t, want[i], got[i], 1e-3, "chunk %d", i)
		worst = max(worst, want[i]-float64(got[i]), float64(got[i])-want[i])
	}
	t.Logf("%d probabilities, largest difference %.2g", len(got), worst)

	n.Reset()
	require.Equal(t, got, probabilities(t, n, clip), "Reset must forget the clip before")
}

func TestWeightsAreUsedInPlace(t *testing.T) {
	sd := zeros(t, nil)
	n, err := New(sd)
	require.NoError(t, err)
	silence := make([]float32, ChunkSamples)
	p, err := n.Process(silence)
	require.NoError(t, err)
	require.Equal(t, float32(0.5), p, "the sigmoid of 0")

	bias, ok := sd.Get("final_conv.bias")
	require.True(t, ok)
	data, err := tensor.Data[float32](bias)
	require.NoError(t, err)
	data[0] = 100
	p, err = n.Process(silence)
	require.NoError(t, err)
	require.Equal(t, float32(1), p)
	require.Zero(t, testing.AllocsPerRun(10, func() { _, _ = n.Process(silence) }))
}

func TestProcessRefusesOtherLengths(t *testing.T) {
	t.Parallel()
	n, err := New(zeros(t, nil))
	require.NoError(t, err)
	for _, samples := range []int{0, ChunkSamples - 1, ChunkSamples + 1} {
		_, err := n.Process(make([]float32, samples))
		require.ErrorContains(t, err, "want 512")
	}
}

func TestNewRefusesOtherModels(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(map[string]tensor.Spec)
		want   string
	}{
		"empty":   {func(m map[string]tensor.Spec) { clear(m) }, `tensor "stft_conv.weight" is missing`},
		"missing": {func(m map[string]tensor.Spec) { delete(m, "conv3.bias") }, `tensor "conv3.bias" is missing`},
		"dtype": {func(m map[string]tensor.Spec) {
			m["conv1.bias"] = tensor.Spec{DType: tensor.Float16, Shape: tensor.Shape{128}}
		}, `tensor "conv1.bias" is float16, want float32`},
		"shape": {func(m map[string]tensor.Spec) {
			m["conv2.weight"] = tensor.Spec{DType: tensor.Float32, Shape: tensor.Shape{64, 3, 128}}
		}, `tensor "conv2.weight" has shape [64, 3, 128], want [64, 128, 3]`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := New(zeros(t, c.change))
			require.ErrorIs(t, err, ErrWeights)
			require.ErrorContains(t, err, c.want)
		})
	}
}

func TestNewRefusesStridedWeights(t *testing.T) {
	t.Parallel()
	sd := zeros(t, func(m map[string]tensor.Spec) { delete(m, "lstm_cell.weight_hh") })
	x, err := tensor.Zeros(openHost(t), tensor.Float32, tensor.Shape{units, 4 * units})
	require.NoError(t, err)
	turned, err := x.Transpose(0, 1)
	require.NoError(t, err)
	require.NoError(t, sd.Set("lstm_cell.weight_hh", turned))
	require.NoError(t, x.Close())
	_, err = New(sd)
	require.ErrorIs(t, err, ErrWeights)
	require.ErrorIs(t, err, tensor.ErrNotContiguous)
}

func TestUnfold(t *testing.T) {
	t.Parallel()
	in := []float32{1, 2, 3, 4, 5, 6} // 2 channels × 3
	patches := make([]float32, 3*6)
	unfold(patches, in, 2, 1)
	require.Equal(t, []float32{0, 1, 2, 0, 4, 5, 1, 2, 3, 4, 5, 6, 2, 3, 0, 5, 6, 0}, patches)
	unfold(patches[:12], in, 2, 2)
	require.Equal(t, []float32{0, 1, 2, 0, 4, 5, 2, 3, 0, 5, 6, 0}, patches[:12])
}

func TestMatmul(t *testing.T) {
	t.Parallel()
	const width, step = 5, 3
	weight, x := make([]float32, 2*width), make([]float32, 3*step+width)
	for i := range weight {
		weight[i] = float32(i + 1)
	}
	for i := range x {
		x[i] = float32(i * i)
	}
	for _, count := range []int{1, 2, 4} {
		out := make([]float32, 2*count)
		matmul(out, weight, x, width, step, count)
		for r := range 2 {
			for c := range count {
				want := float32(0)
				for i := range width {
					want += weight[r*width+i] * x[c*step+i]
				}
				require.Equal(t, want, out[r*count+c], "row %d, step %d of %d", r, c, count)
			}
		}
	}
}

// BenchmarkProcess reports the seconds of audio processed per second.
func BenchmarkProcess(b *testing.B) {
	n, err := New(zeros(b, nil))
	require.NoError(b, err)
	chunk := make([]float32, ChunkSamples)
	for i := range chunk {
		chunk[i] = float32(i%7) / 7
	}
	for b.Loop() {
		if _, err := n.Process(chunk); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)*ChunkSamples/SampleRate/b.Elapsed().Seconds(), "audio-s/s")
}
