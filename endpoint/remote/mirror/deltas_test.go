package mirror_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/driver/host"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror"
	"github.com/sharedtensor/sharedtensor/module"
	"github.com/sharedtensor/sharedtensor/tensor"
)

const (
	hopTensors  = 8
	hopElements = 32 << 10
)

// hopElement returns element i of a tensor in a step. A few percent of the elements change from step to step.
func hopElement(step, tensor, i int) int32 {
	if (i+tensor)%37 != 0 {
		step = 0
	}
	mixed := uint32(step*1_000_003+tensor*7919+i) * 2654435761 // zstd cannot compress this
	mixed = (mixed ^ mixed>>15) * 2246822519
	return int32(mixed ^ mixed>>13)
}

// publishStep publishes a step as the next version at an owner.
func publishStep(t *testing.T, client *endpoint.Client, dev driver.Device, step int) {
	t.Helper()
	sd := module.NewStateDict()
	defer sd.Close()
	mark, err := tensor.FromSlice(dev, tensor.Shape{1}, []int32{int32(step)})
	require.NoError(t, err)
	require.NoError(t, sd.Set("step", mark))
	for k := range hopTensors {
		values := make([]int32, hopElements)
		for i := range values {
			values[i] = hopElement(step, k, i)
		}
		one, err := tensor.FromSlice(dev, tensor.Shape{hopElements}, values)
		require.NoError(t, err)
		require.NoError(t, sd.Set(fmt.Sprintf("layer.%d", k), one))
	}
	_, err = client.Publish(t.Context(), "policy", sd, endpoint.PublishOptions{})
	require.NoError(t, err)
}

// readStep compares every element of the newest version with its step, and returns the step.
func readStep(ctx context.Context, client *endpoint.Client) (int, error) {
	h, err := client.Acquire(ctx, "policy", endpoint.AcquireOptions{})
	if err != nil {
		return 0, err
	}
	defer h.Close()
	values := func(name string) ([]int32, error) {
		one, found := h.StateDict().Get(name)
		if !found {
			return nil, fmt.Errorf("no %s", name)
		}
		return tensor.Data[int32](one)
	}
	mark, err := values("step")
	if err != nil {
		return 0, err
	}
	step := int(mark[0])
	for k := range hopTensors {
		layer, err := values(fmt.Sprintf("layer.%d", k))
		if err != nil {
			return step, err
		}
		for i, v := range layer {
			if want := hopElement(step, k, i); v != want {
				return step, fmt.Errorf("%w: element %d of layer %d is %d in version %d of step %d, which has %d", errMixed, i, k, v, h.Version(), step, want)
			}
		}
	}
	return step, nil
}

var errMixed = errors.New("a version is mixed")

// stepBytes is the size of the tensors of one step.
const stepBytes = hopTensors * hopElements * 4

// front forwards requests to a gateway. If before returns a status, front answers with it. It calls after with each
// forwarded request.
func front(t *testing.T, to string, before func(*http.Request) int, after func(*http.Request)) string {
	t.Helper()
	u, err := url.Parse(to)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(u)
	proxy.ErrorHandler = func(w http.ResponseWriter, _ *http.Request, err error) {
		http.Error(w, err.Error(), http.StatusBadGateway)
	}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if status := before(r); status != 0 {
			http.Error(w, "not now", status)
			return
		}
		proxy.ServeHTTP(w, r)
		after(r)
	}))
	t.Cleanup(server.Close)
	return server.URL
}

// requireStep waits until all mirrors have a step's version of the source, and compares every element.
func requireStep(t *testing.T, hosts []*mirrorHost, step int) (fromPeers int64) {
	t.Helper()
	dev := remotetest.OpenHost(t)
	for _, h := range hosts {
		fromPeers += h.awaitVersion(t, fmt.Sprint(step)).PeerBytes
		got, err := readStep(t.Context(), remotetest.Dial(t, h.owner.Socket, dev))
		require.NoError(t, err)
		require.Equal(t, step, got)
	}
	return fromPeers
}

// startTraining starts NATS and an owner with a gateway, and publishes a model's first step there.
func startTraining(t *testing.T) (natsURL string, origin *remotetest.Gateway, source *endpoint.Client, dev *host.Device) {
	t.Helper()
	_, natsURL = startNATS(t)
	from := remotetest.StartOwner(t)
	origin = remotetest.StartGateway(t, from.Socket)
	dev = remotetest.OpenHost(t)
	source = remotetest.Dial(t, from.Socket, dev)
	publishStep(t, source, dev, 1)
	return natsURL, origin, source, dev
}

// deltasOf trains a model that the given number of mirrors follow, each in a process with a separate owner, over one
// slow link to the source. It returns the bytes that left the source for one step, and the number of mirrors that sent
// deltas.
func deltasOf(t *testing.T, followers int) (left, given int64) {
	t.Helper()
	natsURL, origin, source, dev := startTraining(t)
	link, moved := slowLink(t, origin.Addresses.HTTP, 256<<10)
	hosts := make([]*mirrorHost, followers)
	for i := range hosts {
		hosts[i] = startMirrorHost(t, "--nats", natsURL, "--mirror", "http://"+link+"/policy")
	}
	requireStep(t, hosts, 1)
	before := moved.Load()
	publishStep(t, source, dev, 2)
	given = requireStep(t, hosts, 2)
	return moved.Load() - before, given
}

// The bytes that leave the source for a step do not grow with the number of mirrors.
func TestFollowersTakeDeltasFromEachOther(t *testing.T) {
	one, none := deltasOf(t, 1)
	four, given := deltasOf(t, 4)
	t.Logf("of %d bytes, %d left the source for one mirror and %d for four, which gave each other %d", stepBytes, one, four, given)
	require.Zero(t, none)
	require.Less(t, one, int64(stepBytes/5), "a delta moved")
	require.Less(t, four, 2*one+one/2, "four deltas would be four times as much")
	require.Positive(t, given)
}

// If the source is killed after the first of three mirrors has made a step, the others make the step with the first
// mirror's deltas.
func TestDeltaOfAMirrorWhileTheSourceIsKilled(t *testing.T) {
	natsURL, origin, source, dev := startTraining(t)

	// The other mirrors learn about the step after the first mirror has it. From the source they receive only its
	// manifest.
	var armed atomic.Bool
	hasStep, described := make(chan struct{}), sync.WaitGroup{}
	described.Add(2)
	other := func() string {
		once := sync.OnceFunc(described.Done)
		return front(t, origin.HTTP(), func(r *http.Request) int {
			if !armed.Load() {
				return 0
			}
			<-hasStep
			if strings.Contains(r.URL.Path, "/deltas/") || strings.Contains(r.URL.Path, "/tensors/") {
				panic(http.ErrAbortHandler)
			}
			return 0
		}, func(r *http.Request) {
			if armed.Load() && strings.HasSuffix(r.URL.Path, "/manifest") {
				once()
			}
		})
	}
	first := startMirrorHost(t, "--nats", natsURL, "--mirror", origin.HTTP()+"/policy")
	rest := make([]*mirrorHost, 2)
	for i := range rest {
		rest[i] = startMirrorHost(t, "--nats", natsURL, "--mirror", other()+"/policy")
	}
	requireStep(t, append(rest, first), 1)
	armed.Store(true)
	publishStep(t, source, dev, 2)
	requireStep(t, []*mirrorHost{first}, 2)
	close(hasStep)
	described.Wait()
	origin.Kill()
	for _, h := range rest {
		client := remotetest.Dial(t, h.owner.Socket, dev)
		remotetest.Eventually(t, func() error {
			step, err := readStep(t.Context(), client)
			if err == nil && step != 2 {
				err = fmt.Errorf("step %d is there", step)
			}
			return err
		})
		var given int64
		remotetest.Eventually(t, func() error { // the page is updated after the owner
			row, err := h.row()
			if given = row.PeerBytes; err == nil && row.SourceVersion != "2" {
				err = fmt.Errorf("%+v", row)
			}
			return err
		})
		t.Logf("other mirrors gave %d of %d bytes", given, stepBytes)
		require.Positive(t, given)
		require.Less(t, given, int64(stepBytes/5), "deltas were given, and no whole tensors")
	}
}

// A mirror without a lease, as with too many mirrors, gets the changes from a mirror that has a lease.
func TestDeltaWithoutLease(t *testing.T) {
	natsURL, origin, source, dev := startTraining(t)
	var armed atomic.Bool
	hasStep := make(chan struct{})
	late := front(t, origin.HTTP(), func(r *http.Request) int {
		if armed.Load() {
			<-hasStep
		}
		if strings.HasSuffix(r.URL.Path, "/leases") {
			return http.StatusTooManyRequests
		}
		if strings.Contains(r.URL.Path, "/deltas/") {
			t.Error("the source was asked for a delta")
		}
		return 0
	}, func(*http.Request) {})
	first := startMirrorHost(t, "--nats", natsURL, "--mirror", origin.HTTP()+"/policy")
	second := startMirrorHost(t, "--nats", natsURL, "--mirror", late+"/policy")
	requireStep(t, []*mirrorHost{first, second}, 1)
	armed.Store(true)
	publishStep(t, source, dev, 2)
	requireStep(t, []*mirrorHost{first}, 2)
	close(hasStep)
	given := requireStep(t, []*mirrorHost{second}, 2)
	require.Positive(t, given)
	require.Less(t, given, int64(stepBytes/5), "deltas were given, and no whole tensors")
}

// Mirrors that send no delta, half a delta, or a delta to another tensor leave the model intact.
func TestPeersSendWrongDeltas(t *testing.T) {
	server, _ := startNATS(t)
	conn, err := server.Connect()
	require.NoError(t, err)
	defer conn.Close()
	from, to := remotetest.StartOwner(t), remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, from.Socket)
	dev := remotetest.OpenHost(t)
	source, target := remotetest.Dial(t, from.Socket, dev), remotetest.Dial(t, to.Socket, dev)
	publishStep(t, source, dev, 1)
	peers, err := mirror.NewPeers(conn, mirror.PeersOptions{})
	require.NoError(t, err)
	told := &events{}
	m := newMirror(t, mirror.Options{Source: gw.HTTP() + "/policy", Owner: target, Device: dev, Peers: peers, Events: told.add})
	_, err = m.Pull(t.Context())
	require.NoError(t, err)

	publishStep(t, source, dev, 2)
	model := modelDigest(t, gw, "policy").Sum
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	kv, err := js.KeyValue(t.Context(), "sharedtensor_mirrors")
	require.NoError(t, err)
	var asked [3]atomic.Int64
	for i, answer := range []func(http.ResponseWriter){
		func(w http.ResponseWriter) { _, _ = w.Write([]byte{0}) }, // a delta without changes
		func(w http.ResponseWriter) { _, _ = w.Write([]byte{1, 200, 1, 7}) },
		func(w http.ResponseWriter) { _, _ = io.WriteString(w, "no delta at all") },
	} {
		liar := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			asked[i].Add(1)
			require.NotEmpty(t, r.URL.Query().Get("base"))
			answer(w)
		}))
		defer liar.Close()
		_, err = kv.Put(t.Context(), fmt.Sprintf("have.%s.x%d", model, i), fmt.Appendf(nil, `{"url":%q,"done":%d,"total":%d,"host":%q}`, liar.URL, stepBytes, stepBytes, mirror.HostID()))
		require.NoError(t, err)
	}
	result, err := m.Pull(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, stepBytes+4, result.Patched)
	step, err := readStep(t.Context(), target)
	require.NoError(t, err)
	require.Equal(t, 2, step)
	for i := range asked {
		require.Positive(t, asked[i].Load(), "liar %d", i)
	}
	require.NotEmpty(t, told.of(mirror.EventRetry))
}
