package mirror_test

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
	"github.com/sharedtensor/sharedtensor/module"
)

// A model is mirrored between two owners, a gateway and this process: first completely, then only the tensors that
// changed.
func TestPull(t *testing.T) {
	first, second := modelFile(t, 1), modelFile(t, 2)
	from := remotetest.StartOwner(t, "--file", "org/m="+first)
	to := remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, from.Socket)
	gw.Attached(t)
	dev := remotetest.OpenHost(t)
	source, target := remotetest.Dial(t, from.Socket, dev), remotetest.Dial(t, to.Socket, dev)
	told := &events{}
	options := mirror.Options{Source: gw.HTTP() + "/org%2Fm", Name: "copy", Owner: target, Device: dev, RangeBytes: 64 << 10, Events: told.add}

	got, err := newMirror(t, options).Pull(t.Context())
	require.NoError(t, err)
	require.Equal(t, uint64(1), got.Version)
	require.False(t, got.Unchanged)
	require.Equal(t, 9, got.Tensors)
	require.Zero(t, got.Copied)
	require.Greater(t, got.Moved, got.Bytes)
	requireSame(t, target, "copy", first)
	h, err := target.Acquire(t.Context(), "copy", endpoint.AcquireOptions{})
	require.NoError(t, err)
	defer h.Close()
	require.Equal(t, modelDigest(t, gw, "org%2Fm").String(), got.Digest)
	require.Contains(t, got.Digest, "blake3:")
	require.NotEmpty(t, told.of(mirror.EventProgress))

	again, err := newMirror(t, options).Pull(t.Context())
	require.NoError(t, err)
	require.True(t, again.Unchanged, "another process knows by the digests that nothing is new")
	require.Equal(t, got.Digest, again.Digest)
	require.Less(t, again.Moved, int64(8<<10), "a manifest and a lease")

	publishFile(t, source, dev, "org/m", second)
	next, err := newMirror(t, options).Pull(t.Context())
	require.NoError(t, err)
	require.Equal(t, uint64(2), next.Version)
	requireSame(t, target, "copy", second)

	pinned := options
	pinned.Source += "@99"
	_, err = newMirror(t, pinned).Pull(t.Context())
	require.ErrorIs(t, err, mirror.ErrNotFound, "there is no such version")
	pinned.Source = options.Source + "@2"
	pinned.Digest, err = modelwire.ParseDigest(next.Digest)
	require.NoError(t, err)
	_, err = newMirror(t, pinned).Pull(t.Context())
	require.NoError(t, err)
	pinned.Digest.Sum[0]++
	_, err = newMirror(t, pinned).Pull(t.Context())
	require.ErrorIs(t, err, mirror.ErrDigest)

	missing := options
	missing.Source = gw.HTTP() + "/nothing"
	_, err = newMirror(t, missing).Pull(t.Context())
	require.ErrorIs(t, err, mirror.ErrNotFound)
	small := options
	small.Source, small.Name, small.MaxBytes = gw.HTTP()+"/org%2Fm", "small", 1<<20
	_, err = newMirror(t, small).Pull(t.Context())
	require.ErrorIs(t, err, mirror.ErrTooLarge)
	_, err = target.Info(t.Context(), "small")
	require.ErrorIs(t, err, endpoint.ErrNotFound)
}

// A pull without the token is refused, and with the token it succeeds.
func TestPullWithoutAToken(t *testing.T) {
	from, to := remotetest.StartOwner(t, "--model", "m=65536"), remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, from.Socket, "--read-only", "--token-file", tokenFile(t))
	gw.Attached(t)
	dev := remotetest.OpenHost(t)
	options := mirror.Options{Source: gw.HTTP() + "/m", Owner: remotetest.Dial(t, to.Socket, dev), Device: dev}
	_, err := newMirror(t, options).Pull(t.Context())
	require.ErrorIs(t, err, mirror.ErrDenied)
	options.Token = token
	_, err = newMirror(t, options).Pull(t.Context())
	require.NoError(t, err)
}

// A pull continues although every connection breaks after some bytes.
func TestPullContinuesAfterBrokenConnections(t *testing.T) {
	path := modelFile(t, 3)
	from, to := remotetest.StartOwner(t, "--file", "m="+path), remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, from.Socket)
	gw.Attached(t)
	dev := remotetest.OpenHost(t)
	target := remotetest.Dial(t, to.Socket, dev)
	cut := cuttingProxy(t, gw.Addresses.HTTP, 150<<10)
	told := &events{}
	got, err := newMirror(t, mirror.Options{Source: "http://" + cut + "/m", Owner: target, Device: dev, Events: told.add}).Pull(t.Context())
	require.NoError(t, err)
	require.NotEmpty(t, told.of(mirror.EventRetry))
	require.Less(t, got.Moved, 2*got.Bytes, "what came was kept")
	requireSame(t, target, "m", path)
}

// If the gateway is killed during a transfer, nothing is published, and the error names the cause.
func TestSourceKilledDuringPull(t *testing.T) {
	from, to := remotetest.StartOwner(t, "--file", "m="+modelFile(t, 4)), remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, from.Socket)
	gw.Attached(t)
	dev := remotetest.OpenHost(t)
	target := remotetest.Dial(t, to.Socket, dev)
	var once atomic.Bool
	m := newMirror(t, mirror.Options{
		Source: gw.HTTP() + "/m", Owner: target, Device: dev, RangeBytes: 32 << 10, Connections: 1, Patience: time.Second,
		Events: func(e mirror.Event) {
			if e.Kind == mirror.EventFound && once.CompareAndSwap(false, true) {
				gw.Kill()
			}
		},
	})
	_, err := m.Pull(t.Context())
	require.ErrorContains(t, err, "no progress for")
	_, err = target.Info(t.Context(), "m")
	require.ErrorIs(t, err, endpoint.ErrNotFound)
}

// cuttingProxy forwards connections to an address and breaks each after this many response bytes. It returns its
// address.
func cuttingProxy(t *testing.T, to string, after int64) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer in.Close()
				out, err := net.Dial("tcp", to)
				if err != nil {
					return
				}
				defer out.Close()
				go func() { _, _ = io.Copy(out, in) }()
				_, _ = io.CopyN(in, out, after)
			}()
		}
	}()
	return l.Addr().String()
}

// If the source's responses are false, nothing is published, no memory is allocated for impossible sizes, and the pull
// ends.
func TestHostileSources(t *testing.T) {
	from, to := remotetest.StartOwner(t, "--model", "m=1048576"), remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, from.Socket)
	gw.Attached(t)
	dev := remotetest.OpenHost(t)
	target := remotetest.Dial(t, to.Socket, dev)
	elsewhere := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("the other host was asked") }))
	t.Cleanup(elsewhere.Close)
	replaced := func(pairs ...string) func(string) string { return strings.NewReplacer(pairs...).Replace }
	answering := func(answer http.HandlerFunc) *liar { return &liar{answer: answer} }
	for name, c := range map[string]struct {
		*liar
		want error
	}{
		"no JSON":                {&liar{manifest: func(string) string { return "<html>" }}, mirror.ErrSource},
		"another version":        {&liar{manifest: replaced(`"version":1`, `"version":7`)}, mirror.ErrSource},
		"no version":             {&liar{manifest: replaced(`"version":1`, `"version":0`)}, mirror.ErrSource},
		"no digests":             {&liar{manifest: replaced(`"sha256"`, `"other"`, `"blake3"`, `"other"`)}, mirror.ErrSource},
		"a dtype of its own":     {&liar{manifest: replaced(`"float32"`, `"float33"`)}, mirror.ErrSource},
		"a size of its own":      {&liar{manifest: replaced(`"bytes":`, `"bytes":1`)}, mirror.ErrSource},
		"a negative shape":       {&liar{manifest: replaced(`"shape":[`, `"shape":[-1,`)}, mirror.ErrSource},
		"a shape that overflows": {&liar{manifest: replaced(`"shape":[`, `"shape":[4611686018427387904,4,`)}, mirror.ErrSource},
		"names twice":            {&liar{manifest: replaced(`layers.00000001`, `layers.00000000`)}, mirror.ErrSource},
		"no names":               {&liar{manifest: replaced(`layers.00000001.weight`, ``)}, mirror.ErrSource},
		"tied to nothing":        {&liar{manifest: replaced(`"sha256"`, `"tied_to":"nothing","sha256"`, `"blake3"`, `"tied_to":"nothing","blake3"`)}, mirror.ErrSource},
		"digests of other bytes": {&liar{manifest: replaced(`"sha256":"`, `"sha256":"00`, `"blake3":"`, `"blake3":"00`), digits: 2}, mirror.ErrDigest},
		"an endless manifest":    {answering(endless), mirror.ErrSource},
		"a huge model":           {&liar{manifest: replaced(`"shape":[`, `"shape":[1048576,`), sizes: 1 << 20}, mirror.ErrTooLarge},
		"a redirect elsewhere": {answering(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, elsewhere.URL+r.URL.Path, http.StatusTemporaryRedirect)
		}), mirror.ErrSource},
		"redirects without an end": {answering(func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, r.URL.Path+"x", http.StatusTemporaryRedirect)
		}), mirror.ErrSource},
		"other bytes":       {&liar{bytes: func(p []byte) { p[len(p)/2]++ }}, mirror.ErrDigest},
		"another range":     {&liar{header: func(h http.Header) { h.Set("Content-Range", "bytes 0-65535/9999999") }}, mirror.ErrSource},
		"an endless body":   {&liar{header: func(h http.Header) { h.Del("Content-Length") }}, mirror.ErrSource},
		"a shorter body":    {&liar{header: func(h http.Header) { h.Set("Content-Length", "5") }}, mirror.ErrSource},
		"nothing any more":  {&liar{stall: true}, mirror.ErrStalled},
		"refusals for ever": {answering(func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "busy", http.StatusServiceUnavailable) }), nil},
	} {
		for _, old := range []bool{false, true} {
			if name == "another range" && !old {
				continue // a range is at least a chunk, so these tensors are requested whole
			}
			t.Run(fmt.Sprintf("%s/old=%v", name, old), func(t *testing.T) { c.try(t, gw, target, dev, old, c.want) })
		}
	}
	t.Run("ranges ignored", func(t *testing.T) {
		ignoring := &liar{to: gw.HTTP(), noRanges: true, old: true}
		server := httptest.NewServer(ignoring)
		defer server.Close()
		got, err := newMirror(t, mirror.Options{Source: server.URL + "/m", Name: "whole", Owner: target, Device: dev, RangeBytes: 64 << 10}).Pull(t.Context())
		require.NoError(t, err, "a proxy that does not know ranges is no enemy")
		require.Equal(t, uint64(1), got.Version)
	})
}

// try pulls through the liar, which must fail with an error.
func (l *liar) try(t *testing.T, gw *remotetest.Gateway, target *endpoint.Client, dev driver.Device, old bool, want error) {
	copied := &liar{to: gw.HTTP(), answer: l.answer, manifest: l.manifest, digits: l.digits, old: old, sizes: l.sizes, header: l.header, bytes: l.bytes, stall: l.stall}
	server := httptest.NewServer(copied)
	defer server.Close()
	defer copied.stop()
	stall := remotetest.Patience // a loaded machine may send nothing for a while
	if l.stall {
		stall = 500 * time.Millisecond
	}
	m := newMirror(t, mirror.Options{
		Source: server.URL + "/m", Owner: target, Device: dev, RangeBytes: 64 << 10, MaxBytes: 1 << 30, Stall: stall, Patience: time.Second,
	})
	_, err := m.Pull(t.Context())
	require.Error(t, err)
	if want != nil {
		require.ErrorIs(t, err, want)
	}
	_, err = target.Info(t.Context(), "m")
	require.ErrorIs(t, err, endpoint.ErrNotFound, "nothing was published")
}

// A mirror of a gateway that does not support BLAKE3 verifies SHA-256 and publishes it.
func TestPullFromGatewayWithoutBLAKE3(t *testing.T) {
	path := modelFile(t, 6)
	from, to := remotetest.StartOwner(t, "--file", "m="+path), remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, from.Socket)
	gw.Attached(t)
	dev := remotetest.OpenHost(t)
	target := remotetest.Dial(t, to.Socket, dev)
	server := httptest.NewServer(&liar{to: gw.HTTP(), old: true})
	defer server.Close()
	got, err := newMirror(t, mirror.Options{Source: server.URL + "/m", Owner: target, Device: dev, RangeBytes: 64 << 10}).Pull(t.Context())
	require.NoError(t, err)
	requireSame(t, target, "m", path)
	h, err := target.Acquire(t.Context(), "m", endpoint.AcquireOptions{})
	require.NoError(t, err)
	defer h.Close()
	whole, err := module.StateDictDigest(t.Context(), h.StateDict(), 0)
	require.NoError(t, err)
	require.Equal(t, whole.String(), got.Digest, "what readers compute from the bytes")
	published, there := h.StateDict().Digest("norm/a b")
	require.True(t, there, "and what they are told without")
	norm, _ := h.StateDict().Get("norm/a b")
	computed, err := module.TensorDigest(t.Context(), norm)
	require.NoError(t, err)
	require.Equal(t, computed, published)
}
