package placestest_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/internal/remotetest"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/mirror"
	"github.com/sharedtensor/sharedtensor/endpoint/remote/modelwire"
	"github.com/sharedtensor/sharedtensor/module"
)

var (
	zeroTime time.Time
	noLog    = log.New(io.Discard, "", 0)
)

// A model is mirrored from each kind of place, in one file and in shards. An unchanged model is not fetched again, and
// a changed one is.
func TestPullFromPlaces(t *testing.T) {
	hubOf := func(t *testing.T) *place { p, _ := hubPlace(t, honest); return p }
	hubFolder := func(t *testing.T) *place {
		p, h := hubPlace(t, honest)
		p.address, h.folder = "hf://org/m/text/m", "text/m/"
		return p
	}
	for name, c := range map[string]struct {
		place    func(t *testing.T) *place
		sharded  bool
		revision string
	}{
		"a folder":              {folderPlace, false, `^file:///.*/m@[0-9a-f]{32}$`},
		"a folder of shards":    {folderPlace, true, `^file:///`},
		"the hub":               {hubOf, false, `^hf://org/m@[0-9a-f]{40}$`},
		"shards of the hub":     {hubOf, true, `^hf://org/m@[0-9a-f]{40}$`},
		"a folder of the hub":   {hubFolder, false, `^hf://org/m/text/m@[0-9a-f]{40}$`},
		"shards in its folder":  {hubFolder, true, `^hf://org/m/text/m@[0-9a-f]{40}$`},
		"an oras artifact":      {func(t *testing.T) *place { return orasPlace(t, honest) }, false, `^oci://127.*/org/m@sha256:[0-9a-f]{64}$`},
		"shards pushed by oras": {func(t *testing.T) *place { return orasPlace(t, honest) }, true, `^oci://127`},
		"Google's storage":      {func(t *testing.T) *place { return googlePlace(t, honest) }, false, `^gs://models/org/m@[0-9a-f]{32}$`},
		"shards at Google":      {func(t *testing.T) *place { return googlePlace(t, honest) }, true, `^gs://models/org/m@`},
		"a bucket":              {func(t *testing.T) *place { return bucketPlace(t, honest) }, false, `^s3://models/org/m@[0-9a-f]{32}$`},
		"shards in a bucket":    {func(t *testing.T) *place { return bucketPlace(t, honest) }, true, `^s3://models/org/m@[0-9a-f]{32}$`},
		"ModelPack":             {func(t *testing.T) *place { return registryPlace(t, false, honest) }, false, `^oci://127.*/org/m@sha256:[0-9a-f]{64}$`},
		"shards in ModelPack":   {func(t *testing.T) *place { return registryPlace(t, false, honest) }, true, `^oci://127`},
		"Docker's media types":  {func(t *testing.T) *place { return registryPlace(t, true, honest) }, false, `^oci://127`},
	} {
		t.Run(name, func(t *testing.T) {
			to := remotetest.StartOwner(t)
			dev := remotetest.OpenHost(t)
			target := remotetest.Dial(t, to.Socket, dev)
			p := c.place(t)
			first, second := folderOf(t, 1, c.sharded), folderOf(t, 2, c.sharded)
			p.put(t, first)
			told := &events{}
			options := mirror.Options{Source: p.address, Owner: target, Device: dev, RangeBytes: 300 << 10, Digests: true, Events: told.add}
			m := newMirror(t, options)
			got, err := m.Pull(t.Context())
			require.NoError(t, err)
			require.Equal(t, "m", got.Name, "as the place calls it")
			require.Equal(t, uint64(1), got.Version)
			require.Regexp(t, c.revision, got.Revision)
			require.Equal(t, 8, got.Tensors)
			require.GreaterOrEqual(t, got.Moved, got.Bytes)
			require.Less(t, got.Moved, got.Bytes+4*(256<<10)+(64<<10), "nothing comes twice but the beginnings of files")
			requireModel(t, target, "m", first)
			h, err := target.Acquire(t.Context(), "m", endpoint.AcquireOptions{})
			require.NoError(t, err)
			defer h.Close()
			whole, err := module.StateDictDigest(t.Context(), h.StateDict(), 0)
			require.NoError(t, err)
			require.Equal(t, whole.String(), got.Digest)
			require.NotEmpty(t, told.of(mirror.EventProgress))

			again, err := m.Pull(t.Context())
			require.NoError(t, err)
			require.True(t, again.Unchanged)
			again, err = newMirror(t, options).Pull(t.Context())
			require.NoError(t, err)
			require.True(t, again.Unchanged, "another process knows by the revision")
			require.Equal(t, got.Digest, again.Digest)
			require.Equal(t, got.Bytes, again.Bytes)

			p.put(t, second)
			next, err := m.Pull(t.Context())
			require.NoError(t, err)
			require.Equal(t, uint64(2), next.Version)
			requireModel(t, target, "m", second)

			options.Name, options.Digests = "plain", false
			plain, err := newMirror(t, options).Pull(t.Context())
			require.NoError(t, err)
			require.Empty(t, plain.Digest, "nobody wants it")
			require.Equal(t, next.Bytes, plain.Bytes)
			requireModel(t, target, "plain", second)
			options.Name, options.Digest = "other", parseDigest(t, next.Digest)
			_, err = newMirror(t, options).Pull(t.Context())
			require.NoError(t, err, "the digest that is wanted is computed")
			require.NoError(t, target.Withdraw(t.Context(), "other"))
			options.Digest = modelwire.Digest{Sum: modelwire.Sum{1}}
			_, err = newMirror(t, options).Pull(t.Context())
			require.ErrorIs(t, err, mirror.ErrDigest)
			options.Digest, options.MaxBytes = modelwire.Digest{}, 1<<20
			_, err = newMirror(t, options).Pull(t.Context())
			require.ErrorIs(t, err, mirror.ErrTooLarge)
			_, err = target.Info(t.Context(), "other")
			require.ErrorIs(t, err, endpoint.ErrNotFound)
		})
	}
}

func parseDigest(t testing.TB, text string) modelwire.Digest {
	t.Helper()
	d, err := modelwire.ParseDigest(text)
	require.NoError(t, err)
	return d
}

// If one shard in a bucket is replaced, only that shard is fetched.
func TestFollowPlace(t *testing.T) {
	to := remotetest.StartOwner(t)
	dev := remotetest.OpenHost(t)
	target := remotetest.Dial(t, to.Socket, dev)
	p := bucketPlace(t, honest)
	dir := folderOf(t, 1, true)
	p.put(t, dir)
	told := &events{}
	stop := follow(t, newMirror(t, mirror.Options{Source: p.address, Owner: target, Device: dev, Events: told.add, Poll: 20 * time.Millisecond}))
	nth(t, told, 0)
	shard := filepath.Join(dir, "model-00002-of-00004.safetensors")
	data, err := os.ReadFile(shard)
	require.NoError(t, err)
	data[len(data)-1]++
	require.NoError(t, os.WriteFile(shard, data, 0o600))
	p.put(t, dir)
	next := nth(t, told, 1)
	require.Greater(t, next.Copied, next.Bytes/2)
	require.Less(t, next.Moved, 2*int64(len(data))+4*(256<<10))
	requireModel(t, target, "m", dir)
	require.Error(t, stop())
	pinned := mirror.Options{Source: "hf://org/m@" + strings.Repeat("a", 40), Owner: target, Device: dev}
	require.ErrorIs(t, newMirror(t, pinned).Follow(t.Context()), errors.ErrUnsupported)
}

// Files in the local cache are not fetched, and a cached model is mirrored even if the hub is down.
func TestPullFromTheHubsCache(t *testing.T) {
	to := remotetest.StartOwner(t)
	dev := remotetest.OpenHost(t)
	target := remotetest.Dial(t, to.Socket, dev)
	p, hub := hubPlace(t, honest)
	dir := folderOf(t, 1, true)
	p.put(t, dir)
	cache := filepath.Join(os.Getenv("HF_HOME"), "hub", "models--org--m")
	require.NoError(t, os.MkdirAll(filepath.Join(cache, "blobs"), 0o700))
	files := filesIn(t, dir)
	one := files["model-00001-of-00004.safetensors"]
	blob := filepath.Join(cache, "blobs", sha256Hex(one))
	options := mirror.Options{Source: p.address, Owner: target, Device: dev}

	options.Name = "corrupt"
	require.NoError(t, os.WriteFile(blob, append(one[:len(one)-1:len(one)-1], one[len(one)-1]+1), 0o600))
	_, err := newMirror(t, options).Pull(t.Context())
	require.ErrorIs(t, err, mirror.ErrDigest, "the cache is not believed either")

	options.Name = "partial"
	require.NoError(t, os.WriteFile(blob, one, 0o600))
	_, err = newMirror(t, options).Pull(t.Context())
	require.NoError(t, err)
	requireModel(t, target, "partial", dir)
	for _, asked := range hub.asked {
		require.NotContains(t, asked, "model-00001", "it lies in the cache")
	}

	snapshot := filepath.Join(cache, "snapshots", hub.commit)
	require.NoError(t, os.MkdirAll(snapshot, 0o700))
	for name, data := range files {
		path := filepath.Join(cache, "blobs", sha256Hex(data))
		require.NoError(t, os.WriteFile(path, data, 0o600))
		require.NoError(t, os.Symlink(path, filepath.Join(snapshot, name)))
	}
	require.NoError(t, os.MkdirAll(filepath.Join(cache, "refs"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(cache, "refs", "main"), []byte(hub.commit), 0o600))
	hub.asked, options.Name = nil, "whole"
	_, err = newMirror(t, options).Pull(t.Context())
	require.NoError(t, err)
	requireModel(t, target, "whole", dir)
	require.Equal(t, []string{"/api/models/org/m/revision/main"}, hub.asked, "which commit is newest, and nothing else")

	t.Setenv("HF_ENDPOINT", "http://127.0.0.1:1")
	options.Name = "away"
	_, err = newMirror(t, options).Pull(t.Context())
	require.NoError(t, err)
	t.Setenv("HF_HUB_OFFLINE", "1")
	options.Source, options.Name = "hf://org/other", ""
	_, err = newMirror(t, options).Pull(t.Context())
	require.ErrorContains(t, err, "hf download org/other")
}

// changing passes the headers and data of tensor responses to change, which returns the new data.
func changing(change func(h http.Header, data []byte) []byte) middleware {
	return func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Range") == "" || strings.HasPrefix(r.Header.Get("Range"), "bytes=0-") {
				inner.ServeHTTP(w, r)
				return
			}
			answer := httptest.NewRecorder()
			inner.ServeHTTP(answer, r)
			for name, values := range answer.Header() {
				w.Header()[name] = values
			}
			data := change(w.Header(), answer.Body.Bytes())
			w.WriteHeader(answer.Code)
			_, _ = w.Write(data) // best effort: the client may have left
		})
	}
}

// withoutRanges makes a server ignore ranges.
func withoutRanges(inner http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.Header.Del("Range")
		inner.ServeHTTP(w, r)
	})
}

// cutting breaks each connection after this many bytes of a response.
func cutting(after int) middleware {
	return func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			inner.ServeHTTP(&cutWriter{ResponseWriter: w, left: after}, r)
		})
	}
}

type cutWriter struct {
	http.ResponseWriter
	left int
}

// Write implements io.Writer.
func (c *cutWriter) Write(p []byte) (int, error) {
	if len(p) > c.left {
		_, _ = c.ResponseWriter.Write(p[:c.left])
		_ = http.NewResponseController(c.ResponseWriter).Flush()
		panic(http.ErrAbortHandler)
	}
	c.left -= len(p)
	return c.ResponseWriter.Write(p)
}

// Each kind of server fails in every way or sends false data. The mirror recovers if it can, and otherwise publishes nothing.
func TestFaultsOfPlaces(t *testing.T) {
	kinds := map[string]func(t *testing.T, between middleware) *place{
		"hub":      func(t *testing.T, between middleware) *place { p, _ := hubPlace(t, between); return p },
		"registry": func(t *testing.T, between middleware) *place { return registryPlace(t, false, between) },
		"bucket":   func(t *testing.T, between middleware) *place { return bucketPlace(t, between) },
		"google":   func(t *testing.T, between middleware) *place { return googlePlace(t, between) },
		"oras":     func(t *testing.T, between middleware) *place { return orasPlace(t, between) },
	}
	digested := func(kind string) error {
		if kind == "bucket" || kind == "google" {
			return nil // S3 has a digest of the object only if the upload requested it
		}
		return mirror.ErrDigest
	}
	to := remotetest.StartOwner(t)
	dev := remotetest.OpenHost(t)
	target := remotetest.Dial(t, to.Socket, dev)
	for name, c := range map[string]struct {
		between middleware
		want    func(kind string) error
	}{
		"ranges are ignored":  {withoutRanges, func(string) error { return nil }},
		"connections are cut": {cutting(400 << 10), func(string) error { return nil }},
		"other bytes":         {changing(func(_ http.Header, data []byte) []byte { data[len(data)/2]++; return data }), digested},
		"another range": {changing(func(h http.Header, data []byte) []byte {
			h.Set("Content-Range", "bytes 0-9/10")
			return data
		}), func(string) error { return mirror.ErrSource }},
		"a shorter answer": {changing(func(h http.Header, data []byte) []byte {
			h.Set("Content-Length", strconv.Itoa(len(data)-1))
			return data[:len(data)-1]
		}), func(string) error { return mirror.ErrSource }},
		"an answer without a length": {changing(func(h http.Header, data []byte) []byte {
			h.Del("Content-Length")
			h.Set("Transfer-Encoding", "chunked")
			return data
		}), func(string) error { return mirror.ErrSource }},
	} {
		for kind, open := range kinds {
			t.Run(name+" "+kind, func(t *testing.T) {
				p := open(t, c.between)
				dir := folderOf(t, 3, false)
				p.put(t, dir)
				model := strings.ReplaceAll(name+kind, " ", "")
				told := &events{}
				options := mirror.Options{
					Source: p.address, Name: model, Owner: target, Device: dev, RangeBytes: 500 << 10, Stall: 2 * time.Second, Patience: time.Second, Events: told.add,
				}
				_, err := newMirror(t, options).Pull(t.Context())
				if want := c.want(kind); want != nil {
					require.ErrorIs(t, err, want)
					_, err = target.Info(t.Context(), model)
					require.ErrorIs(t, err, endpoint.ErrNotFound, "nothing was published")
					return
				}
				require.NoError(t, err)
				if name != "other bytes" {
					requireModel(t, target, model, dir)
				}
			})
		}
	}
}

// If the server stops permanently during a transfer, the pull fails.
func TestPlaceKilledDuringPull(t *testing.T) {
	to := remotetest.StartOwner(t)
	dev := remotetest.OpenHost(t)
	target := remotetest.Dial(t, to.Socket, dev)
	var ranges atomic.Int64
	p := bucketPlace(t, func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Range") != "" && ranges.Add(1) > 3 {
				panic(http.ErrAbortHandler)
			}
			inner.ServeHTTP(w, r)
		})
	})
	p.put(t, folderOf(t, 1, false))
	_, err := newMirror(t, mirror.Options{Source: p.address, Owner: target, Device: dev, RangeBytes: 200 << 10, Patience: 300 * time.Millisecond}).Pull(t.Context())
	require.ErrorContains(t, err, "no progress for")
	_, err = target.Info(t.Context(), "m")
	require.ErrorIs(t, err, endpoint.ErrNotFound)
}

// If an object is replaced during the transfer, the mirror starts again with the new one and never mixes their bytes.
func TestObjectReplacedDuringPull(t *testing.T) {
	to := remotetest.StartOwner(t)
	dev := remotetest.OpenHost(t)
	target := remotetest.Dial(t, to.Socket, dev)
	first, second := folderOf(t, 1, false), folderOf(t, 2, false)
	var ranges atomic.Int64
	var p *place
	p = bucketPlace(t, func(inner http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Range") != "" && ranges.Add(1) == 4 {
				p.put(t, second)
			}
			if match := r.Header.Get("If-Match"); match != "" { // this server ignores If-Match, Amazon's does not
				head := httptest.NewRecorder()
				inner.ServeHTTP(head, httptest.NewRequest(http.MethodHead, r.URL.String(), nil))
				if head.Header().Get("ETag") != match {
					http.Error(w, "<Error><Code>PreconditionFailed</Code></Error>", http.StatusPreconditionFailed)
					return
				}
			}
			inner.ServeHTTP(w, r)
		})
	})
	p.put(t, first)
	got, err := newMirror(t, mirror.Options{Source: p.address, Owner: target, Device: dev, RangeBytes: 200 << 10, Connections: 1}).Pull(t.Context())
	require.NoError(t, err)
	require.Equal(t, uint64(1), got.Version)
	requireModel(t, target, "m", second)
}

// The credentials of a registry that requires a login are not sent to the host to which it redirects blobs.
func TestRegistryRedirects(t *testing.T) {
	to := remotetest.StartOwner(t)
	dev := remotetest.OpenHost(t)
	target := remotetest.Dial(t, to.Socket, dev)
	var blobs *httptest.Server
	var redirected atomic.Int64
	p := registryPlace(t, false, func(inner http.Handler) http.Handler {
		blobs = serveHTTP(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("Authorization") != "" || r.Header.Get("Cookie") != "" {
				t.Error("credentials went to another host")
			}
			inner.ServeHTTP(w, r)
		}))
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if user, password, _ := r.BasicAuth(); user != "reader" || password != "secret" {
				w.Header().Set("WWW-Authenticate", `Basic realm="registry"`)
				http.Error(w, `{"errors":[{"code":"UNAUTHORIZED","message":"log in"}]}`, http.StatusUnauthorized)
				return
			}
			if strings.Contains(r.URL.Path, "/blobs/") {
				redirected.Add(1)
				http.Redirect(w, r, blobs.URL+r.URL.Path, http.StatusTemporaryRedirect)
				return
			}
			inner.ServeHTTP(w, r)
		})
	})
	dir := folderOf(t, 1, true)
	p.put(t, dir)
	options := mirror.Options{Source: p.address, Owner: target, Device: dev}
	_, err := newMirror(t, options).Pull(t.Context())
	require.ErrorIs(t, err, mirror.ErrDenied, "without a login")
	host := strings.TrimPrefix(p.address, "oci://")
	host, _, _ = strings.Cut(host, "/")
	config := `{"auths":{"` + host + `":{"auth":"cmVhZGVyOnNlY3JldA=="}}}` // reader:secret
	require.NoError(t, os.WriteFile(filepath.Join(os.Getenv("DOCKER_CONFIG"), "config.json"), []byte(config), 0o600))
	_, err = newMirror(t, options).Pull(t.Context())
	require.NoError(t, err)
	require.Positive(t, redirected.Load())
	requireModel(t, target, "m", dir)
}

// A host with an expired certificate is refused at once, also by a mirror that follows.
func TestExpiredCertificate(t *testing.T) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-48 * time.Hour), NotAfter: time.Now().Add(-24 * time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	require.NoError(t, err)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { t.Error("it was asked") }))
	server.Config.ErrorLog = noLog
	server.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	server.StartTLS()
	t.Cleanup(server.Close)
	roots := x509.NewCertPool()
	certificate, err := x509.ParseCertificate(der)
	require.NoError(t, err)
	roots.AddCert(certificate)
	to := remotetest.StartOwner(t)
	dev := remotetest.OpenHost(t)
	target := remotetest.Dial(t, to.Socket, dev)
	t.Setenv("HF_ENDPOINT", server.URL)
	t.Setenv("HF_HOME", t.TempDir())
	t.Setenv("AWS_ENDPOINT_URL_S3", server.URL)
	for _, source := range []string{server.URL + "/m", "hf://org/m", "s3://models/m.safetensors"} {
		m := newMirror(t, mirror.Options{Source: source, Name: "m", Owner: target, Device: dev, TLS: &tls.Config{RootCAs: roots}})
		ctx, cancel := context.WithTimeout(t.Context(), remotetest.Patience/2)
		require.ErrorContains(t, m.Follow(ctx), "expired", source)
		require.NoError(t, ctx.Err(), "at once")
		cancel()
	}
}

// Errors of places without a model describe the problem.
func TestPlacesWithoutModel(t *testing.T) {
	to := remotetest.StartOwner(t)
	dev := remotetest.OpenHost(t)
	target := remotetest.Dial(t, to.Socket, dev)
	p := bucketPlace(t, honest)
	hubPlace, _ := hubPlace(t, honest)
	registry := registryPlace(t, false, honest)
	gguf := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(gguf, "m.gguf"), []byte("GGUF"), 0o600))
	p.put(t, gguf)
	hubPlace.put(t, gguf)
	registry.put(t, gguf)
	broken := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(broken, "model.safetensors"), []byte("{}"), 0o600))
	for source, want := range map[string]struct {
		is   error
		says string
	}{
		p.address:                          {mirror.ErrUnsupported, "has to be converted"},
		hubPlace.address:                   {mirror.ErrUnsupported, "has to be converted"},
		registry.address:                   {mirror.ErrUnsupported, "layers of raw .safetensors files are taken"},
		"s3://models/none":                 {mirror.ErrNotFound, "no .safetensors file"},
		"s3://nobody/m.safetensors":        {mirror.ErrNotFound, "nobody"},
		"hf://org/none":                    {mirror.ErrNotFound, "Repository not found"},
		registry.address + "none":          {mirror.ErrNotFound, ""},
		"file://" + gguf:                   {nil, "GGUF"},
		"file://" + broken:                 {mirror.ErrSource, "not safetensors"},
		"file:///nobody/model.safetensors": {os.ErrNotExist, ""},
	} {
		_, err := newMirror(t, mirror.Options{Source: source, Name: "n", Owner: target, Device: dev, Patience: 200 * time.Millisecond}).Pull(t.Context())
		require.Error(t, err, source)
		if want.is != nil {
			require.ErrorIs(t, err, want.is, source)
		}
		require.ErrorContains(t, err, want.says)
	}
	for _, source := range []string{"file://m", "hf://", "hf://../x", "oci://", "oci://host", "s3://bucket", "s3:///key", "ftp://x/y"} {
		_, err := mirror.New(mirror.Options{Source: source, Owner: target, Device: dev})
		require.Error(t, err, source)
	}
}
