package mirror_test

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/browsertest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror/mirrorgate"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/natslink"
)

// startNATS starts a server until the test ends and returns its URL.
func startNATS(t testing.TB) (*natslink.Server, string) {
	t.Helper()
	server, err := natslink.Start(natslink.ServerOptions{Store: t.TempDir(), Listen: "127.0.0.1:0"})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	return server, server.URL()
}

// mirrorHost is an owner with a gateway that mirrors a model.
type mirrorHost struct {
	owner *remotetest.Owner
	gw    *remotetest.Gateway
}

func startMirrorHost(t testing.TB, args ...string) *mirrorHost {
	t.Helper()
	owner := remotetest.StartOwner(t)
	return &mirrorHost{owner, remotetest.StartGateway(t, owner.Socket, args...)}
}

// row returns the status of the gateway's first mirror.
func (h *mirrorHost) row() (mirrorgate.Row, error) {
	resp, err := http.Get(h.gw.HTTP() + "/v1/status")
	if err != nil {
		return mirrorgate.Row{}, err
	}
	defer resp.Body.Close()
	var status struct {
		Components struct {
			Mirrors []mirrorgate.Row `json:"mirrors"`
		} `json:"components"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&status); err != nil {
		return mirrorgate.Row{}, err
	}
	if len(status.Components.Mirrors) == 0 {
		return mirrorgate.Row{}, fmt.Errorf("there is no mirror")
	}
	return status.Components.Mirrors[0], nil
}

// awaitVersion waits until the mirror has a version of the source.
func (h *mirrorHost) awaitVersion(t testing.TB, version string) mirrorgate.Row {
	t.Helper()
	var r mirrorgate.Row
	remotetest.Eventually(t, func() (err error) {
		if r, err = h.row(); err == nil && (r.State != "following" || r.SourceVersion != version) {
			err = fmt.Errorf("%+v", r)
		}
		return err
	})
	return r
}

// countingWriter counts the bytes written.
type countingWriter struct {
	io.Writer
	bytes *atomic.Int64
}

// Write implements io.Writer.
func (w countingWriter) Write(p []byte) (int, error) {
	n, err := w.Writer.Write(p)
	w.bytes.Add(int64(n))
	return n, err
}

// slowLink forwards connections to an address. It limits the total rate of all responses.
func slowLink(t testing.TB, to string, bytesPerSecond int64) (address string, moved *atomic.Int64) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { _ = l.Close() })
	moved = &atomic.Int64{}
	tokens := make(chan struct{})
	const piece = 16 << 10
	done := make(chan struct{})
	t.Cleanup(func() { close(done) })
	go func() {
		tick := time.NewTicker(time.Duration(int64(time.Second) * piece / bytesPerSecond))
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
			}
			select {
			case <-done:
				return
			case tokens <- struct{}{}:
			}
		}
	}()
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
				for {
					select {
					case <-done:
						return
					case <-tokens:
					}
					if _, err := io.CopyN(countingWriter{in, moved}, out, piece); err != nil {
						return
					}
				}
			}()
		}
	}()
	return l.Addr().String(), moved
}

// If several gateways, each a process with a separate owner, mirror one model at once over a slow link to its source,
// the link carries the model little more than once, and all gateways get the whole model.
func TestMirrorsFetchFromEachOther(t *testing.T) {
	const bytes, hosts = 6 << 20, 4
	_, natsURL := startNATS(t)
	from := remotetest.StartOwner(t, "--model", fmt.Sprintf("m=%d", bytes))
	origin := remotetest.StartGateway(t, from.Socket)
	origin.Attached(t)
	link, moved := slowLink(t, origin.Addresses.HTTP, 2<<20)
	list := make([]*mirrorHost, hosts)
	for i := range list {
		list[i] = startMirrorHost(t, "--nats", natsURL, "--mirror", "http://"+link+"/m", "--mirror-range", "256KiB")
	}
	dev := remotetest.OpenHost(t)
	source := remotetest.Dial(t, from.Socket, dev)
	var peers int64
	for _, h := range list {
		peers += h.awaitVersion(t, "1").PeerBytes
		requireMirrored(t, source, remotetest.Dial(t, h.owner.Socket, dev), "m")
	}
	t.Logf("the source gave %.2f times the model, mirrors %.2f times", float64(moved.Load())/bytes, float64(peers)/bytes)
	require.Less(t, moved.Load(), int64(bytes*hosts/2))
	require.Greater(t, peers, int64(bytes*hosts/2-bytes))

	// A mirror that starts later fetches from an existing one.
	late := startMirrorHost(t, "--nats", natsURL, "--mirror", "http://"+link+"/m", "--mirror-range", "256KiB")
	require.Greater(t, late.awaitVersion(t, "1").PeerBytes, int64(bytes/2))
}

// If the first mirror of a chain is killed, the mirrors that fetch from it continue with other sources.
func TestMirrorIsKilledThatOthersTakeFrom(t *testing.T) {
	const bytes = 4 << 20
	_, natsURL := startNATS(t)
	from := remotetest.StartOwner(t, "--model", fmt.Sprintf("m=%d", bytes))
	origin := remotetest.StartGateway(t, from.Socket)
	origin.Attached(t)
	link, _ := slowLink(t, origin.Addresses.HTTP, 1<<20)
	args := []string{"--nats", natsURL, "--mirror", "http://" + link + "/m", "--mirror-range", "128KiB"}
	first := startMirrorHost(t, args...)
	remotetest.Eventually(t, func() error {
		r, err := first.row()
		if err == nil && r.MovedBytes < 64<<10 {
			err = fmt.Errorf("%+v", r)
		}
		return err
	})
	second := startMirrorHost(t, args...)
	third := startMirrorHost(t, args...)
	remotetest.Eventually(t, func() error {
		r, err := second.row()
		if err == nil && r.From == "the source" || r.MovedBytes == 0 {
			if other, _ := third.row(); other.From != "the source" && other.MovedBytes > 0 {
				return nil
			}
			err = fmt.Errorf("%+v", r)
		}
		return err
	})
	first.gw.Kill()
	dev := remotetest.OpenHost(t)
	source := remotetest.Dial(t, from.Socket, dev)
	for _, h := range []*mirrorHost{second, third} {
		h.awaitVersion(t, "1")
		requireMirrored(t, source, remotetest.Dial(t, h.owner.Socket, dev), "m")
	}
}

// A mirror that announces the whole model and sends wrong bytes does not corrupt the model.
func TestPeersSendWrongBytes(t *testing.T) {
	server, _ := startNATS(t)
	conn, err := server.Connect()
	require.NoError(t, err)
	defer conn.Close()
	var asked atomic.Int64
	liar := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		var begin, end int
		n, _ := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &begin, &end)
		size := 1 << 20 / 4
		if n == 2 {
			w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", begin, end, size))
			w.Header().Set("Content-Length", fmt.Sprint(end-begin+1))
			w.WriteHeader(http.StatusPartialContent)
			_, _ = io.CopyN(w, rand.Reader, int64(end-begin+1))
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(size))
		_, _ = io.CopyN(w, rand.Reader, int64(size))
	}))
	defer liar.Close()
	from, to := remotetest.StartOwner(t, "--model", "m=1048576"), remotetest.StartOwner(t)
	gw := remotetest.StartGateway(t, from.Socket)
	gw.Attached(t)
	dev := remotetest.OpenHost(t)
	source, target := remotetest.Dial(t, from.Socket, dev), remotetest.Dial(t, to.Socket, dev)
	model := modelDigest(t, gw, "m").Sum
	js, err := jetstream.New(conn)
	require.NoError(t, err)
	kv, err := js.CreateOrUpdateKeyValue(t.Context(), jetstream.KeyValueConfig{Bucket: "sharedtensor_mirrors", Storage: jetstream.MemoryStorage})
	require.NoError(t, err)
	for i, text := range []string{
		fmt.Sprintf(`{"url":%q,"done":1048576,"total":1048576,"host":%q}`, liar.URL, mirror.HostID()), `{"url":"file:///etc","done":5,"total":5}`, `no JSON`,
		`{"url":"http://127.0.0.1:1","done":9,"total":5}`, `{"url":"http://127.0.0.1:1","done":1048575,"total":1048576}`,
	} {
		_, err = kv.Put(t.Context(), fmt.Sprintf("have.%s.x%d", model, i), []byte(text))
		require.NoError(t, err)
	}
	peers, err := mirror.NewPeers(conn, mirror.PeersOptions{})
	require.NoError(t, err)
	told := &events{}
	m := newMirror(t, mirror.Options{Source: gw.HTTP() + "/m", Owner: target, Device: dev, Peers: peers, Events: told.add, RangeBytes: 100 << 10})
	_, err = m.Pull(t.Context())
	require.NoError(t, err)
	require.Positive(t, asked.Load())
	requireMirrored(t, source, target, "m")
	require.NotEmpty(t, told.of(mirror.EventRetry))
}

// The page of a mirroring gateway shows sources, progress, rates and versions. If SHAREDTENSOR_SCREENSHOTS is set to a
// folder, the test saves a picture there.
func TestPageShowsMirrors(t *testing.T) {
	_, natsURL := startNATS(t)
	from := remotetest.StartOwner(t, "--model", "llm=4194304")
	origin := remotetest.StartGateway(t, from.Socket)
	origin.Attached(t)
	link, _ := slowLink(t, origin.Addresses.HTTP, 512<<10)
	h := startMirrorHost(t, "--nats", natsURL, "--mirror", "http://"+link+"/llm", "--mirror", "gone=http://127.0.0.1:1/m", "--mirror-range", "64KiB")
	page := browsertest.Open(t, h.gw.HTTP()+"/", 1280, 1500)
	section := "document.getElementById('component-mirrors')"
	page.WaitFor(section + "?.innerText.includes('fetching')")
	page.WaitFor("/[1-9][0-9]? %/.test(" + section + ".innerText)")
	page.WaitFor(section + ".innerText.includes('the source')")
	page.WaitFor(section + ".innerText.includes('KiB')")
	page.WaitFor(section + ".innerText.includes('connection refused')")
	page.Screenshot("page-mirrors")
	h.awaitVersion(t, "1")
	page.WaitFor(section + ".innerText.includes('following')")
	page.WaitFor("document.getElementById('models').innerText.includes('llm')")
	require.Equal(t, "true", page.Eval("document.documentElement.scrollWidth <= innerWidth"))
	require.Empty(t, page.Problems())
}
