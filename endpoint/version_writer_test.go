package endpoint_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/drivertest"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/fixture"
	"github.com/sharedtensor/sharedtensor/endpoint/internal/proctest"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

// specsOf describes the tensors of sd.
func specsOf(sd *module.StateDict) (specs []module.NamedSpec) {
	for name, t := range sd.All() {
		specs = append(specs, module.NamedSpec{Name: name, DType: t.DType(), Shape: t.Shape()})
	}
	return specs
}

func copyAll(to, from *module.StateDict) error {
	for name, t := range from.All() {
		dst, _ := to.Get(name)
		if err := dst.CopyFrom(t); err != nil {
			return err
		}
	}
	return nil
}

func TestVersionWriter(t *testing.T) {
	t.Parallel()
	o, socket := fixture.Owner(t)
	o.Publish(fixture.Model{Name: "m", Seed: 1})
	reader, writer := fixture.Client(t, socket), fixture.Client(t, socket)
	reader.Acquire(fixture.Acquisition{Name: "m", Key: "first"})

	draft(writer, "d", fixture.Model{Name: "m", Seed: 2})
	reader.Acquire(fixture.Acquisition{Name: "m", Key: "still"})
	reader.Check("still", fixture.Model{Seed: 1})
	require.EqualValues(t, 2, commit(writer, "d"))
	require.EqualValues(t, 2, commit(writer, "d"), "once")
	reader.Check("first", fixture.Model{Seed: 1})
	require.EqualValues(t, 2, reader.Acquire(fixture.Acquisition{Name: "m", Key: "second"}).Version)

	writer.Kill()
	reader.Check("second", fixture.Model{Seed: 2})
	reader.Acquire(fixture.Acquisition{Name: "m", Key: "late"})
	reader.Check("late", fixture.Model{Seed: 2})
}

func TestVersionWriterEnds(t *testing.T) {
	t.Parallel()
	o, socket := fixture.Owner(t)
	o.Publish(fixture.Model{Name: "m", Seed: 1})
	watcher := fixture.Client(t, socket)
	watcher.Ping()
	before := o.Count()
	for range 5 {
		killed := fixture.Client(t, socket)
		draft(killed, "d", fixture.Model{Name: "m", Seed: 2, Bytes: 1 << 22})
		killed.Kill()
	}
	writer := fixture.Client(t, socket)
	own := writer.Count()
	draft(writer, "d", fixture.Model{Name: "m", Seed: 2, Bytes: 1 << 22})
	if !fixture.OnGPU() { // whose memory is no mapping of the host
		require.Greater(t, writer.Count().Mappings, own.Mappings)
	}
	abort(writer, "d")
	abort(writer, "d")
	require.ErrorIs(t, fixture.Failure(writer, commitOp, "d"), endpoint.ErrClosed)
	after := writer.Count()
	require.Equal(t, own.Mappings, after.Mappings)
	require.LessOrEqual(t, after.Files, own.Files)
	writer.Kill()

	list := watcher.Models()
	require.Len(t, list, 1)
	require.EqualValues(t, 1, list[0].Current, "nothing was published")
	proctest.Eventually(t, fixture.WaitLimit, "the owner has what it had", func() bool {
		now := o.Count()
		return now.Files <= before.Files && now.Mappings <= before.Mappings
	})
}

func TestVersionWriterCommit(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	dev := fixture.Device(t)
	specs := []module.NamedSpec{{Name: "w", DType: tensor.Float32, Shape: tensor.Shape{4}}}
	ones, err := tensor.Full(dev, tensor.Float32, tensor.Shape{4}, 1)
	require.NoError(t, err)
	defer ones.Close()

	t.Run("at a server", func(t *testing.T) {
		s := fixture.Serve(t, endpoint.ServerOptions{})
		c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), Devices: fixture.DriversOf(dev), OverSocket: true})
		require.NoError(t, err)
		defer c.Close()
		w, err := s.NewVersion(ctx, "m", specs)
		require.NoError(t, err)
		x, _ := w.StateDict().Get("w")
		require.NoError(t, x.CopyFrom(ones))
		version, err := w.Commit(ctx, endpoint.PublishOptions{Source: "made here"})
		require.NoError(t, err)
		require.EqualValues(t, 1, version)
		require.ErrorIs(t, x.CopyFrom(ones), os.ErrClosed)
		require.NoError(t, w.Abort(), "does nothing any more")
		require.Equal(t, "made here", fixture.ListOf(s)[0].Versions[0].Source)
		h, err := c.Acquire(ctx, "m", endpoint.AcquireOptions{})
		require.NoError(t, err)
		defer h.Close()
		got, _ := h.StateDict().Get("w")
		values, err := tensor.Data[float32](got)
		if err == nil { // memory of a GPU has no slice
			require.Equal(t, []float32{1, 1, 1, 1}, values)
		}

		// A refused publication does not change the writer.
		w, err = s.NewVersion(ctx, "m", specs)
		require.NoError(t, err)
		defer w.Abort()
		ended, cancel := context.WithCancel(ctx)
		cancel()
		_, err = w.Commit(ended, endpoint.PublishOptions{})
		require.ErrorIs(t, err, context.Canceled)
		version, err = w.Commit(ctx, endpoint.PublishOptions{})
		require.NoError(t, err)
		require.EqualValues(t, 2, version)
	})

	t.Run("without an owner", func(t *testing.T) {
		fixture.HostOnly(t, "no other memory can be sealed")
		o, socket := fixture.Owner(t)
		c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: socket, Devices: fixture.DriversOf(dev), Logger: fixture.Discard()})
		require.NoError(t, err)
		defer c.Close()
		w, err := c.NewVersion(ctx, "m", specs)
		require.NoError(t, err)
		defer w.Abort()
		o.Kill()
		_, err = w.Commit(soon(t), endpoint.PublishOptions{})
		require.Error(t, err)
		x, _ := w.StateDict().Get("w")
		require.ErrorIs(t, x.CopyFrom(ones), driver.ErrReadOnly, "it was sealed before it was offered")
		again := fixture.Start(t)
		again.Serve(socket)
		version, err := w.Commit(ctx, endpoint.PublishOptions{})
		require.NoError(t, err)
		require.EqualValues(t, 1, version)
	})
}

// soon returns a context that ends before an owner starts.
func soon(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
	t.Cleanup(cancel)
	return ctx
}

func TestVersionWriterErrors(t *testing.T) {
	ctx := context.Background()
	drivertest.Leaks(t)
	s := fixture.Serve(t, endpoint.ServerOptions{})
	bare, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket()})
	require.NoError(t, err)
	defer bare.Close()
	specs := []module.NamedSpec{{Name: "w", DType: tensor.Float32, Shape: tensor.Shape{4}}}
	_, err = bare.NewVersion(ctx, "m", specs)
	require.ErrorIs(t, err, endpoint.ErrConfiguration)
	_, err = s.NewVersion(ctx, "", specs)
	require.ErrorIs(t, err, endpoint.ErrInvalid)
	_, err = s.NewVersion(ctx, "m", []module.NamedSpec{specs[0], specs[0]})
	require.ErrorIs(t, err, module.ErrDuplicateName)
	_, err = s.NewVersion(ctx, "m", []module.NamedSpec{{Name: "w", DType: tensor.Float32, Shape: tensor.Shape{-1}}})
	require.ErrorIs(t, err, tensor.ErrShape)
	nobody, err := endpoint.NewClient(endpoint.ClientOptions{Socket: filepath.Join(t.TempDir(), "no.sock"), Devices: fixture.DriversOf(fixture.Device(t)), Logger: fixture.Discard()})
	require.NoError(t, err)
	defer nobody.Close()
	_, err = nobody.NewVersion(soon(t), "m", specs)
	require.Error(t, err, "there is no owner")
}

func TestClientAcquireCompatibility(t *testing.T) {
	ctx := context.Background()
	dev := fixture.Device(t)
	s := fixture.Serve(t, endpoint.ServerOptions{})
	c, err := endpoint.Dial(ctx, endpoint.ClientOptions{Socket: s.Socket(), Devices: fixture.DriversOf(dev), OverSocket: true})
	require.NoError(t, err)
	defer c.Close()
	sd, err := module.Synthesize(dev, module.Synthetic{Tensors: 2, Bytes: 1 << 12})
	require.NoError(t, err)
	sd.SetCompatibility("rows/2")
	first := sd.Names()[0]
	require.NoError(t, sd.SetNote(first, module.NoteBuffer))
	require.NoError(t, module.AddDigests(ctx, sd, 0))
	whole, err := module.StateDictDigest(ctx, sd, 0)
	require.NoError(t, err)
	fixture.PublishOn(t, s, "m", sd)

	drivertest.Leaks(t)
	_, err = c.Acquire(ctx, "m", endpoint.AcquireOptions{Compatibility: "columns/2"})
	require.ErrorIs(t, err, module.ErrIncompatible)
	require.ErrorContains(t, err, `its key is "rows/2", not "columns/2"`)
	h, err := c.Acquire(ctx, "m", endpoint.AcquireOptions{Compatibility: "rows/2", Digest: whole})
	require.NoError(t, err)
	defer h.Close()
	require.Equal(t, module.NoteBuffer, h.StateDict().Note(first))
	claimed, ok := h.StateDict().ClaimedDigest()
	require.True(t, ok)
	require.Equal(t, whole, claimed)
}
