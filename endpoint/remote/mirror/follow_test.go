package mirror_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// layers and width are the size of the trained model: the number of bfloat16 tensors, and of elements in each.
const (
	layers = 100
	width  = 64 << 10
)

// weights holds the elements of a model in training.
type weights [][]tensor.BF16

func newWeights() weights {
	source := rand.New(rand.NewPCG(1, 2))
	w := make(weights, layers)
	for i := range w {
		w[i] = make([]tensor.BF16, width)
		for j := range w[i] {
			w[i][j] = tensor.NewBF16(float32(source.NormFloat64()) * 0.02)
		}
	}
	return w
}

// step changes one in a hundred elements of the tensors from first to last slightly, as a training step does.
func (w weights) step(first, last int, seed uint64) {
	source := rand.New(rand.NewPCG(seed, 3))
	for _, layer := range w[first:last] {
		for range width / 100 {
			layer[source.IntN(width)] ^= 1 + tensor.BF16(source.IntN(3))
		}
	}
}

// publish publishes the weights as the next version.
func (w weights) publish(t testing.TB, client *endpoint.Client, dev driver.Device, name string) uint64 {
	t.Helper()
	sd := module.NewStateDict()
	defer sd.Close()
	for i, layer := range w {
		one, err := tensor.FromSlice(dev, tensor.Shape{width / 256, 256}, layer)
		require.NoError(t, err)
		require.NoError(t, sd.Set(fmt.Sprintf("layers.%d.weight", i), one))
	}
	version, err := client.Publish(t.Context(), name, sd, endpoint.PublishOptions{})
	require.NoError(t, err)
	return version
}

// requireMirrored waits until the newest versions of the target and the source have the same digests.
func requireMirrored(t testing.TB, source, target *endpoint.Client, name string) {
	t.Helper()
	want := digestsOf(t, source, name)
	remotetest.Eventually(t, func() error {
		if _, err := target.Info(t.Context(), name); err != nil {
			return err
		}
		for tensor, digest := range digestsOf(t, target, name) {
			if want[tensor] != digest {
				return fmt.Errorf("tensor %s is another", tensor)
			}
		}
		return nil
	})
}

func digestsOf(t testing.TB, client *endpoint.Client, name string) map[string]module.Digest {
	t.Helper()
	h, err := client.Acquire(t.Context(), name, endpoint.AcquireOptions{})
	require.NoError(t, err)
	defer h.Close()
	digests, err := module.Digests(t.Context(), h.StateDict(), 0)
	require.NoError(t, err)
	return digests
}

// nth returns the nth published result.
func nth(t testing.TB, told *events, n int) *mirror.Result {
	t.Helper()
	remotetest.Eventually(t, func() error {
		if got := len(told.of(mirror.EventPublished)); got <= n {
			return fmt.Errorf("%d versions were published", got)
		}
		return nil
	})
	return told.of(mirror.EventPublished)[n].Result
}

// A version moves only what changed: one in a hundred elements of all tensors, one in a hundred tensors, or a whole
// tensor.
func TestFollowMovesWhatChanged(t *testing.T) {
	from, to := remotetest.StartOwner(t), remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, from.Socket)
	gw.Attached(t)
	dev := remotetest.OpenHost(t)
	source, target := remotetest.Dial(t, from.Socket, dev), remotetest.Dial(t, to.Socket, dev)
	w := newWeights()
	w.publish(t, source, dev, "policy")
	told := &events{}
	m := newMirror(t, mirror.Options{Source: gw.HTTP() + "/policy", Owner: target, Device: dev, Events: told.add})
	stop := follow(t, m)
	first := nth(t, told, 0)
	require.GreaterOrEqual(t, first.Moved, first.Bytes)
	requireMirrored(t, source, target, "policy")

	w.step(0, layers, 1)
	w.publish(t, source, dev, "policy")
	spread := nth(t, told, 1)
	requireMirrored(t, source, target, "policy")
	t.Logf("1 %% of the elements of all tensors: %.2f %% of %d bytes", 100*float64(spread.Moved)/float64(spread.Bytes), spread.Bytes)
	require.Less(t, spread.Moved, spread.Bytes/20)
	require.Equal(t, spread.Bytes, spread.Patched)

	w.step(7, 8, 2)
	w.publish(t, source, dev, "policy")
	one := nth(t, told, 2)
	requireMirrored(t, source, target, "policy")
	t.Logf("1 %% of the elements of 1 %% of the tensors: %.2f %%", 100*float64(one.Moved)/float64(one.Bytes))
	require.Less(t, one.Moved, one.Bytes/50)
	require.Equal(t, one.Bytes*(layers-1)/layers, one.Copied)

	for i := range w[9] {
		w[9][i] = tensor.BF16(i * 40503)
	}
	w.publish(t, source, dev, "policy")
	whole := nth(t, told, 3)
	requireMirrored(t, source, target, "policy")
	t.Logf("1 %% of the tensors, whole: %.2f %%", 100*float64(whole.Moved)/float64(whole.Bytes))
	require.Less(t, whole.Moved, whole.Bytes/50)

	require.Error(t, stop())
	require.Empty(t, told.of(mirror.EventRetry))
	info, err := target.Info(t.Context(), "policy")
	require.NoError(t, err)
	require.Equal(t, uint64(4), info.Current)
}

// If versions are published faster than a mirror can follow, the mirrored version is always one complete version, and
// finally the newest.
func TestFollowSkipsVersions(t *testing.T) {
	from, to := remotetest.StartOwner(t), remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, from.Socket)
	gw.Attached(t)
	dev := remotetest.OpenHost(t)
	source, target := remotetest.Dial(t, from.Socket, dev), remotetest.Dial(t, to.Socket, dev)
	w := newWeights()
	w.publish(t, source, dev, "policy")
	told := &events{}
	follow(t, newMirror(t, mirror.Options{Source: gw.HTTP() + "/policy", Owner: target, Device: dev, Events: told.add}))
	for i := range 12 {
		w.step(0, layers, uint64(i))
		w.publish(t, source, dev, "policy")
	}
	requireMirrored(t, source, target, "policy")
	require.LessOrEqual(t, len(told.of(mirror.EventPublished)), 13)
}

// A mirror continues after the source's gateway, the source's owner and this host's owner are killed with SIGKILL.
func TestFollowSurvives(t *testing.T) {
	dir := t.TempDir()
	fromSocket, toSocket := filepath.Join(dir, "a.sock"), filepath.Join(dir, "b.sock")
	first, second := modelFile(t, 1), modelFile(t, 2)
	from := remotetest.StartOwner(t, "--socket", fromSocket, "--file", "m="+first)
	to := remotetest.StartOwner(t, "--socket", toSocket)
	gw := remotetest.StartGateway(t, fromSocket)
	gw.Attached(t)
	dev := remotetest.OpenHost(t)
	target := remotetest.Dial(t, toSocket, dev)
	told := &events{}
	stop := follow(t, newMirror(t, mirror.Options{
		Source: gw.HTTP() + "/m", Owner: target, Device: dev, Events: told.add, Patience: 200 * time.Millisecond,
	}))
	nth(t, told, 0)
	requireSame(t, target, "m", first)

	t.Run("the gateway", func(t *testing.T) {
		gw.Kill()
		gw = remotetest.StartGateway(t, fromSocket, "--http", gw.Addresses.HTTP)
		gw.Attached(t)
		source := remotetest.Dial(t, fromSocket, dev)
		publishFile(t, source, dev, "m", second)
		requireMirrored(t, source, target, "m")
		requireSame(t, target, "m", second)
	})
	gw = remotetest.StartGateway(t, fromSocket, "--http", gw.Addresses.HTTP) // the previous gateway ended with its subtest
	gw.Attached(t)
	t.Run("the source's owner", func(t *testing.T) {
		from.Kill()
		from = remotetest.StartOwner(t, "--socket", fromSocket, "--file", "m="+first)
		source := remotetest.Dial(t, fromSocket, dev)
		requireMirrored(t, source, target, "m")
	})
	from = remotetest.StartOwner(t, "--socket", fromSocket, "--file", "m="+first)
	gw.Attached(t)
	requireSame(t, target, "m", first)
	t.Run("the owner here", func(t *testing.T) {
		before := len(told.of(mirror.EventPublished))
		to.Kill()
		to = remotetest.StartOwner(t, "--socket", toSocket)
		again := nth(t, told, before)
		require.Equal(t, uint64(1), again.Version, "another owner, which counts from one")
		require.Equal(t, again.Bytes, again.Copied, "from the memory of this process")
		require.Less(t, again.Moved, int64(16<<10))
		requireSame(t, target, "m", first)
	})
	require.Error(t, stop())
}

// Permanent errors are returned at once, and a source with a version cannot be followed.
func TestFollowPermanentErrors(t *testing.T) {
	from, to := remotetest.StartOwner(t, "--model", "m=1048576"), remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, from.Socket)
	gw.Attached(t)
	dev := remotetest.OpenHost(t)
	options := mirror.Options{Source: gw.HTTP() + "/m@1", Owner: remotetest.Dial(t, to.Socket, dev), Device: dev}
	require.ErrorIs(t, newMirror(t, options).Follow(t.Context()), errors.ErrUnsupported)
	options.Source, options.MaxBytes = gw.HTTP()+"/m", 1<<10
	require.ErrorIs(t, newMirror(t, options).Follow(t.Context()), mirror.ErrTooLarge)
}
