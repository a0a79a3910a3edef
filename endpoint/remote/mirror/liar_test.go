package mirror_test

import (
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sharedtensor/sharedtensor/driver"
	"github.com/sharedtensor/sharedtensor/endpoint"
	"github.com/sharedtensor/sharedtensor/module"
)

// token is the token in tokenFile.
const token = "0123456789abcdef-mirror"

func tokenFile(t testing.TB) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "tokens")
	require.NoError(t, os.WriteFile(path, []byte(token+" mirror read-only\n"), 0o600))
	return path
}

// publishFile publishes a file as the next version of a name.
func publishFile(t testing.TB, client *endpoint.Client, dev driver.Device, name, path string) uint64 {
	t.Helper()
	sd, err := module.Load(t.Context(), dev, path, module.LoadOptions{})
	require.NoError(t, err)
	defer sd.Close()
	version, err := client.Publish(t.Context(), name, sd, endpoint.PublishOptions{})
	require.NoError(t, err)
	return version
}

// liar is a proxy to a gateway that changes its responses: manifests, or headers and bytes of tensors.
type liar struct {
	to       string
	answer   func(w http.ResponseWriter, r *http.Request) // replaces the manifest response
	manifest func(string) string
	digits   int   // number of characters removed from digests
	old      bool  // as a gateway that does not support BLAKE3
	sizes    int64 // factor applied to sizes
	header   func(http.Header)
	bytes    func([]byte)
	stall    bool
	noRanges bool

	once  sync.Once
	ended chan struct{}
}

func (l *liar) stop() {
	l.once.Do(func() { l.ended = make(chan struct{}) })
	close(l.ended)
}

var (
	sizeField   = regexp.MustCompile(`"bytes":(\d+)`)
	digestField = regexp.MustCompile(`"(sha256|blake3)":"([0-9a-f]+)"`)
)

// ServeHTTP implements http.Handler.
func (l *liar) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	l.once.Do(func() { l.ended = make(chan struct{}) })
	isManifest, isTensor := strings.HasSuffix(r.URL.Path, "/manifest"), strings.Contains(r.URL.Path, "/tensors/")
	if l.answer != nil && (isManifest || strings.HasSuffix(r.URL.Path, "x")) {
		l.answer(w, r)
		return
	}
	target := r.URL.RequestURI()
	if l.old {
		target = strings.Replace(target, "digests=blake3", "digests", 1)
	}
	passed, err := http.NewRequest(r.Method, l.to+target, nil)
	if err != nil {
		panic(err)
	}
	if !l.noRanges && r.Header.Get("Range") != "" {
		passed.Header.Set("Range", r.Header.Get("Range"))
	}
	resp, err := http.DefaultClient.Do(passed)
	if err != nil {
		panic(err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		panic(err)
	}
	for name := range resp.Header {
		w.Header().Set(name, resp.Header.Get(name))
	}
	switch {
	case isManifest:
		body = l.changed(body)
		w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	case isTensor:
		if l.header != nil {
			l.header(w.Header())
		}
		if l.bytes != nil {
			l.bytes(body)
		}
	}
	w.WriteHeader(resp.StatusCode)
	if isTensor && l.stall {
		_ = http.NewResponseController(w).Flush()
		<-l.ended
		return
	}
	if isTensor && w.Header().Get("Content-Length") == "" {
		_ = http.NewResponseController(w).Flush() // the body has no length
	}
	_, _ = w.Write(body) // best effort: the client may have left
}

// changed returns the modified manifest.
func (l *liar) changed(body []byte) []byte {
	text := string(body)
	if l.manifest != nil {
		text = l.manifest(text)
	}
	if l.sizes > 0 {
		text = sizeField.ReplaceAllStringFunc(text, func(s string) string {
			n, _ := strconv.ParseInt(sizeField.FindStringSubmatch(s)[1], 10, 64)
			return fmt.Sprintf(`"bytes":%d`, n*l.sizes)
		})
	}
	if l.digits > 0 {
		text = digestField.ReplaceAllStringFunc(text, func(s string) string {
			found := digestField.FindStringSubmatch(s)
			return `"` + found[1] + `":"` + found[2][:len(found[2])-l.digits] + `"`
		})
	}
	return []byte(text)
}

// endless sends blanks until the client disconnects.
func endless(w http.ResponseWriter, _ *http.Request) {
	blanks := []byte(strings.Repeat(" ", 1<<20))
	for {
		if _, err := w.Write(blanks); err != nil {
			return
		}
	}
}
